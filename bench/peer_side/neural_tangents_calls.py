"""All that is asked of neural-tangents."""

from bench.peer_side.neural_tangents_convolution import convolutional
from bench.peer_side.neural_tangents_kernel import tangent_kernel
from bench.peer_side.neural_tangents_network import network
from bench.peer_side.neural_tangents_pairs import pairs
from bench.peer_side.neural_tangents_predict import prediction

CALLS = {
    "convolutional": convolutional,
    "network": network,
    "pairs": pairs,
    "prediction": prediction,
    "tangent kernel": tangent_kernel,
}
