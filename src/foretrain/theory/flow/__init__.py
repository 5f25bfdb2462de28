"""The layer-to-layer flow of a random network's statistics: one function, :func:`flow`, and its result.

``request``         what is asked for, checked
``several_inputs``  plain networks, any number of inputs
``one_input``       plain networks, one input, to any depth
``residual``        networks with skip connections
``result``          labelled tensors
``kinks``           inputs for which the tangent kernel is a matter of convention
"""

from foretrain.theory.flow.entry import flow
from foretrain.theory.flow.result import MEANINGS, Flow

__all__ = ["MEANINGS", "Flow", "flow"]
