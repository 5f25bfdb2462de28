"""The layer-to-layer flow of a random network's statistics: one function, :func:`flow`, and its result.

request.py checks what is asked for. One of several_inputs.py, one_input.py (to any depth) and residual.py (with skip
connections) runs the recursions, and result.py labels the tensors. kinks.py finds inputs for which the tangent kernel
is a matter of convention.
"""

from foretrain.theory.flow.entry import flow
from foretrain.theory.flow.result import MEANINGS, Flow

__all__ = ["MEANINGS", "Flow", "flow"]
