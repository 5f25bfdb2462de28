"""Quadrature rules for Gaussian expectations, chosen by smoothness.

``lattice``    smooth integrands in 1 to 4 dimensions: body-centred lattices, spectrally accurate
``grids``      many smooth products of the same 1 to 4 inputs: axes of points, contracted
``panels``     kinks anywhere: nested Gauss-Legendre panels, graded towards kinks and near-kinks
``hermite``    all pairs of N inputs at once: Mehler's series with Parseval's error bound
"""
