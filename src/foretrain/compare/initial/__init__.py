"""Random torch networks at initialisation beside the flow.

``entry``          ``compare_initial``: several widths, their limit, z-scores and a verdict
``requests``       what is asked for, checked; ``plan`` which networks are drawn for it
``observables``    what is compared, component by component
``measurement``    both sides: the numbers of the theory, and the same from an ensemble
``estimators``     kernel, vertex, next-to-leading metric, three-point function and NTK from means over networks
``*_statistics``   what is averaged over networks, batch by batch; ``*_kernels`` NTKs and differentials of many
"""

from foretrain.compare.initial.entry import compare_initial

__all__ = ["compare_initial"]
