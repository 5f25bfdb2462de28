"""Functions of a single kernel value that every single-input recursion and the criticality analysis are made of.

``kernel_functions``  g, chi_parallel, chi_perp, h, j and the vertex source as a labelled table (5.49)-(5.53), (5.111)
``KernelFunctions``   what these are made of, exact or in microseconds; ``shared_functions`` keeps one per activation
``TangentFunctions``  what the statistics of the tangent kernel need besides (9.13)-(9.16)
``kernel_means``      g, g', K^2 g'' and <s'^2> over many kernel values at once, for searches
"""

from foretrain.theory.kernel_functions.functions import (
    KernelFunctions,
    KernelMeans,
    KernelValues,
    TangentFunctions,
    TangentValues,
    is_measured,
    kernel_functions,
    kernel_means,
    shared_functions,
    shared_tangent_functions,
)

__all__ = [
    "KernelFunctions",
    "KernelMeans",
    "KernelValues",
    "TangentFunctions",
    "TangentValues",
    "is_measured",
    "kernel_functions",
    "kernel_means",
    "shared_functions",
    "shared_tangent_functions",
]
