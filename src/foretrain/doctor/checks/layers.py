"""What is lost, copied or left straight between inputs and outputs?

A linear model and nearest neighbours are fitted to every module's result and judged on samples held out: where both
fall to the level of a constant and stay there, what the inputs told is lost. Units whose weights are copies of each
other get the same gradient and stay copies. A network of several layers that answers in straight lines is one layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.baselines import Judge, fit_learners, readout_features
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.outcome import Outcome, outcome_of
from foretrain.doctor.setup import Case, Setup, in_parts
from foretrain.doctor.short_training import bench_of, divide
from foretrain.support.answers import labelled

_SAMPLES = 1024
_LITTLE = 0.2  # of what the best readout gains over a constant
_FEATURES = 512  # of a module's result; more are projected at random
_SURE = 3.0
_MUCH = 0.5  # of what the best readout gains
_NARROW = 4  # numbers for a sample
_COPIES = 0.5  # of the units of a layer
_ALIKE = 1e-5  # relative difference of the weights of copies
_STRAIGHT = 1e-4
_MOST_MODULES = 80
Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Probe:
    """What a linear readout makes of a module's result, on samples held out."""

    name: str
    kind: str
    score: float
    sure: bool  # whether it beats a constant for sure
    width: int  # numbers for a sample
    varies: float  # of the result between samples, relative to its size


def check(case: Case) -> Examination:
    """Probes from layer to layer, copies, and straight networks."""
    outcome = outcome_of(case)
    probes = probe_layers(case) if not outcome.at_ease else []
    findings = list[Finding]()
    if not outcome.at_ease:
        findings += [
            *_copies(case, outcome.course.model),
            *_lost(probes, outcome),
            *_straight(case),
        ]
    if not findings:
        said = "Between inputs and outputs nothing is lost, and no layer has copies for units."
        if outcome.at_ease:
            said = "What it learned went through all layers, so nothing it needs is lost between them."
        evidence = ", ".join(f"{one.name} {one.score:.2g}" for one in probes) or outcome.sentence
        findings = [Finding(Severity.GOOD, said, evidence, "measured: linear readouts of every module")]
    data: dict[str, Any] = {}
    if probes:
        data = {"readout_score": ("module", [one.score for one in probes])}
    return Examination(
        tuple(findings), labelled(data, module=[one.name for one in probes]) if probes else None
    )


def probe_layers(case: Case) -> list[Probe]:
    """Inputs first, then all modules without parts of their own in the order of their calls."""
    bench, division = bench_of(case.setup), divide(case.setup)
    if bench.judge is None or bench.known is None or not division.apart:
        return []
    training = division.training.taken(torch.arange(min(_SAMPLES, len(division.training.x))))
    known, judge = bench.known[: len(training.x)], bench.judge
    before, after = (_results(case, task) for task in (training, division.held_out))
    probes = []
    for name, (kind, rows) in list(before.items())[:_MOST_MODULES]:
        others = after.get(name)
        if others is not None and rows.shape[1:] == others[1].shape[1:]:
            probes.append(_probe(name, kind, rows, others[1], known, judge))
    return probes


def _results(case: Case, task: Task) -> dict[str, tuple[str, Tensor]]:
    """By module: its kind and its result, (samples, features), projected at random where it is wide."""
    parts = [_results_at_once(case.model, part.x) for part in in_parts(case.setup, task)]
    return {
        name: (kind, torch.cat([part[name][1] for part in parts]))
        for name, (kind, _) in parts[0].items()
        if all(name in part for part in parts)
    }


def _results_at_once(model: nn.Module, x: Any) -> dict[str, tuple[str, Tensor]]:
    kept: dict[str, tuple[str, Tensor]] = {}
    if isinstance(x, Tensor) and x.is_floating_point():
        kept["the inputs"] = ("", _flat(x))

    def keep(name: str) -> Any:
        def hook(module: nn.Module, given: Any, result: Any) -> None:
            values = result[0] if isinstance(result, tuple) and result else result
            if (
                isinstance(values, Tensor)
                and values.is_floating_point()
                and values.ndim
                and len(values) == len(x)
            ):
                kept.setdefault(name, (type(module).__name__, _flat(values.detach())))

        return hook

    leaves = [
        (n, m)
        for n, m in model.named_modules()
        if n and (not list(m.children()) or isinstance(m, nn.MultiheadAttention))
    ]
    handles = [module.register_forward_hook(keep(name)) for name, module in leaves]
    try:
        features = readout_features(model, lambda: model(x))
    finally:
        for handle in handles:
            handle.remove()
    # A random readout of few numbers tells little in any network: the last layer and what follows are left out.
    weighted = [
        name for name, module in leaves if name in kept and any(p.ndim >= 2 for p in module.parameters())
    ]
    cut = list(kept).index(weighted[-1]) if weighted else len(kept)
    kept = dict(list(kept.items())[:cut])
    if features is not None and len(features) == len(x):
        kept["what the last layer is given"] = ("", _flat(features))
    return kept


def _flat(values: Tensor) -> Tensor:
    rows = values.reshape(len(values), -1)
    if rows.shape[1] <= _FEATURES:
        return rows.double().cpu()
    # Every number is added to one of the sums, with a random sign: a matrix of all signs would be too large.
    source = torch.Generator().manual_seed(0)
    places = torch.randint(_FEATURES, (rows.shape[1],), generator=source)
    signs = 2.0 * torch.randint(2, (rows.shape[1],), generator=source) - 1
    return torch.zeros(len(rows), _FEATURES).index_add_(1, places, rows.float().cpu() * signs).double()


def _probe(name: str, kind: str, rows: Tensor, others: Tensor, known: Tensor, judge: Judge) -> Probe:
    varies = float(
        (rows - rows.mean(0)).square().mean().sqrt() / rows.square().mean().sqrt().clamp_min(1e-300)
    )
    if not torch.isfinite(rows).all() or not torch.isfinite(others).all() or not varies > 1e-7:
        return Probe(name, kind, float("nan"), False, rows.shape[1], varies if varies == varies else 0.0)
    readout = max(fit_learners(rows, known, others, judge), key=lambda one: one.score)
    constant = judge.scores(judge.usual.expand_as(judge.wanted))
    gains = readout.scores - constant
    sure = bool(gains.mean() > _SURE * gains.std() / max(1, len(gains) - 1) ** 0.5)
    return Probe(name, kind, readout.score, sure, rows.shape[1], varies)


def _lost(probes: list[Probe], outcome: Outcome) -> list[Finding]:
    """The first module after which no readout tells much any more, though one before it did."""
    best = max((one for one in probes if one.sure), key=lambda one: one.score, default=None)
    if best is None:
        return []
    constant = outcome.bench.baselines[0].score
    enough = constant + _LITTLE * (best.score - constant)
    telling = [place for place, one in enumerate(probes) if one.sure and one.score > enough]
    if telling[-1] == len(probes) - 1:
        return []
    module, last = probes[telling[-1] + 1], probes[telling[-1]]
    reason = f"{module.width} number{'s' if module.width > 1 else ''} for a sample"
    if module.varies < 1e-6:
        reason = "its result is the same for all samples"
    kind = f" ({module.kind})" if module.kind else ""
    narrow = module.width <= _NARROW < last.width and module.varies > 1e-6
    if not narrow and outcome.gain[0] > _MUCH * (best.score - constant):
        return []  # what the trained network answers came through there
    title = f"What the inputs tell about the targets is lost in {module.name!r}{kind}: {reason}."
    if narrow:
        title = f"{module.name!r}{kind} is a bottleneck: what the inputs tell is lost in {reason}."
    return [
        Finding(
            Severity.CRITICAL,
            title,
            f"A linear readout or nearest neighbours get {best.score:.3g} from {best.name}, "
            f"{last.score:.3g} from {last.name}, "
            f"and from {module.name} on about what a constant has, {constant:.3g}.",
            "measured: simple learners of every module's result, on samples held out",
            "Let more through there: more units, less pooling or another place to read from, and weights "
            "of ordinary size.",
            numbers={"before": last.score, "width": float(module.width)},
            where=(module.name,),
            vague=0 if narrow else 2,
        )
    ]


def _copies(case: Case, trained: nn.Module) -> list[Finding]:
    """Units with the same weights, before the training and after it."""
    copied: dict[str, tuple[int, int]] = {}
    after = dict(trained.named_parameters())
    for name, weight in case.setup.model.named_parameters():
        if weight.ndim < 2 or len(weight) < 3 or weight.numel() / len(weight) < 2:
            continue
        differ = max(_distinct(weight), _distinct(after[name]) if name in after else 0)
        if differ <= (1 - _COPIES) * len(weight):
            copied[name] = (len(weight), differ)
    owners = {name.rpartition(".")[0] for name in copied}
    if not copied or not case.setup.fresh:
        return []
    first, (units, distinct) = next(iter(copied.items()))
    zero = bool((case.setup.model.get_parameter(first) == 0).all())
    what = "are all zero" if zero else "are copies of each other"
    return [
        Finding(
            Severity.CRITICAL,
            f"The units of {first!r} {what}, and stay so: of {units} units {distinct} differ.",
            f"{len(copied)} weights have units with the same numbers, which get the same gradient at every step: "
            f"{', '.join(list(copied)[:6])}.",
            "measured: rows of the weights before and after a short training",
            "Draw the weights of these layers at random: units that start alike stay alike (symmetric "
            "initialisation).",
            "\n".join(f"model.get_submodule({owner!r}).reset_parameters()" for owner in sorted(owners)),
            Treatment("random weights", lambda setup: _drawn(setup, owners)),
            {"copied": float(len(copied))},
            tuple(copied),
        )
    ]


def _distinct(weight: Tensor) -> int:
    rows = weight.detach().reshape(len(weight), -1).double()
    size = float(rows.abs().max())
    if not size > 0:
        return 1
    return len(torch.unique((rows / (size * _ALIKE)).round(), dim=0))


def _drawn(setup: Setup, owners: set[str]) -> Setup:
    def draw(model: nn.Module) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for owner in sorted(owners):
                module = model.get_submodule(owner)
                reset = getattr(module, "reset_parameters", None) or getattr(
                    module, "_reset_parameters", None
                )
                if callable(reset):
                    reset()
                else:
                    for parameter in module.parameters(recurse=False):
                        if parameter.ndim >= 2:
                            nn.init.kaiming_uniform_(parameter, a=5**0.5)

    return setup.with_weights(draw)


def _straight(case: Case) -> list[Finding]:
    """Outputs of a mixture of two inputs are the same mixture of their outputs."""
    x = case.task.x
    layers = [
        (n, m) for n, m in case.model.named_modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
    ]
    if not isinstance(x, Tensor) or not x.is_floating_point() or len(layers) < 2 or len(x) < 4:
        return []
    half = min(32, len(x) // 2)
    first, second = x[:half], x[half : 2 * half]
    with torch.no_grad():
        a, b = case.model(first), case.model(second)
        bent = case.model(0.3 * first + 0.7 * second) - 0.3 * a - 0.7 * b
    apart = float((a - b).abs().mean())
    if float(bent.abs().mean()) > _STRAIGHT * apart or not apart > 1e-6 * float(a.abs().mean()):
        return []
    names = [name for name, _ in layers[:-1]]

    def bend(model: nn.Module) -> None:
        for name in names:
            model.get_submodule(name).register_forward_hook(_relu_after)

    return [
        Finding(
            Severity.WARNING,
            f"The network is linear: its {len(layers)} layers have no nonlinearity between them, and act as one.",
            "Outputs of a mixture of two inputs are the same mixture of their outputs, to rounding.",
            "measured",
            "Put an activation (ReLU, GELU) after every layer but the last.",
            f"# torch.relu after each of {', '.join(names)}",
            Treatment("relu after every layer but the last", lambda setup: setup.with_weights(bend)),
            {"layers": float(len(layers))},
            tuple(names),
        )
    ]


def _relu_after(module: nn.Module, given: Any, result: Tensor) -> Tensor:
    return torch.relu(result)
