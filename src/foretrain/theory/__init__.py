"""Architecture in, numbers out: what the effective theory says about a network, without torch.

The network and its statistics, layer by layer

``architecture``       the MLP, plain or residual, and its hyperparameters (``ft.MLP``)
``flow``               kernel, vertex, next-to-leading metric and the rest of the tensors (``ft.flow``)
``finite_width``       means and covariances of any function of the preactivations, to order 1/n
``couplings``          the action of a layer: quadratic and quartic couplings, for any number of neurons
``ensembles``          random networks: samplers and correlators with standard errors
``linear``             deep linear networks, exact in width
``correlations``       of the tangent kernel, ``ntk_correlations``, and of its differentials, ``dntk_correlations``
``network_tangent_kernel``  the tangent kernel of one network, by the forward and the backward equation
``information``        entropies, mutual information and the depth over width at which it peaks
``complexity``         how many numbers the distribution of trained networks takes

Initialisation

``criticality``        critical points and universality classes (``ft.criticality``, ``ft.susceptibility``)
``critical_initialisation``  hyperparameters of a critical network, and on which side of K* its inputs lie
``fixed_points``       all fixed points of the kernel, their stability and depth scales
``phase_diagram``      the plane of C_b and C_W, with its critical lines
``advice``             depth, initialisation and learning rates for a width, with code to paste
``residual_networks``  how fast fluctuations grow with skip connections; best aspect ratio and best skip

Training

``ntk_shares``         what each layer and group of parameters adds to the tangent kernel
``learning_rates``     rates at which all of them contribute equally
``gradient_step``      loss and outputs after one step of gradient descent
``prediction``         what trained networks and models predict, at infinite width, to order 1/n, and by Bayes

Depth

``nearby``             two nearby inputs: K[0], K[1], K[2] and their flow
``angles``             two inputs at any angle
``asymptotics``        the law of every class at large depth, beside the exact recursion
``kernel_functions``   g, chi, h, j: what all of these are made of

Where a name stands for one module of a folder, as fixed_points of criticality, or for a part of one, as
ntk_correlations of correlations, ft.theory.fixed_points leads there.
The rest is for the inside: recursions from layer to layer, driven by flow, and arguments, what users give, checked.
"""

from importlib import import_module
from typing import Any

from foretrain.theory.architecture import MLP

_PLACES = {
    "critical_initialisation": "criticality.critical_initialisation",
    "dntk_correlations": "correlations",
    "fixed_points": "criticality.fixed_points",
    "ntk_correlations": "correlations",
    "phase_diagram": "criticality.phase_diagram",
}
_ROOMS = (
    "advice",
    "angles",
    "architecture",
    "asymptotics",
    "complexity",
    "correlations",
    "couplings",
    "criticality",
    "ensembles",
    "finite_width",
    "flow",
    "gradient_step",
    "information",
    "kernel_functions",
    "learning_rates",
    "linear",
    "nearby",
    "network_tangent_kernel",
    "ntk_shares",
    "prediction",
    "residual_networks",
    *_PLACES,
)

__all__ = ["MLP", *_ROOMS]


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'foretrain.theory' has no attribute {name!r}")
    return import_module(f"foretrain.theory.{_PLACES.get(name, name)}")


def __dir__() -> list[str]:
    return __all__
