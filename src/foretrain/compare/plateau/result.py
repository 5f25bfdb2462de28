"""What is known about a plateau, told in words and as labelled data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import nn

from foretrain.compare.plateau.layers import Bottleneck, LayerScale, has_normalisation
from foretrain.compare.plateau.prediction import Forecast, step_text
from foretrain.compare.plateau.rates import Descent
from foretrain.compare.plateau.rescaling import ScalingLaw, code_for, rescaled
from foretrain.compare.plateau.verification import PlateauVerification, train_runs
from foretrain.compare.task import Task
from foretrain.support.seeds import Seed, spawn

if TYPE_CHECKING:
    import xarray

    from foretrain.empirical.layer_scales import LayerScales

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Plateau:
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
    theory_scales: (
        LayerScales | None
    )  # X_l of Rawal & DeWeese; None unless linear layers of one width in a row

    @property
    def code(self) -> str:
        """Lines of Python that apply the advice to a network called ``model`` (empty: no advice)."""
        return code_for(self.factors) if self.factors else ""

    @property
    def speedup(self) -> float:
        """Predicted escape step over the one after rescaling (nan where there is no advice)."""
        return (
            math.nan
            if self.rescaled_forecast is None
            else self.forecast.escape / self.rescaled_forecast.escape
        )

    def rescaled_model(self) -> nn.Module:
        """A copy of the network with the advice applied."""
        return rescaled(self.model, self.factors)

    def verify(self, *, runs: int = 2, max_steps: int = 100_000, seed: Seed = 0) -> PlateauVerification:
        """Train the given and the rescaled network by real descent, and look when each escapes.

        Runs differ in the order of their batches; each ends at twice its prediction or at ``max_steps``.
        """
        networks = {"given": (self.model, self.forecast)}
        if self.rescaled_forecast is not None:
            networks["rescaled"] = (self.rescaled_model(), self.rescaled_forecast)
        trained = {
            name: train_runs(
                model,
                self.task,
                self.descent,
                self.forecast.threshold,
                expected.escape,
                self.batch_size,
                runs,
                max_steps,
                own,
            )
            for (name, (model, expected)), own in zip(networks.items(), spawn(seed, len(networks)))
        }
        return PlateauVerification(trained, self.batch_size)

    def to_dataset(self) -> xarray.Dataset:
        """Layers, the flow of both networks and the predictions."""
        import xarray

        flows = {"given": self.forecast, "rescaled": self.rescaled_forecast}
        there = {name: flow for name, flow in flows.items() if flow is not None}
        small = {layer.name for layer in self.bottleneck.layers}
        readings = self._theory_readings()
        curves = {f"{name}_loss": (f"{name}_step", flow.losses) for name, flow in there.items()}
        return xarray.Dataset(
            {
                "norm": ("layer", [layer.norm for layer in self.layers]),
                "natural_norm": ("layer", [layer.natural for layer in self.layers]),
                "relative_scale": ("layer", [layer.relative for layer in self.layers]),
                "at_bottleneck": ("layer", [layer.name in small for layer in self.layers]),
                "factor": ("layer", [self.factors.get(layer.name, 1.0) for layer in self.layers]),
                "escape": ("network", [flow.escape for flow in there.values()]),
                "plateau": ("network", [flow.length for flow in there.values()]),
                "stability": ("network", [flow.stability for flow in there.values()]),
                **curves,
                **readings,
            },
            coords={
                "layer": [layer.name for layer in self.layers],
                "network": list(there),
                **{f"{name}_step": flow.steps for name, flow in there.items()},
            },
            attrs={
                "level": self.forecast.level,
                "threshold": self.forecast.threshold,
                "loss": self.task.loss_name,
                "verdict": self.verdict,
                "epsilon": self.bottleneck.epsilon,
                "small_layers": self.bottleneck.count,
            },
        )

    def _theory_readings(self) -> dict[str, tuple[str, Array]]:
        """X_l in the readings of ``empirical.layer_scales``."""
        seen = self.theory_scales
        if seen is None:
            return {}
        return {f"X_{name}": ("layer", getattr(seen, name)) for name in ("norm", "spectral", "signal")}

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
            told = (
                f"for about {step_text(seen.length)} steps and falls below {seen.threshold:.4g} "
                f"at step {step_text(seen.escape)}"
            )
        elif math.isfinite(seen.ends):
            told = (
                f"for about {seen.length:,.0f} steps, then falls, but only to {np.nanmin(seen.losses):.4g} within "
                f"{seen.followed:,.0f} steps ({seen.status})"
            )
        else:
            told = f"and has not left it after {seen.followed:,.0f} steps ({seen.status})"
        return f"A plateau: {place} {told}; {self._cause()}."

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

    def __repr__(self) -> str:
        from foretrain.compare.plateau.presentation import told

        return told(self)
