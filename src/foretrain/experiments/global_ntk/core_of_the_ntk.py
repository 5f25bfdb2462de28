"""NTK_S and its Kronecker core while a GRU learns Memory-Pro (figure 3).

The source does not say which optimizer it used: Adam here, full batch, on the evenly spread angles of the
measurements, without noise. Single targets are learned by plain gradient descent, which is what NTK_S speaks of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.global_ntk import core_measurements as measure
from foretrain.experiments.global_ntk.core_rows import in_response, table, verdict
from foretrain.experiments.registry import Result, plans
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import integer, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.empirical.global_ntk import GlobalNTK
    from foretrain.experiments.parts import Parts
    from foretrain.training.tasks.memory_pro import MemoryPro
    from foretrain.training.tasks.recurrent import Recurrent


_SMALLEST = 1e-6  # of the largest singular value: what is drawn
_OPERATORS = {
    "direct sum": ("direct sum over weights", GREEN),
    "proxy": ("proxy V V* ⊗ I", BLUE),
    "identity": ("identity", FAINT),
}
_VIEWS = {"NTK": ("NTK$_S$", BLUE), "core": ("core V V*", ORANGE), "K": ("K", GREEN), "P": ("P", PURPLE)}
_TARGETS = {"aligned": BLUE, "response, angle": RED, "response, constant": ORANGE}


@dataclass(frozen=True)
class Plan:
    """The network, its task and its training."""

    units: int
    samples: int
    periods: tuple[int, int, int]
    rate: float  # of Adam
    checkpoints: tuple[int, ...]  # the last is the length of the training
    steps: int  # of gradient descent on single targets


_QUICK = (0, 25, 50, 100, 200, 300, 400, 450, 500, 600, 800)
_PAPER = (*range(0, 200, 20), 200, 250, 300, 400, 600, 800, 1000)
PLANS = plans(
    quick=Plan(64, 20, (30, 30, 30), 3e-3, _QUICK, 200), paper=Plan(256, 20, (30, 30, 30), 1e-3, _PAPER, 1000)
)


def core_of_the_ntk(plan: Plan, seed: int, parts: Parts) -> Result:
    """Cosine of NTK_S with its core over training, spectra and modes in time, and which targets can be learned."""
    drawing, probing = spawn(seed, 2)
    setting, steps = _Setting(plan, drawing, integer(probing)), list(plan.checkpoints)
    training = parts.get("training", setting.training)
    look = partial(setting.look, training)
    cosines = [parts.get(f"cosines at step {n}", partial(look, n, measure.likeness)) for n in steps]
    ends = [parts.get(f"views at step {n}", partial(look, n, measure.views)) for n in (steps[0], steps[-1])]
    data = [
        training[["loss"]],
        xarray.concat(cosines, dim="checkpoint").assign_coords(checkpoint=steps),
        xarray.concat(ends, dim="when").assign_coords(when=["start", "end"]),
        parts.get("single targets", setting.single_targets),
        _named(parts.get("pairs of units", setting.pairs), "pairs"),
        _named(parts.get("with biases", setting.with_biases), "biases"),
    ]
    joined = xarray.merge(data)
    joined.attrs |= {"units": plan.units, "samples": plan.samples, "periods": list(plan.periods)}
    return Result(verdict(joined), table(joined), joined, _draw)


def _named(views: xarray.Dataset, name: str) -> xarray.Dataset:
    """Views with the name of another reading in those of their variables."""
    return views.rename({each: f"{each}_{name}" for each in (*views.data_vars, "view", "shown_view")})


@dataclass(frozen=True)
class _Setting:
    """The task, its inputs, and the network at any checkpoint."""

    plan: Plan
    drawing: np.random.SeedSequence
    probing: int

    @property
    def task(self) -> MemoryPro:
        from foretrain.training.tasks.memory_pro import MemoryPro

        return MemoryPro(*self.plan.periods)

    @property
    def angles(self) -> torch.Tensor:
        return self.task.angles(self.plan.samples)

    @property
    def inputs(self) -> torch.Tensor:
        return self.task.inputs(self.angles)

    def kernel(self, model: Recurrent) -> GlobalNTK:
        from foretrain.empirical.global_ntk import global_ntk

        return global_ntk(model, self.inputs)

    def start(self, outputs: int = 3, learning: str = "weight") -> Recurrent:
        """The network before training: its recurrent layer is the same for any number of outputs."""
        return measure.network(self.plan.units, outputs, self.drawing, learning)

    def training(self) -> xarray.Dataset:
        """Losses of all steps, and all parameters at the checkpoints."""
        import torch

        model, x, y = self.start(), self.inputs, self.task.targets(self.angles)
        learning = [value for value in model.parameters() if value.requires_grad]
        optimizer = torch.optim.Adam(learning, lr=self.plan.rate)
        last, kept = self.plan.checkpoints[-1], []
        losses = np.empty((last + 1, 3))
        for step in track(range(last + 1), "Memory-Pro"):
            if step in self.plan.checkpoints:
                kept.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy())
            optimizer.zero_grad()
            by_output = (model(x) - y).square().mean((0, 1))
            losses[step] = by_output.detach().numpy()
            by_output.mean().backward()
            optimizer.step()
        parameters = (("checkpoint", "parameter"), np.stack(kept))
        coords = {"output": ["cos", "sin", "fixation"], "checkpoint": list(self.plan.checkpoints)}
        return xarray.Dataset({"loss": (("step", "output"), losses), "parameters": parameters}, coords)

    def trained(self, training: xarray.Dataset, step: int) -> Recurrent:
        import torch

        model = self.start()
        values = torch.from_numpy(training.parameters.sel(checkpoint=step).values.copy())
        torch.nn.utils.vector_to_parameters(values, model.parameters())
        return model

    def look(
        self, training: xarray.Dataset, step: int, view: Callable[..., xarray.Dataset]
    ) -> xarray.Dataset:
        return view(self.kernel(self.trained(training, step)), self.probing)

    def pairs(self) -> xarray.Dataset:
        return measure.pair_views(self.kernel(self.start()))

    def with_biases(self) -> xarray.Dataset:
        return measure.views(self.kernel(self.start(learning="")), self.probing)

    def single_targets(self) -> xarray.Dataset:
        """How NTK_S sees every target, how gradient descent learns it, and what the frozen kernel foretells."""
        kernel = self.kernel(self.start(outputs=1))
        chosen = measure.targets(self.task, self.angles, measure.core_view(kernel))
        frozen = measure.output_kernel(self.start(outputs=1), self.inputs)
        rows = []
        for target in track(list(chosen.values()), "single targets"):
            seen = kernel.alignment(target[..., None], modes=1, seed=self.probing)
            eta, foretold = measure.frozen_losses(frozen, target.numpy(), self.plan.steps)
            losses = measure.learned(self.start(outputs=1), self.inputs, target, eta, self.plan.steps)
            rows.append((target.numpy(), float(seen.rayleigh[0]), float(seen.cosine[0]), losses, foretold))
        picture, rayleigh, cosine, losses, foretold = (np.stack(part) for part in zip(*rows, strict=True))
        name, along = "target_name", ("target_name", "descent_step")
        values = {"target": ((name, "batch", "time"), picture), "rayleigh": (name, rayleigh)}
        values |= {"target_cosine": (name, cosine), "target_loss": (along, losses)}
        return xarray.Dataset(values | {"frozen_loss": (along, foretold)}, {name: list(chosen)})


def _draw(data: xarray.Dataset) -> Figure:
    """Cosines over training, spectra in time, modes as images, and targets with their losses."""
    title = f"The core of the global-state NTK: a GRU of {data.attrs['units']} units on Memory-Pro"
    figure = Figure(title, layout="AABB CDEF GHIJ KLMM", heights=(1.5, 1, 1, 1.3), size=(14, 13))
    title, y = "Cosine with NTK$_S$ on all states, over training", Axis("cosine with NTK$_S$", low=0)
    panel = figure.panel(title, "step of Adam", y, legend_columns=2)
    loss = data.loss.mean("output")
    panel.curve(loss.step, loss / loss[0], ":", "loss / first loss", INK, width=1)
    for operator, (label, color) in _OPERATORS.items():
        own = data.sel(operator=operator)
        panel.curve(own.checkpoint, own.cosine, "o-", label, color, error=own.cosine_error, size=4)
    _draw_spectra(figure, data)
    for view, words in (("NTK", "NTK$_S$"), ("core", "core")):
        for number in range(1, measure.MODES + 1):
            mode = data["mode"].sel(when="start", shown_view=view, number=number).values
            _draw_image(
                figure, f"{words}, mode {number}: {in_response(mode, data):.0%} in response", mode, data
            )
    for name in ("aligned", "response, angle"):
        _draw_image(figure, f"target: {name}", data.target.sel(target_name=name).values, data)
    steps = np.arange(data.sizes["descent_step"])
    x = Axis("step of gradient descent", "symlog", 0, len(steps), threshold=10)
    panel = figure.panel("Learning single targets from the same start", x, log("loss / first loss"))
    for name, color in _TARGETS.items():
        own = data.sel(target_name=name)
        label = f"{name}: Rayleigh quotient {float(own.rayleigh):.2g}"
        panel.curve(steps, own.target_loss, "-", label, color, width=2)
        panel.curve(steps, own.frozen_loss, ":", "", INK, width=1)
    panel.legend_entry(":", "frozen kernel")
    return figure


def _draw_spectra(figure: Figure, data: xarray.Dataset) -> None:
    """Relative to the largest singular value, with a point where the modes reach 95 %."""
    title = "Views in time, before (solid) and after training (dashed)"
    panel = figure.panel(title, log("mode"), log("singular value / largest", _SMALLEST))
    for view, (name, color) in _VIEWS.items():
        spectra = [data.singular_value.sel(when=when, view=view).values for when in ("start", "end")]
        before, after = map(measure.modes_needed, spectra)
        labels = (f"{name}: 95 % in {before} before, {after} after", "")
        for values, needed, style, label in zip(spectra, (before, after), ("-", "--"), labels):
            shown = values[values > _SMALLEST * values[0]] / values[0]
            panel.curve(np.arange(1, len(shown) + 1), shown, style, label, color)
            panel.curve(needed, shown[needed - 1], "o", "", color)


def _draw_image(figure: Figure, title: str, image: FloatArray, data: xarray.Dataset) -> None:
    trials = Axis("trial", reverse=True, ticks=range(0, len(image), max(1, len(image) // 4)))
    panel = figure.panel(title, "time: stimulus | memory | response", trials)
    panel.heat_map(image, diverging=True)
    for boundary in np.cumsum(data.attrs["periods"])[:-1]:
        panel.level(x=boundary - 0.5, color=INK, dash="--")
