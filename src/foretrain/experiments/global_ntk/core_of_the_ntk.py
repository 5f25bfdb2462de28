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
from foretrain.experiments.judgements import claim_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import integer, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.empirical.global_ntk import GlobalNTK
    from foretrain.experiments.parts import Parts
    from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent


_SMALLEST = 1e-6  # of the largest singular value: what is drawn
_OPERATORS = {
    "direct sum": ("direct sum over weights", GREEN),
    "proxy": ("proxy V V* ⊗ I", BLUE),
    "identity": ("identity", FAINT),
}
_VIEWS = {"NTK": ("NTK$_S$", BLUE), "core": ("core V V*", ORANGE), "K": ("K", GREEN), "P": ("P", PURPLE)}
_LEARNED = 0.05  # relative loss at which a target counts as learned
_ROUNDING = 1e-8  # of the largest singular value; networks are in single precision
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
    ]
    others: dict[str, tuple[str, Callable[[], xarray.Dataset]]] = {
        "pairs": ("pairs of units", lambda: measure.pair_views(setting.kernel(setting.start()))),
        "biases": (
            "with biases",
            lambda: measure.views(setting.kernel(setting.start(learning="")), setting.probing),
        ),
    }
    for name, (
        title,
        compute,
    ) in others.items():  # views of another reading have its name in those of variables
        seen = parts.get(title, compute)
        data.append(seen.rename({each: f"{each}_{name}" for each in (*seen.data_vars, "view", "shown_view")}))
    joined = xarray.merge(data)
    joined.attrs |= {"units": plan.units, "samples": plan.samples, "periods": list(plan.periods)}
    tables = (_cosine_rows, _spectrum_rows, _mode_rows, _target_rows, _reading_rows)
    rows = tuple(row for table in tables for row in table(joined))
    proxy = joined.cosine.sel(operator="proxy").values
    core, P = (measure.modes_needed(_spectrum(joined, "start", view)) for view in ("core", "P"))
    good, bad = (joined.target_loss.sel(target_name=name)[-1] for name in ("aligned", "response, angle"))
    verdict = (
        f"The direct sum over weights is NTK_S; the proxy V V* has cosine {proxy[0]:.2f} with it before training and "
        f"{proxy[-1]:.2f} after; V V* needs {core} modes for 95 %, P {P} of {joined.sizes['index']}; a target along "
        f"a mode of the core is learned to {float(good):.1g} of its loss, the angle in the response to "
        f"{float(bad):.2f}."
    )
    return Result(verdict, rows, joined, _draw)


def core_spectra(plan: Plan, seed: int) -> Result:
    """Spectra in time of NTK_S, its core and P before training, and the leading modes (figure 3C and D)."""
    drawing, probing = spawn(seed, 2)
    setting = _Setting(plan, drawing, integer(probing))
    views = measure.views(setting.kernel(setting.start()), setting.probing, with_local=False)
    data = views.expand_dims(when=["start"])
    data.attrs |= {"units": plan.units, "samples": plan.samples, "periods": list(plan.periods)}
    NTK, core, P = (measure.modes_needed(_spectrum(data, "start", view)) for view in ("NTK", "core", "P"))
    verdict = (
        f"Before training {NTK} modes in time make 95 % of NTK_S and {core} of V V*, but {P} of "
        f"{data.sizes['index']} of P."
    )
    return Result(verdict, (*_spectrum_rows(data), *_mode_rows(data)), data, _draw_spectra)


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

    def single_targets(self) -> xarray.Dataset:
        """How NTK_S sees every target, how gradient descent learns it, and what the frozen kernel foretells."""
        kernel = self.kernel(self.start(outputs=1))
        chosen = measure.targets(self.task, self.angles, measure.core_view(kernel))
        frozen = measure.output_kernel(self.start(outputs=1), self.inputs)
        rows = []
        for target in track(list(chosen.values()), "single targets"):
            seen = kernel.alignment(target[..., None], modes=1, seed=self.probing, components="target")
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
    _draw_views(figure, data)
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


def _draw_spectra(data: xarray.Dataset) -> Figure:
    """Spectra in time before training and leading modes."""
    title = f"Before training: a GRU of {data.attrs['units']} units on Memory-Pro"
    figure = Figure(title, layout="AAAA BCDE FGHI", heights=(1.5, 1, 1), size=(14, 10))
    _draw_views(figure, data)
    return figure


def _draw_views(figure: Figure, data: xarray.Dataset) -> None:
    """Spectra relative to the largest singular value, with a point where modes reach 95 %, and modes as images."""
    styles = dict(zip([str(when) for when in data.when.values], ("-", "--")))
    when_drawn = " and ".join(f"{when} ({style})" for when, style in styles.items())
    title = f"Views in time, {when_drawn} of training"
    panel = figure.panel(title, log("mode"), log("singular value / largest", _SMALLEST))
    for view in data.view.values:
        name, color = _VIEWS[str(view)]
        spectra = {when: _spectrum(data, when, str(view)) for when in styles}
        needed = {when: measure.modes_needed(values) for when, values in spectra.items()}
        label = f"{name}: 95 % in {', '.join(map(str, needed.values()))}"
        for when, values in spectra.items():
            shown = values[values > _SMALLEST * values[0]] / values[0]
            panel.curve(np.arange(1, len(shown) + 1), shown, styles[when], label, color)
            panel.curve(needed[when], shown[needed[when] - 1], "o", "", color)
            label = ""
    for view, words in (("NTK", "NTK$_S$"), ("core", "core")):
        for number in range(1, measure.MODES + 1):
            mode = data["mode"].sel(when="start", shown_view=view, number=number).values
            _draw_image(
                figure, f"{words}, mode {number}: {in_response(mode, data):.0%} in response", mode, data
            )


def _draw_image(figure: Figure, title: str, image: FloatArray, data: xarray.Dataset) -> None:
    trials = Axis("trial", reverse=True, ticks=range(0, len(image), max(1, len(image) // 4)))
    panel = figure.panel(title, "time: stimulus | memory | response", trials)
    panel.heat_map(image, diverging=True)
    for boundary in np.cumsum(data.attrs["periods"])[:-1]:
        panel.level(x=boundary - 0.5, color=INK, dash="--")


def _cosine_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3B."""
    proxy, error = (data[name].sel(operator="proxy").values for name in ("cosine", "cosine_error"))
    worst = np.abs(1 - data.cosine.sel(operator="direct sum")).max()
    baseline = (proxy / data.cosine.sel(operator="identity").values).min()
    lowest = int(proxy.argmin())
    before, least = (f"{proxy[place]:.3f} ± {error[place]:.3f}" for place in (0, lowest))
    title = f"3B: the lowest over training (step {int(data.checkpoint[lowest])})"
    note = (
        "The source shows a curve and no number. It falls when the angle is learned and the states keep it."
    )
    over = "3B: cosine with the proxy over that with the identity, at least"
    return [
        claim_row("3B: 1 - cosine of NTK_S with the direct sum, at most", 0.0, worst, worst < 1e-5),
        Row("3B: cosine with the proxy V V* (x) I, before training", "curve", before),
        Row(title, "curve", least, note=note),
        claim_row(over, 1.0, baseline, baseline > 1),
    ]


def _spectrum_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3C, and whether the curve of NTK_S, relative to its first value, lies above that of the core."""
    values = {view: _spectrum(data, "start", view) for view in ("core", "P")}
    (core, propagator), size = map(measure.modes_needed, values.values()), len(values["P"])
    note = (
        "Of the sum of the singular values of V V*, which is the variance of V; of their squares "
        f"{measure.modes_needed(values['core'], power=2)}."
    )
    full = (
        f"The identity would need {measure.modes_needed(np.ones(size))}. The view is triangular with a diagonal of "
        "ones, so that its rank is full in any case."
    )
    title, nearly = f"3C: modes for 95 % of P, of {size}", propagator > 0.9 * size
    rows = [
        Row("3C: modes for 95 % of V V* (about)", 3, core, None, abs(core - 3) <= 1, note),
        Row(title, "nearly full rank", propagator, None, nearly, full),
    ]
    for when in data.when.values:
        spectra = {view: _spectrum(data, when, view) for view in data.view.values if view != "P"}
        most, nearly_all = (
            ", ".join(f"{view} {measure.modes_needed(own, share)}" for view, own in spectra.items())
            for share in (0.95, 0.99)
        )
        ratio = _tail_ratio(spectra["NTK"], spectra["core"])
        title = f"3C: singular values of NTK_S over the core's, modes 11-40, {when} of training"
        note = f"Before mode 11 the curves may cross. Modes for 95 %: {most}; for 99 %: {nearly_all}."
        rows.append(claim_row(title, "NTK_S above", ratio, ratio > 1, f"A geometric mean. {note}"))
    return rows


def _spectrum(data: xarray.Dataset, when: str, view: str) -> FloatArray:
    return np.asarray(data.singular_value.sel(when=when, view=view).values)


def _tail_ratio(first: FloatArray, second: FloatArray) -> float:
    """The geometric mean of ratios of modes 11 to 40, both relative to their largest, without those at rounding."""
    a, b = (own[10:40] / own[0] for own in (first, second))
    seen = (a > _ROUNDING) & (b > _ROUNDING)
    return float(np.exp(np.mean(np.log(a[seen] / b[seen])))) if seen.any() else float("nan")


def _mode_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3D: how much of the three leading modes lies in the response period."""
    rows = []
    for when in data.when.values:
        for view, name in (("NTK", "NTK_S"), ("core", "the core")):
            modes = data["mode"].sel(when=when, shown_view=view).values[:3]
            share = max(in_response(mode, data) for mode in modes)
            # Before training there is nothing that could fill the response; afterwards it is shown, not claimed.
            agrees = share < 0.05 if when == "start" else None
            title = f"3D: modes 1-3 of {name} in the response, {when} of training, at most"
            note = "The trained states keep the angle, and with them the kernel." if when == "end" else ""
            rows.append(claim_row(title, 0.0, share, agrees, note))
    return rows


def in_response(mode: FloatArray, data: xarray.Dataset) -> float:
    """How much of a mode (batch, time) lies in the response period."""
    start = sum(data.attrs["periods"][:2])
    return float((mode[:, start:] ** 2).sum() / (mode**2).sum())


def _target_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3E: 1 is the Rayleigh quotient of a random direction."""
    names = ("aligned", "response, angle", "response, constant")
    good, bad, easy = (data.sel(target_name=name) for name in names)
    first, last, third = (float(own.target_loss[-1]) for own in (good, bad, easy))
    after = f"after {data.sizes['descent_step'] - 1} steps"
    apart = float(np.abs(good.target_loss - good.frozen_loss).max())
    note = (
        f"Rayleigh quotient {float(easy.rayleigh):.2g}: only the angle is gone in the response; what all "
        "trials share can be told from the end of the fixation and by the bias of the readout."
    )
    quotient = "3E: Rayleigh quotient of the aligned target"
    return [
        claim_row(quotient, "large", good.rayleigh, good.rayleigh > 10),
        claim_row("3E: of the angle in the response period", "near 0", bad.rayleigh, bad.rayleigh < 0.1),
        claim_row(f"3E: loss of the aligned target {after}", "learned", first, first < _LEARNED),
        claim_row(f"3E: loss of the response target {after}", "not learned", last, last > 1 - _LEARNED),
        Row("3E: the same for a response that is one for all angles", "not shown", third, note=note),
        Row("3E: largest distance of the aligned loss from that of the frozen kernel", "not shown", apart),
    ]


def _reading_rows(data: xarray.Dataset) -> list[Row]:
    """What would change with another reading: averages over all pairs of units, and biases."""
    trace, core = (measure.modes_needed(_spectrum(data, "start", view)) for view in ("NTK", "core"))
    pairs, P = (
        measure.modes_needed(data.singular_value_pairs.sel(view_pairs=v).values) for v in ("NTK", "P")
    )
    biases = measure.modes_needed(data.singular_value_biases.sel(view_biases="core").values)
    modes = data.mode_biases.sel(shown_view_biases="NTK").values
    share = [in_response(mode, data) for mode in modes]
    title = "all pairs of units in place of the partial trace: modes for 95 % of NTK_S"
    note = (
        f"Their columns of ones are a mode that lasts: {max(share):.0%} of mode {int(np.argmax(share)) + 1} "
        "of NTK_S then lies in the response period."
    )
    return [
        Row(title, trace, pairs, note=f"P needs {P}. The matrices differ, the answers here do not."),
        Row("with biases: modes for 95 % of V V*", core, biases, note=note),
    ]
