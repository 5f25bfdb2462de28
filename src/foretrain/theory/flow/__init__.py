"""The layer-to-layer flow of a random network's statistics: one function, :func:`flow`, and its result.

request.py checks what is asked for and labels it, layers.py runs the recursions, presentation.py shows the result.
"""

from foretrain.theory.flow.layers import Flow, flow

__all__ = ["Flow", "flow"]
