"""A user's callable as an activation: checked, resolved, its kinks found, and differentiated from its values.

``custom``       from a callable to an activation
``pointwise``    the callable, checked
``cells``        the real line, cut until a short series is its equal on every piece
``kinks``        where it, or one of its derivatives, jumps
``recognition``  polynomial pieces, parity and homogeneity
``numerical``    derivatives and their error; ``expansions``  what they are computed by
"""
