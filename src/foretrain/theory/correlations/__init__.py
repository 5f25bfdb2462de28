"""Correlations of the tangent kernel and its differentials at initialisation, to order 1/n.

``ntk_correlations``   of the tangent kernel with itself, with preactivations and with any observable
``dntk_correlations``  of the dNTK with preactivations and observables; means of the ddNTKs

Both put entries of tensors together (entries.py) with mean slopes and bends of observables
(observable_derivatives.py), which are integrals where no formula is known.
"""
