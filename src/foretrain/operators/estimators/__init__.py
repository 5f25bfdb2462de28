"""Estimates of what a matrix-free operator holds, each with seed, standard error and the products it took.

| question | function | structure decides |
|---|---|---|
| sum of the diagonal | ``trace`` | positive: XNysTrace; else Hutchinson or XTrace |
| size, likeness | ``frobenius_norm``, ``inner``, ``cosine`` | positive: Nyström tests; else plain or tested means |
| how many modes count | ``effective_rank`` | positive: two traces from the same products; else Lanczos quadrature |
| the largest modes | ``top_modes`` | symmetric: eigenpairs; else singular triples |
| the whole spectrum | ``spectral_density`` | symmetric: eigenvalues; else singular values |
"""

from foretrain.operators.estimators.density import SpectralDensity, spectral_density
from foretrain.operators.estimators.estimate import Estimate
from foretrain.operators.estimators.modes import Modes, top_modes
from foretrain.operators.estimators.norms import cosine, frobenius_norm, inner
from foretrain.operators.estimators.ranks import effective_rank
from foretrain.operators.estimators.traces import trace

__all__ = [
    "Estimate",
    "Modes",
    "SpectralDensity",
    "cosine",
    "effective_rank",
    "frobenius_norm",
    "inner",
    "spectral_density",
    "top_modes",
    "trace",
]
