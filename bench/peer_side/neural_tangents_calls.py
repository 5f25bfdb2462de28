"""All that is asked of neural-tangents."""

from bench.peer_side.neural_tangents_kernel import tangent_kernel
from bench.peer_side.neural_tangents_network import network
from bench.peer_side.neural_tangents_pairs import pairs

CALLS = {"network": network, "pairs": pairs, "tangent kernel": tangent_kernel}
