"""What every comparison rests on: entries with batch values, several widths and their limit, scores and a verdict.

``entries``     one number that theory and measurement share, and its values in batches of networks
``ladder``      which networks are measured: several widths, how many of each, and the limit of infinite width
``agreement``   when many measured numbers agree with theory
``powers``      with which power of the width a size falls
"""
