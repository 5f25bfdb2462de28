"""What is known about a plateau, and what real descent says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from torch import nn

from foretrain.compare.plateau.answer import plateau_answer
from foretrain.compare.plateau.layers import Bottleneck, LayerScale, has_normalisation
from foretrain.compare.plateau.prediction import Forecast, step_text
from foretrain.compare.plateau.rates import Descent
from foretrain.compare.plateau.rescaling import ScalingLaw, code_for, rescaled
from foretrain.compare.plateau.verification import TrainedRuns, filled, train_runs
from foretrain.compare.task import Task
from foretrain.support.answers import Answer, Result, labelled, picked
from foretrain.support.seeds import Seed, spawn

if TYPE_CHECKING:
    import xarray

    from foretrain.empirical.layer_scales import LayerScales


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
        return code_for(self.factors) if self.factors else ""

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
        trained = {
            name: train_runs(
                models[name],
                self.task,
                self.descent,
                self.forecast.threshold,
                expected.escape,
                self.batch_size,
                runs,
                max_steps,
                own,
            )
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
        if not seen.has_plateau:
            return f"No plateau: {self._progress(seen)}."
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
        return f"A plateau: {place} {how}; {self._cause()}."

    def _progress(self, seen: Forecast) -> str:
        if math.isfinite(seen.escape):
            return f"the loss falls steadily, below {seen.threshold:.4g} at step {step_text(seen.escape)}"
        return (
            f"the loss falls from {seen.losses[0]:.4g} to {seen.losses[-1]:.4g} within {seen.followed:,.0f} steps "
            f"({seen.status}), without reaching {seen.threshold:.4g}"
        )

    def _cause(self) -> str:
        if not self.bottleneck.count:
            return "no layer is small, so the cause is the task or the architecture, not the scale"
        if has_normalisation(self.model):
            return "normalisation layers undo the scales, so no rescaling is advised"
        count, total = self.bottleneck.count, len(self.layers)
        return (
            f"{count} of {total} weight matrices sit at {self.bottleneck.epsilon:.3g} of their natural scale"
        )

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
