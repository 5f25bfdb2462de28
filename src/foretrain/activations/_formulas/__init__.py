"""The activations of the catalogue, by kind, with derivatives to any order in closed form.

``saturating``     sigmoid, tanh, erf, softsign; sine and cosine
``gated``          softplus, swish, gelu, mish
``piecewise``      polynomials on each side of 0, and the exponential linear units
``polynomials``    what their derivatives are made of
"""
