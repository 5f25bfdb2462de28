"""Random torch networks at initialisation beside the flow.

``entry``          ``compare_initial``: several widths, their limit, z-scores and a verdict
``observables``    what can be compared, component by component, and what is refused
``measurement``    both sides: the numbers of the theory, and the same from means over networks
``*_statistics``   what is averaged over networks, batch by batch; ``tangent_kernels``, ``differentials`` of many
"""

from foretrain.compare.initial.entry import compare_initial

__all__ = ["compare_initial"]
