"""What is asked of a tangent kernel: written out, on disk (``store=``), or known by products (``ntk_operator``).

``spectrum``, ``condition_number``   which modes the outputs can move along, and how unequally fast
``spectral_density``                 how many eigenvalues lie where
``alignment``                        how targets lie in the kernel
``regression``                       where gradient flow of the linearised model ends, or is at a time
``summarise``                        all of it at a glance
"""

from foretrain.empirical.kernel_analysis.kernel_regression import KernelRegression, regression
from foretrain.empirical.kernel_analysis.spectra import (
    KernelSpectrum,
    condition_number,
    spectral_density,
    spectrum,
)
from foretrain.empirical.kernel_analysis.summary import KernelSummary, summarise
from foretrain.empirical.kernel_analysis.target_alignment import KernelAlignment, alignment
from foretrain.operators.estimators import SpectralDensity

__all__ = [
    "KernelAlignment",
    "KernelRegression",
    "KernelSpectrum",
    "KernelSummary",
    "SpectralDensity",
    "alignment",
    "condition_number",
    "regression",
    "spectral_density",
    "spectrum",
    "summarise",
]
