"""Is the first axis the axis of samples, and does each answer come from its own sample?

The outputs of some samples must not depend on which others are in the batch (batch normalisation apart, which is at
rest here). The first module whose result does is named. Targets that fit the inputs of the next row better than their
own are shifted; a network that sees the token which it is to predict has a leak.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.bundle import change_tensors
from foretrain.doctor.baselines import fit_baselines
from foretrain.doctor.calls import watch
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.intake import showing_writes
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.short_training import ALIKE, alike_neighbours, bench_of, divide, future_share
from foretrain.support.answers import labelled

_SAMPLES = 16
_DIFFERENT = 1e-3  # of the outputs' variation: more than rounding, also in half precision
_SHIFTS = (1, -1, 2, -2)
_GOOD = 0.7  # a score from which on targets are where they belong
_CLEARLY = 0.2  # by how much a shift must raise it
_SURE = 4.0  # standard errors, because several shifts are tried
_SOURCE = "measured: outputs of the same samples in other company"


def check(case: Case) -> Examination:
    """Samples apart, in line with their targets, and without what they are to predict."""
    findings = _restless(case)
    share, module = (
        (0.0, "") if findings else mixing(case)
    )  # what moves by itself seems to depend on the batch
    findings += [*_mixed(case, share, module), *_other_texts(case), *_shifted(case), *_future(case)]
    findings += _unshuffled(case)
    if not findings:
        evidence = f"Outputs of the same samples in other batches differ by {share:.1g} of their variation."
        findings = [Finding(Severity.GOOD, "Every answer comes from its own sample.", evidence, _SOURCE)]
    return Examination(tuple(findings), labelled({"mixing": share}))


def mixing(case: Case) -> tuple[float, str]:
    """How much outputs depend on the rest of the batch, relative to their variation; and where that begins."""
    model, x = case.model, case.task.x[: case.at_once(_SAMPLES)]
    half = max(1, len(x) // 2)
    if len(x) < 4:
        return 0.0, ""
    whole, share, module = _by_module(model, x), 0.0, ""
    for kept in (
        slice(0, half),
        slice(half, len(x)),
    ):  # an axis taken for time passes things on in one direction only
        part = _by_module(model, x[kept])
        differs = _difference(whole[""][kept], part[""])
        if differs <= share:
            continue
        share = differs
        unlike = (
            n for n, v in whole.items() if n and n in part and _difference(v[kept], part[n]) > _DIFFERENT
        )
        module = next(unlike, "")
    return share, module


def _restless(case: Case) -> list[Finding]:
    """The same inputs must have the same outputs at rest, and must themselves stay as they are."""
    x = change_tensors(case.task.x[: case.at_once(_SAMPLES)], Tensor.clone)
    before = x.clone() if isinstance(x, Tensor) else None
    with torch.random.fork_rng(devices=[]), torch.no_grad(), showing_writes(case.model):
        first, second = case.model(x), case.model(x)
    if before is not None and not torch.equal(before.nan_to_num(), x.nan_to_num()):
        return [
            Finding(
                Severity.WARNING,
                "The model changes its inputs in place: the next pass sees other data.",
                "After a forward pass x has other numbers than before.",
                "measured",
                "Replace operations that end with an underscore, and +=, *= on the inputs, by ones that "
                "make a new tensor.",
            )
        ]
    share = _difference(first, second)
    if share < _DIFFERENT:
        return []
    names = {"dropout", "randn", "randn_like", "rand", "rand_like", "bernoulli", "normal"}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        calls = watch(case.model, x, names)[1]
    lines = [call.line for call in calls if call.line]
    where = f" ({lines[0]})" if lines else ""
    why = (
        f"something is drawn at random at rest too{where}" if calls else "it keeps a state from call to call"
    )
    return [
        Finding(
            Severity.NOTE if outcome_of(case).at_ease else Severity.WARNING,
            f"The model gives different answers for the same inputs in evaluation mode: {why}.",
            f"Two passes differ by {share:.2g} of the variation between samples.",
            "measured: two passes in evaluation mode",
            "Give functional dropout training=self.training, and start every batch from a fresh state.",
            numbers={"restless": share},
        )
    ]


def _unshuffled(case: Case) -> list[Finding]:
    """Samples that come in the same order in every epoch, neighbours with neighbouring targets."""
    y, setup = case.task.y, case.setup
    if not setup.in_order or setup.batch_size is None or y is None or len(y) < 4 * setup.batch_size:
        return []
    alike = alike_neighbours(y)
    if alike < ALIKE:
        return []
    return [
        Finding(
            Severity.CRITICAL,
            "Samples are not shuffled, and neighbours have like targets: every step unlearns what others taught.",
            f"The targets of neighbours are alike by {alike:.2g} (0 by chance, 1 if they come sorted), and the "
            "batches come in this order in every epoch.",
            "measured",
            "Let the loader shuffle.",
            "loader = torch.utils.data.DataLoader(\n"
            f"    loader.dataset, batch_size={setup.batch_size}, shuffle=True\n)",
            Treatment("shuffled samples", Setup.shuffled),
            {"alike": alike},
        )
    ]


def _by_module(model: nn.Module, x: Any) -> dict[str, Tensor]:
    """Results of all modules that have one entry for each sample, in the order of their calls; last "
    "those of all ("")."""
    kept: dict[str, Tensor] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, given: Any, result: Any) -> None:
            values = result[0] if isinstance(result, tuple) and result else result
            if name and isinstance(values, Tensor) and values.ndim and len(values) == len(x):
                kept.setdefault(name, values.detach())

        return hook

    handles = [module.register_forward_hook(keep(name)) for name, module in model.named_modules()]
    try:
        with torch.no_grad():
            result = model(x)
    finally:
        for handle in handles:
            handle.remove()
    return {**kept, "": result}


def _difference(whole: Tensor, part: Tensor) -> float:
    if whole.shape != part.shape:
        return 1.0
    if not whole.is_floating_point():
        return 0.0
    varies = (
        float((whole - whole.mean(0)).double().abs().mean())
        + 1e-6 * float(whole.double().abs().mean())
        + 1e-12
    )
    return float((whole - part).double().abs().mean()) / varies


def _mixed(case: Case, share: float, module: str) -> list[Finding]:
    if share < _DIFFERENT:
        return []
    unfixed = [
        name
        for name, part in case.model.named_modules()
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and not part.track_running_stats
    ]
    if unfixed and outcome_of(case).learns:
        return []  # statistics of the batch, as the user asked for
    where = f", from {module!r} on" if module else ""
    recurrent = isinstance(dict(case.model.named_modules()).get(module), nn.RNNBase) if module else False
    advice = (
        "Look at every view, reshape, softmax, mean and normalisation: the first axis is that of samples."
    )
    if recurrent:
        advice = "Make the recurrent layer with batch_first=True: it takes the axis of samples for time."
    return [
        Finding(
            Severity.CRITICAL,
            f"Samples mix{where}: the answer for one depends on which others are in the batch.",
            f"With half of the batch taken away, outputs of the other half change by {share:.2g} of their "
            "variation; the first "
            f"axis is not that of samples everywhere{where}.",
            _SOURCE,
            advice,
            treatment=_samples_first(case, module) if recurrent else None,
            code="# make the recurrent layer with batch_first=True" if recurrent else "",
            numbers={"mixing": share},
            where=(module,) if module else (),
        )
    ]


def _samples_first(case: Case, name: str) -> Treatment:
    def turn(model: nn.Module) -> None:
        for part in model.modules():
            if isinstance(part, nn.RNNBase):
                part.batch_first = True

    return Treatment("batch_first=True", lambda setup: setup.with_weights(turn))


def _other_texts(case: Case) -> list[Finding]:
    """Next tokens that belong to other rows: y is x shifted by one position, row by row, but in another order."""
    x, y = case.task.x, case.task.y
    tokens = isinstance(x, Tensor) and not x.is_floating_point() and x.ndim == 2
    if not tokens or not isinstance(y, Tensor) or y.shape != x.shape or x.shape[1] < 4:
        return []
    rows = {tuple(row): place for place, row in enumerate(x[:, 1:].tolist())}
    places = [rows.get(tuple(row), -1) for row in y[:, :-1].tolist()]
    elsewhere = [place for number, place in enumerate(places) if place >= 0 and place != number]
    if len(elsewhere) < 0.5 * len(x):
        return []
    order = torch.tensor([place if place >= 0 else number for number, place in enumerate(places)])
    back = torch.arange(len(x))
    back[order] = torch.arange(len(x))
    return [
        Finding(
            Severity.CRITICAL,
            "Targets belong to other rows: y has the next tokens of other texts.",
            f"{len(elsewhere)} of {len(x)} rows of y continue another row of x than their own.",
            "measured: rows of y among those of x, one position later",
            "Shuffle x and y together, or not at all.",
            "y = torch.cat([x[:, 1:], y[:, -1:]], 1)  # the next tokens of the same text",
            Treatment(
                "y in the order of x", lambda setup: setup.with_targets(setup.task.y[back.to(y.device)])
            ),
        )
    ]


def _shifted(case: Case) -> list[Finding]:
    """Where baselines find little, targets may be a row off."""
    bench, task, apart = bench_of(case.setup), case.task, divide(case.setup).apart
    if bench.judge is None or not isinstance(task.x, Tensor) or not apart:
        return []
    measure, usual = bench.judge.measure, max(one.score for one in bench.baselines)
    if usual > _GOOD:
        return []
    for shift in _SHIFTS:  # what is found first is returned
        moved = divide(shifted(case.setup, shift))
        outputs = case.model(task.x[:2]).detach()
        known, wanted = (measure.targets(part.y, outputs) for part in (moved.training, moved.held_out))
        _, baselines = fit_baselines((moved.training.x, known), (moved.held_out.x, wanted), measure)
        best = max(baselines[1:], key=lambda one: one.score, default=None)
        if best is None:
            continue
        gains = best.scores - baselines[0].scores
        if gains.mean() > _SURE * gains.std() / len(gains) ** 0.5 and best.score > usual + _CLEARLY:
            return [
                Finding(
                    Severity.CRITICAL,
                    f"Targets belong to other rows: y fits x when it is shifted by {shift}.",
                    f"As given the best baseline has {usual:.3g}; shifted, {best.name} has "
                    f"{best.score:.3g} where a constant has "
                    f"{baselines[0].score:.3g}.",
                    "measured: baselines for shifted targets",
                    "Look at how x and y are lined up.",
                    f"y = torch.roll(y, {shift}, 0)",
                    Treatment(f"y shifted by {shift}", partial(shifted, shift=shift)),
                )
            ]
    return []


def shifted(setup: Setup, shift: int) -> Setup:
    """With the targets of other rows."""
    return setup.with_targets(torch.roll(setup.task.y, shift, 0))


def _future(case: Case) -> list[Finding]:
    """A network that is to predict the next token and sees it."""
    x, y = case.task.x, case.task.y
    tokens = isinstance(x, Tensor) and not x.is_floating_point() and x.ndim == 2
    if not tokens or not isinstance(y, Tensor) or y.shape != x.shape or x.shape[1] < 4:
        return []
    if not float((y[:, :-1] == x[:, 1:]).double().mean()) > 0.9:
        return []
    judge = bench_of(case.setup).judge
    share = 0.0 if judge is None else future_share(case.model, x, judge.measure)
    if share < _DIFFERENT:
        return []
    middle = x.shape[1] // 2
    return [
        Finding(
            Severity.CRITICAL,
            "The network sees the tokens that it is to predict: the mask of the future is missing or wrong (a leak).",
            f"Outputs before position {middle} change by {share:.2g} of their variation when only later "
            "tokens change, and y is x "
            "shifted by one: what is learned is to copy.",
            "measured: outputs for other tokens later on",
            "Mask the future in every attention: is_causal=True, or a lower triangular mask.",
            "# in attention: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)",
            numbers={"leak": share},
        )
    ]
