"""Random torch networks at initialisation beside the flow.

``comparison``      ``compare_initial``: what can be compared, the theory, several widths, their limit and a verdict
``preactivations``  K, V, G1, three-point function and kurtosis from means over networks; ``tangents`` the NTK's
                    statistics, ``differentials`` those of dNTK and ddNTKs
"""

from foretrain.compare.initial.comparison import compare_initial

__all__ = ["compare_initial"]
