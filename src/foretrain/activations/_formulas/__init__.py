"""The activations of the catalogue, by kind, with derivatives to any order in closed form.

``saturating``     sigmoid, tanh, erf, softsign
``gated``          softplus, swish, gelu, mish
``piecewise``      polynomials on each side of 0, and the exponential linear units
``trigonometric``  sine and cosine
``polynomials``    what their derivatives are made of
"""
