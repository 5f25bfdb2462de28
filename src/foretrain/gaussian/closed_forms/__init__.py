"""Closed forms of Gaussian expectations, singular covariances included.

``products``    which family has one for a product of activations, and what it is
``quadrant``    two inputs, polynomials on each side of 0
``directions``  variables as unit vectors, for the moments of any number of half-spaces (``gaussian.orthant``)
"""
