"""Does the loss ask for what is wanted, and can the outputs give it?

Measured on outputs and targets alone: perfect answers must have a smaller loss than a constant; outputs must not have
gone through a nonlinearity that the loss applies as well, nor through one whose range leaves out targets; every
output must be compared with its own target; the loss at the start should be about that of a constant answer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.baselines import Measure, measure_for
from foretrain.doctor.calls import Rule, intercept, last_operation, pass_on, watch
from foretrain.doctor.finding import SCORE_GAIN, Examination, Finding, Severity, Treatment
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.proof import try_cure
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.short_training import bench_of, constant_loss, counted_positions

_SAMPLES = 256
_MOST_OUTPUTS = 4_000_000
_SURE_ANSWERS = (3.0, 10.0)  # logits of a right answer: the better one counts, where labels are smoothed
_MUCH_WORSE = 3.0  # times the loss of a constant, at the start
_HARDLY = 0.2  # of the constant's loss, at least, should a right answer save
_OUTSIDE = 0.05  # of the targets: more of them out of reach hold learning back
_RANGES = {
    "relu": (0.0, math.inf),
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "hardtanh": (-1.0, 1.0),
    "softplus": (0.0, math.inf),
    "exp": (0.0, math.inf),
    "logsoftmax": (-math.inf, 0.0),
    "logsigmoid": (-math.inf, 0.0),
}
_FUNCTIONS = {"logsoftmax": "log_softmax", "logsigmoid": "logsigmoid", "hardsigmoid": "hardsigmoid"}


def check(case: Case) -> Examination:
    """Everything that outputs, targets and loss show by themselves."""
    each = case.model(case.task.x[:1]).numel()
    task = case.chosen(max(2, min(_SAMPLES, _MOST_OUTPUTS // each)))
    with torch.enable_grad():
        outputs = case.model(task.x)
    measure = measure_for(outputs.detach(), task.y, task.loss)
    if measure is not None and measure.kind == "numbers" and bench_of(case.setup).judge is None:
        measure = None  # the loss asks for something else than the targets, such as their logarithm
    findings = [*_broadcast(case), *_start(case, outputs.detach(), task.y)]
    if measure is not None:
        findings += [
            *_unpaired(task, outputs.detach(), measure, findings),
            *_uncounted(case, task, outputs.detach(), measure),
            *_wrong_way(case, outputs.detach(), task.y, measure),
            *_doubled(case, outputs, task.y, measure),
            *_out_of_range(case, outputs, task.y, measure),
            *_class_axis(case, outputs.detach(), measure),
        ]
    if not findings:
        numbers = {
            "initial_loss": float(task.loss(outputs.detach(), task.y)),
            "constant_loss": constant_loss(case.setup),
        }
        evidence = (
            f"The loss is {numbers['initial_loss']:.3g} at the start, {numbers['constant_loss']:.3g} for the best "
            "constant answer, and less for right answers; no target is out of the outputs' reach."
        )
        findings = [
            Finding(Severity.GOOD, "The loss asks for what is wanted.", evidence, "measured", numbers=numbers)
        ]
    return Examination(tuple(findings))


def _broadcast(case: Case) -> list[Finding]:
    sentence = getattr(case.task, "broadcast", "")
    if not sentence:
        return []
    y = case.task.y
    shape = (len(y), *case.model(case.task.x[:1]).shape[1:])
    return [
        Finding(
            Severity.CRITICAL,
            "The loss broadcasts: it compares every output with the targets of all samples.",
            sentence,
            "measured: the loss of two samples is neither the mean nor the sum of their losses",
            f"Give y the shape of the outputs, {shape}.",
            f"y = y.reshape({', '.join(['len(y)', *map(str, shape[1:])])})",
            Treatment("y in the shape of the outputs", lambda setup: _reshaped(setup, shape)),
        )
    ]


def _reshaped(setup: Setup, shape: tuple[int, ...]) -> Setup:
    return replace(setup.with_targets(setup.task.y.reshape(shape)), known=setup._known_of_data())


def _unpaired(task: Task, outputs: Tensor, measure: Measure, findings: list[Finding]) -> list[Finding]:
    """A loss that is the same for the targets of other samples does not compare each output with its own."""
    if len(task.y) < 4 or (findings and "broadcasts" in findings[0].title):
        return []
    random = torch.Generator().manual_seed(0)
    y, loss = task.y, task.loss
    size = float(y.double().std()) if measure.kind == "numbers" else 1.0
    answers = (torch.randn(outputs.shape, generator=random) * size).to(outputs)
    places = torch.randperm(len(y), generator=random).to(y.device)
    given, other, same = (
        float(loss(answers, some)) for some in (y, y[places], y[:1].expand_as(y).contiguous())
    )
    unmoved = abs(other - given) <= 1e-5 * abs(given)
    if not unmoved or not abs(same - given) > 1e-4 * abs(given):
        return []
    return [
        Finding(
            Severity.CRITICAL,
            "The loss does not compare each output with its own target: with the targets of other "
            "samples it is the same.",
            f"For random outputs it is {given:.5g} with the targets in their order, {other:.5g} in "
            "another order, and "
            f"{same:.5g} with one target for all: only averages over the batch count, not single samples.",
            "measured: the loss with targets in another order",
            "Take the mean over samples last, after comparing every output with its target.",
            "loss = lambda outputs, y: (outputs - y).square().mean()" if measure.kind == "numbers" else "",
            Treatment("mean of squares", lambda setup: setup.with_loss(nn.functional.mse_loss))
            if measure.kind == "numbers" and y.shape == outputs.shape
            else None,
        )
    ]


def _uncounted(case: Case, task: Task, outputs: Tensor, measure: Measure) -> list[Finding]:
    """A class whose samples the loss leaves out, by ignore_index or a weight of zero."""
    if measure.kind != "labels" or task.y.ndim > 1:
        return []
    counts = counted_positions(task, outputs, measure)[:, 0]
    left_out = [int(label) for label in torch.unique(task.y) if not bool(counts[task.y == label].any())]
    left_out = [label for label in left_out if label >= 0]
    if not left_out:
        return []
    loss, share = task.loss, float(torch.isin(task.y, torch.tensor(left_out).to(task.y)).double().mean())
    cure = None
    if isinstance(loss, nn.CrossEntropyLoss):
        cure = Treatment("cross-entropy of all classes", lambda setup: setup.with_loss(nn.CrossEntropyLoss()))
    listed = ", ".join(map(str, left_out))
    return [
        Finding(
            Severity.CRITICAL,
            f"The loss leaves out all samples of class {listed}: they are ignored and never count.",
            f"{share:.0%} of the samples have this label, and the loss does not change with their outputs "
            "(ignore_index, or a "
            "weight of zero).",
            "measured: the gradient of the loss by the outputs",
            "Let ignore_index be a number that is no label, such as -100, and give every class a weight.",
            "loss = torch.nn.CrossEntropyLoss()" if cure else "",
            cure,
            {"share": share},
        )
    ]


def right_answers(outputs: Tensor, y: Tensor, measure: Measure) -> list[Tensor]:
    """Outputs that answer right, in the codes that losses use: logits, log-probabilities, probabilities, numbers."""
    if measure.kind != "labels":
        same = y.reshape(outputs.shape).to(outputs)
        if measure.kind == "numbers":
            return [same]
        sign = torch.where(same == same.max(), 1.0, -1.0)
        return [*(size * sign for size in _SURE_ANSWERS), same.clamp(0.01, 0.99), same]
    hot = measure.hot(y, outputs)
    smooth = 0.98 * hot + 0.02 / outputs.shape[measure.axis]
    return [*(size * hot for size in _SURE_ANSWERS), smooth.log(), smooth]


def _wrong_way(case: Case, outputs: Tensor, y: Tensor, measure: Measure) -> list[Finding]:
    """A loss that is larger for right answers than for a constant, or hardly smaller, teaches something else."""
    answers = right_answers(outputs, y, measure)
    loss, constant = case.task.loss, constant_loss(case.setup)
    values = []
    for answer in answers:
        try:
            values.append(float(loss(answer, y)))
        except (RuntimeError, ValueError, IndexError):
            continue
    start = float(loss(outputs, y))
    if not values:
        return []
    right, usual = min(values), min(start, constant) if math.isfinite(constant) else start
    if math.isfinite(constant) and right < usual - _HARDLY * abs(usual):
        return []
    negated = (
        float(loss(answers[0], y)) > float(loss(-answers[0], y)) and float(loss(outputs, y)) < 0
    ) or right > start
    evidence = (
        f"Right answers have a loss of {right:.3g}; the outputs at the start have {start:.3g}, and the best constant "
        f"answer {constant:.3g}."
    )
    smoothing = float(getattr(loss, "label_smoothing", 0.0) or 0.0)
    if smoothing > 0.5:
        return [
            Finding(
                Severity.CRITICAL,
                f"Labels are smoothed by {smoothing:g}, so that a right answer is hardly better than a constant.",
                evidence,
                "measured",
                "Smooth labels by 0.1 at most.",
                "loss = torch.nn.CrossEntropyLoss(label_smoothing=0.1)",
                Treatment(
                    "label smoothing 0.1",
                    lambda setup: setup.with_loss(nn.CrossEntropyLoss(label_smoothing=0.1)),
                ),
            )
        ]
    if negated and not right < start:
        return [
            Finding(
                Severity.CRITICAL,
                "The loss is larger for right answers than for wrong ones: its sign is turned round.",
                evidence,
                "measured: the loss of outputs that are the targets",
                "Turn the sign of the loss, or mend what it compares.",
                "loss = lambda outputs, y, given=loss: -given(outputs, y)",
                Treatment(
                    "loss with the other sign", lambda setup: setup.with_loss(lambda o, t: -loss(o, t))
                ),
            )
        ]
    if outcome_of(case).learns:
        return []
    return [
        Finding(
            Severity.WARNING,
            "The loss hardly tells right answers from a constant.",
            evidence,
            "measured: the loss of outputs that are the targets",
            "Look at what the loss compares: its axes, its weights, its reduction, and a nonlinearity inside it.",
        )
    ]


def _doubled(case: Case, outputs: Tensor, y: Tensor, measure: Measure) -> list[Finding]:
    """Softmax before cross-entropy, sigmoid before a loss with logits: both flatten the loss and its gradients.

    What the loss is follows from what it does: cross-entropy does not change when one number is added to the outputs
    of all classes, the negative of one logarithm falls by that number, logits of yes or no may grow without bound.
    """
    values, last = outputs.detach(), last_operation(outputs)
    if measure.kind == "numbers" and y.is_floating_point() and float(y.max()) > 1:
        return []
    loss = case.task.loss
    inside = bool((values >= 0).all() and (values <= 1).all())
    added = float(loss(values + 1, y) - loss(values, y))
    flat = last in ("relu", "tanh", "hardtanh")
    if measure.kind == "labels" and abs(added) < 1e-3:
        sums = values.sum(measure.axis)
        softmaxed = inside and torch.allclose(sums, torch.ones_like(sums), atol=1e-3)
        if softmaxed or (inside and last in ("sigmoid", "softmax")):
            which = "softmax" if softmaxed else last
            return [_before(case, which, "cross-entropy, which applies softmax itself", _undo_softmax)]
        return (
            [_cut_off(case, last, "cross-entropy wants logits of either sign and any size")] if flat else []
        )
    if measure.kind == "labels" and abs(added + 1) < 1e-3:
        totals = torch.logsumexp(values, measure.axis)
        if torch.allclose(totals, torch.zeros_like(totals), atol=1e-2):
            return []
        return [
            Finding(
                Severity.CRITICAL,
                "The loss takes logarithms of probabilities, but the outputs are none (log_softmax is missing).",
                f"Their exponentials sum to {float(totals.exp().mean()):.3g} instead of 1, so that the "
                "loss falls for "
                "ever when outputs grow, whatever is learned.",
                "measured",
                "Use cross-entropy on these outputs, or put log_softmax before the loss.",
                "loss = torch.nn.CrossEntropyLoss()",
                Treatment("cross-entropy", lambda setup: setup.with_loss(nn.functional.cross_entropy)),
            )
        ]
    yes_or_no = bool(((y == 0) | (y == 1)).all()) and y.numel() == outputs.numel()
    if not yes_or_no:
        return []
    right = y.reshape(outputs.shape).to(outputs)
    takes_logits = float(loss(20 * (2 * right - 1), y)) < 0.1 * float(loss(right, y))
    if takes_logits and inside and last in ("sigmoid", "softmax"):
        return [_before(case, last, "a loss with logits, which applies sigmoid itself", _undo_sigmoid)]
    if takes_logits and flat:
        return [_cut_off(case, last, "the loss wants logits of either sign and any size")]
    return []


def _undo_softmax(module: nn.Module, given: Any, result: Tensor) -> Tensor:
    return result.clamp_min(1e-12).log()


def _undo_sigmoid(module: nn.Module, given: Any, result: Tensor) -> Tensor:
    return torch.logit(result, eps=1e-6)


def _before(case: Case, which: str, loss: str, undo: Any) -> Finding:
    """The treatment undoes the nonlinearity exactly, as if it had not been there.

    A warning also where the network learns all the same: nobody wants it so.
    """
    cure = Treatment(
        f"outputs before {which}", lambda setup: setup.with_weights(lambda m: m.register_forward_hook(undo))
    )
    proof = try_cure(case, cure)
    return Finding(
        Severity.CRITICAL if proof.heals else Severity.WARNING,
        f"The outputs go through {which} before {loss}.",
        "All outputs lie between 0 and 1, so that the loss cannot come near zero and its gradients are small.",
        "measured: range and last operation of the outputs",
        f"Return the numbers before {which}, and apply it only to read the answers.",
        f"# in the model's forward: return the values before {which}",
        cure,
        {SCORE_GAIN: proof.gain},
        proof=f"With the cure: {proof.sentence}" if proof.helps else "",
    )


def _cut_off(case: Case, which: str, why: str) -> Finding:
    return Finding(
        Severity.CRITICAL if not outcome_of(case).learns else Severity.NOTE,
        f"The outputs end with {which}, but {why}.",
        f"The last operation of the model is {which}.",
        "measured: last operation of the outputs",
        f"Return the numbers before the last {which}.",
        f"# in the model's forward: return the values before the last {which}",
        _bypass_last(case, which),
    )


def _bypass_last(case: Case, operation: str) -> Treatment | None:
    """The last call of this function is left out."""
    names = {_FUNCTIONS.get(operation, operation), f"{operation}_"}
    _, calls = watch(case.model, case.task.x[:2], names)
    if not calls:
        return None
    rule = Rule(frozenset(names), pass_on, len(calls) - 1)
    return Treatment(
        f"outputs before {operation}", lambda setup: setup.with_weights(lambda model: intercept(model, rule))
    )


def _out_of_range(case: Case, outputs: Tensor, y: Tensor, measure: Measure) -> list[Finding]:
    """Targets that the last nonlinearity cannot return."""
    last = last_operation(outputs)
    if last not in _RANGES or measure.kind != "numbers":
        return []
    low, high = _RANGES[last]
    slack = 0.02 * (high - low) if math.isfinite(high - low) else 0.02 * float(y.double().std())
    outside = float(((y < low - slack) | (y > high + slack)).double().mean())
    if outside < _OUTSIDE:
        return []
    return [
        Finding(
            Severity.CRITICAL if not outcome_of(case).learns else Severity.WARNING,
            f"{outside:.0%} of the targets are out of reach: the outputs end with {last}.",
            f"Outputs lie between {low:g} and {high:g}, targets between {float(y.min()):.3g} and "
            f"{float(y.max()):.3g}.",
            "measured: last operation of the outputs",
            f"Return the numbers before the last {last}, or bring the targets into its range.",
            f"# in the model's forward: return the values before the last {last}",
            _bypass_last(case, last),
            {"outside": outside},
        )
    ]


def _class_axis(case: Case, outputs: Tensor, measure: Measure) -> list[Finding]:
    """Cross-entropy takes classes on axis 1; where positions are as many as classes, torch cannot notice a mix-up."""
    swapped = measure == Measure("labels") and outputs.ndim == 3 and outputs.shape[1] == outputs.shape[2]
    if not swapped or outcome_of(case).learns:
        return []
    return [
        Finding(
            Severity.WARNING,
            "Classes may be on the wrong axis: outputs have as many positions as classes.",
            f"Cross-entropy reads the classes from axis 1 of outputs of shape {tuple(outputs.shape)}.",
            "measured",
            "Put the classes on axis 1.",
            "outputs = outputs.transpose(1, 2)",
            Treatment(
                "classes on axis 1",
                lambda setup: setup.with_weights(lambda m: m.register_forward_hook(_swap_axes)),
            ),
        )
    ]


def _swap_axes(module: nn.Module, given: Any, result: Tensor) -> Tensor:
    return result.transpose(1, 2)


def _start(case: Case, outputs: Tensor, y: Any) -> list[Finding]:
    """A loss far above that of a constant answer: outputs are too large, and steps are spent on making them small."""
    task, constant = case.chosen(_SAMPLES), constant_loss(case.setup)
    start = float(task.loss(outputs, y))
    if not (math.isfinite(constant) and constant > 0 and start > _MUCH_WORSE * constant):
        return []
    learns = outcome_of(case).at_ease
    size = float(outputs.double().square().mean().sqrt())
    return [
        Finding(
            Severity.NOTE if learns else Severity.WARNING,
            f"The loss starts at {start:.3g}, {start / constant:.3g} times that of a constant answer.",
            f"Outputs have size {size:.3g}; a network that knows nothing should answer a constant, with "
            f"loss {constant:.3g}.",
            "measured",
            "Make the outputs smaller at the start: divide the weights of the last layer.",
            *_smaller_readout(case),
            {"initial_loss": start, "constant_loss": constant},
            vague=1,
        )
    ]


def _smaller_readout(case: Case) -> tuple[str, Treatment | None]:
    layers = [
        (n, m) for n, m in case.model.named_modules() if isinstance(m, nn.Linear | nn.Conv1d | nn.Conv2d)
    ]
    if not layers or not case.setup.fresh:
        return "", None
    name, layer = layers[-1]
    factors = {f"{name}.weight" if name else "weight": 0.01}
    if layer.bias is not None:
        factors[f"{name}.bias" if name else "bias"] = 0.01
    lines = "\n".join(f"    model.get_parameter({key!r}).mul_({value})" for key, value in factors.items())
    return f"with torch.no_grad():\n{lines}", Treatment(
        "small outputs", lambda setup: setup.rescaled(factors)
    )
