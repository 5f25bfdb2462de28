"""What every comparison rests on: entries with batch values, several widths and their limit, scores and a verdict.

``ladder``      what is measured, in batches, on which networks: several widths, how many of each, and their limit
``agreement``   when many measured numbers agree with theory
``powers``      with which power of the width a size falls
"""
