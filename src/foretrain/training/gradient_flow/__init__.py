"""Population gradient flow of whole networks, integrated with adaptive steps (Rawal & DeWeese, section 3).

On a plateau the flow is slow and smooth: an embedded Runge-Kutta pair crosses it in about a hundred gradients where
descent takes hundreds of thousands of steps. Many networks flow at once, each by its own steps.

``Problem``             network and teacher
``gaussian_sample``     points for the law of the inputs, also ``product_sample`` and ``given_sample``
``scaled_he``           He-normal networks whose first layers are small; ``ansatz`` the symmetric manifold;
                        ``given_networks`` your own weights; ``joined`` puts groups together
``escape``              when loss, amplitude or alignment pass thresholds
``snapshots``           weights at chosen times, ``trajectory`` what is read from them
``signal_energy``       γ, T, S, M and the ratios that the escape theorem bounds
``stochastic_escape``   the same times by stochastic gradient descent, as a check
``gradient_flow``       the flow of any torch model on its own data, until a time or an event
"""

from foretrain.training.gradient_flow.escape import (
    EscapeObservable,
    alignment_observable,
    amplitude_observable,
    escape,
    loss_observable,
    stochastic_escape,
)
from foretrain.training.gradient_flow.integration import Integration
from foretrain.training.gradient_flow.model_flow import ModelFlow, gradient_flow
from foretrain.training.gradient_flow.networks import (
    Networks,
    amplitudes,
    ansatz,
    given_networks,
    joined,
    scaled_he,
)
from foretrain.training.gradient_flow.problem import (
    Problem,
    Sample,
    gaussian_sample,
    given_sample,
    product_sample,
)
from foretrain.training.gradient_flow.snapshots import Snapshots, signal_energy, snapshots, trajectory

__all__ = [
    "EscapeObservable",
    "Integration",
    "ModelFlow",
    "Networks",
    "Problem",
    "Sample",
    "Snapshots",
    "alignment_observable",
    "amplitude_observable",
    "amplitudes",
    "ansatz",
    "escape",
    "gaussian_sample",
    "given_networks",
    "given_sample",
    "gradient_flow",
    "joined",
    "loss_observable",
    "product_sample",
    "scaled_he",
    "signal_energy",
    "snapshots",
    "stochastic_escape",
    "trajectory",
]
