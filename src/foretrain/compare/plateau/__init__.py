"""The plateau of a real network at small initialization: how long it is, why, and the rescaling that removes it.

``plateau``        reads the layers, integrates the network's own gradient flow on its own data, and advises
``Plateau``        what it returns; ``verify()`` trains the given and the rescaled network

Rooms: ``layers`` (scales, the bottleneck, its rescaling, the scaling law), ``forecast`` (the loss at the saddle and
the flow in steps), ``descent`` (learning rates by parameter, real runs), ``answer`` (all in words and pictures).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from foretrain.compare.plateau.answer import plateau_answer
from foretrain.compare.plateau.descent import (
    Descent,
    Escape,
    TrainedRuns,
    descent_of,
    filled,
    step_text,
    train_runs,
)
from foretrain.compare.plateau.forecast import Forecast, escape_level, forecast, plateau_level
from foretrain.compare.plateau.layers import (
    Bottleneck,
    LayerScale,
    ScalingLaw,
    factors_to_natural,
    find_bottleneck,
    has_normalisation,
    is_chain,
    read_layers,
    rescaled,
)
from foretrain.compare.task import Loss, Task, prepare
from foretrain.empirical.layer_scales import LayerScales, layer_scales
from foretrain.support.answers import Answer, Result, labelled, picked
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, spawn
from foretrain.support.threads import on_free_cores

if TYPE_CHECKING:
    import xarray

__all__ = ["Bottleneck", "Forecast", "LayerScale", "Plateau", "PlateauVerification", "ScalingLaw", "plateau"]


@on_free_cores()
def plateau(
    model: nn.Module,
    x: Any,
    y: Any,
    *,
    lr: float | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    loss: Loss | str | None = None,
    batch_size: int | None = None,
    threshold: float | None = None,
    share: float = 0.5,
    max_steps: float = 1e7,
) -> Plateau:
    """Predict how many steps of gradient descent a network stays on the plateau of a small initialization.

    The network's own gradient flow on all its data is integrated with adaptive steps until the loss falls below
    ``threshold``, by default the ``share`` of the loss at the saddle (that of zero weights, or of the best constant
    output where biases can learn it). ``optimizer`` gives rates by layer and momentum; ``lr`` is one rate for all.
    ``batch_size`` matters for :meth:`Plateau.verify` only, which trains. The model is not changed.

    ``loss`` is "squared_error" (half the SUM of squares), "mse", "cross_entropy" or any function of outputs and
    targets; by default cross-entropy for whole-number labels, else torch's mean squared error.

    >>> network = nn.Sequential(nn.Linear(4, 16, bias=False), nn.Tanh(), nn.Linear(16, 1, bias=False))
    >>> x = torch.randn(64, 4)
    >>> plateau(network, x, torch.tanh(x[:, :1]), lr=0.1).forecast.escape < 1000
    True
    """
    _check_model(model)
    positive("max_steps", max_steps)
    descent = descent_of(model, lr, optimizer)
    task = prepare(model, x, y, loss)
    if task.broadcast:
        raise InputError(task.broadcast)
    if batch_size is not None and whole_number("batch_size", batch_size) > len(task.x):
        raise InputError(
            f"`batch_size` is {batch_size}: give a whole number from 1 to {len(task.x)}, all samples."
        )
    layers = read_layers(model, task.x)
    found = find_bottleneck(layers)
    level = plateau_level(model, task)
    escape = Escape(task, descent, level, escape_level(level, threshold, share))
    given = forecast(model, escape, max_steps)
    factors: dict[str, float] = {}
    after: Forecast | None = None
    law: ScalingLaw | None = None
    if given.has_plateau and found.count and not has_normalisation(model):
        factors = factors_to_natural(found)
        after = forecast(rescaled(model, factors), escape, max_steps)
        halved = _halved_escape(model, escape, found, given, max_steps)
        law = ScalingLaw(
            found.count, found.epsilon, halved / given.escape, applies=is_chain(model, task.x, layers)
        )
    scales = _theory_scales(model, task, len(layers))
    return Plateau(model, task, descent, batch_size, layers, found, given, law, factors, after, scales)


def _theory_scales(model: nn.Module, task: Task, count: int) -> LayerScales | None:
    """X_l for networks the theory speaks of; the signal is the direction of inputs that says most about targets."""
    try:
        inputs = task.x.flatten(1).double()
        targets = task.y if task.y.is_floating_point() else nn.functional.one_hot(task.y)
        targets = targets.reshape(len(targets), -1).double()
        covariance = (inputs - inputs.mean(0)).T @ (targets - targets.mean(0))
        direction = torch.linalg.svd(covariance, full_matrices=False).U[:, 0]
        scales = layer_scales(model, direction.cpu().numpy())
    except (NotSupportedError, InputError):
        return None
    return scales if len(scales.layers) == count else None


def _halved_escape(
    model: nn.Module, escape: Escape, found: Bottleneck, given: Forecast, max_steps: float
) -> float:
    """The escape step of the flow from half the scale of the bottleneck; nan where it is not followed to its end."""
    if not math.isfinite(given.escape):
        return math.nan
    halves = rescaled(model, {layer.name: 0.5 for layer in found.layers})
    longest = max(max_steps, 4.0 * 2.0**found.count * given.escape)
    smaller = forecast(halves, escape, longest).escape
    return smaller if math.isfinite(smaller) else math.nan


def _check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module.")
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in model.parameters()):
        raise InputError("the model has lazy layers without weights: call it once on a few inputs before.")
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training and module.p > 0:
            raise NotSupportedError("the model drops units at random: call model.eval(), or remove dropout.")
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training:
            raise NotSupportedError(
                "batch normalisation lets samples depend on their batch, and undoes the scale of the layer before: "
                "call model.eval() to freeze its statistics."
            )


@dataclass(frozen=True, eq=False, repr=False)
class Plateau(Result):
    """The plateau of a network: its layers, the forecast, the scaling law, and the rescaling that removes it.

    ``factors`` (by parameter name) is empty and ``rescaled_forecast`` is None where no rescaling is advised.
    """

    model: nn.Module
    task: Task
    descent: Descent
    batch_size: int | None
    layers: tuple[LayerScale, ...]
    bottleneck: Bottleneck
    forecast: Forecast
    law: ScalingLaw | None
    factors: dict[str, float]
    rescaled_forecast: Forecast | None
    # X_l of Rawal & DeWeese; None unless linear layers of one width in a row.
    theory_scales: LayerScales | None

    @property
    def code(self) -> str:
        """Lines of Python that apply the advice to a network called ``model`` (empty: no advice)."""
        lines = [f'    model.get_parameter("{name}").mul_({by:.4g})' for name, by in self.factors.items()]
        return "\n".join(["with torch.no_grad():", *lines]) if lines else ""

    @property
    def speedup(self) -> float:
        """Predicted escape step over the one after rescaling (nan where there is no advice)."""
        after = self.rescaled_forecast
        return math.nan if after is None else self.forecast.escape / after.escape

    def rescaled_model(self) -> nn.Module:
        """A copy of the network with the advice applied."""
        return rescaled(self.model, self.factors)

    def verify(self, *, runs: int = 2, max_steps: int = 100_000, seed: Seed = 0) -> PlateauVerification:
        """Train the given and the rescaled network by real descent, and look when each escapes.

        Runs differ in the order of their batches; each ends at twice its prediction or at ``max_steps``.
        """
        models = {"given": self.model, "rescaled": self.rescaled_model()}
        escape = Escape(self.task, self.descent, self.forecast.level, self.forecast.threshold)
        how: dict[str, Any] = {"batch_size": self.batch_size, "runs": runs, "max_steps": max_steps}
        trained = {
            name: train_runs(models[name], escape, expected.escape, seed=own, **how)
            for (name, expected), own in zip(self.forecasts.items(), spawn(seed, len(self.forecasts)))
        }
        return PlateauVerification(self, trained)

    @property
    def forecasts(self) -> dict[str, Forecast]:
        """Of the given network and, where there is advice, of the rescaled one."""
        after = self.rescaled_forecast
        return {"given": self.forecast} | ({} if after is None else {"rescaled": after})

    def to_dataset(self) -> xarray.Dataset:
        """Layers, the flow of both networks and the predictions."""
        flows, scales = self.forecasts, self.theory_scales
        small = {layer.name for layer in self.bottleneck.layers}
        readings = () if scales is None else ("norm", "spectral", "signal")
        return labelled(
            {
                "norm": ("layer", [layer.norm for layer in self.layers]),
                "natural_norm": ("layer", [layer.natural for layer in self.layers]),
                "relative_scale": ("layer", [layer.relative for layer in self.layers]),
                "at_bottleneck": ("layer", [layer.name in small for layer in self.layers]),
                "factor": ("layer", [self.factors.get(layer.name, 1.0) for layer in self.layers]),
                "escape": ("network", [flow.escape for flow in flows.values()]),
                "plateau": ("network", [flow.length for flow in flows.values()]),
                "stability": ("network", [flow.stability for flow in flows.values()]),
                **{f"{name}_loss": (f"{name}_step", flow.losses) for name, flow in flows.items()},
                **{f"X_{name}": ("layer", getattr(scales, name)) for name in readings},
            },
            {
                **picked(self.forecast, "level threshold"),
                "loss": self.task.loss_name,
                "verdict": self.verdict,
                "epsilon": self.bottleneck.epsilon,
                "small_layers": self.bottleneck.count,
            },
            layer=[layer.name for layer in self.layers],
            network=list(flows),
        ).assign_coords({f"{name}_step": flow.steps for name, flow in flows.items()})

    @property
    def verdict(self) -> str:
        """One sentence: is there a plateau, how long, and why."""
        seen = self.forecast
        if seen.steps[-1] == 0:
            return f"No plateau: the loss is below {seen.threshold:.4g} from the start."
        if not seen.has_plateau and math.isfinite(seen.escape):
            steady = f"below {seen.threshold:.4g} at step {step_text(seen.escape)}"
            return f"No plateau: the loss falls steadily, {steady}."
        if not seen.has_plateau:
            return (
                f"No plateau: the loss falls from {seen.losses[0]:.4g} to {seen.losses[-1]:.4g} within "
                f"{seen.followed:,.0f} steps ({seen.status}), without reaching {seen.threshold:.4g}."
            )
        place = f"the loss waits near {seen.level:.4g}"
        if math.isfinite(seen.escape):
            how = (
                f"for about {step_text(seen.length)} steps and falls below {seen.threshold:.4g} "
                f"at step {step_text(seen.escape)}"
            )
        elif math.isfinite(seen.ends):
            how = (
                f"for about {seen.length:,.0f} steps, then falls, but only to {np.nanmin(seen.losses):.4g} within "
                f"{seen.followed:,.0f} steps ({seen.status})"
            )
        else:
            how = f"and has not left it after {seen.followed:,.0f} steps ({seen.status})"
        small = self.bottleneck
        share = f"{small.count} of {len(self.layers)} weight matrices"
        cause = f"{share} sit at {small.epsilon:.3g} of their natural scale"
        if not small.count:
            cause = "no layer is small, so the cause is the task or the architecture, not the scale"
        elif has_normalisation(self.model):
            cause = "normalisation layers undo the scales, so no rescaling is advised"
        return f"A plateau: {place} {how}; {cause}."

    def answer(self) -> Answer:
        """Verdict, layers, law, advice, and the steps that are predicted."""
        return plateau_answer(self)


@dataclass(frozen=True, eq=False, repr=False)
class PlateauVerification(Result):
    """Real descent of the given and, where there is advice, of the rescaled network, beside what was predicted."""

    plateau: Plateau
    networks: dict[str, TrainedRuns]

    @property
    def speedup(self) -> float:
        """By how much the rescaling shortened the plateau (nan without advice)."""
        if "rescaled" not in self.networks:
            return math.nan
        return self.networks["given"].measured / self.networks["rescaled"].measured

    def to_dataset(self) -> xarray.Dataset:
        """Curves (network, run, look), filled up with nan, and escape steps."""
        runs = list(self.networks.values())
        looks = max(len(one.steps) for one in runs)
        return labelled(
            {
                "loss": ("network run look", np.stack([filled(one.losses, looks) for one in runs])),
                "escape": ("network run", np.stack([one.escapes for one in runs])),
                "predicted": ("network", [one.predicted for one in runs]),
            },
            {"batch_size": self.plateau.batch_size or 0},
            network=list(self.networks),
            step=(("network", "look"), np.stack([filled(one.steps, looks) for one in runs])),
        )

    def answer(self) -> Answer:
        """All about the plateau, with real descent beside the prediction."""
        return plateau_answer(self.plateau, self)
