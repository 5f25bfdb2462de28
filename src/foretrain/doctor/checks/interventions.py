"""Which part is it? One part at a time is made standard, and the network is trained again.

Only asked where the network was not seen to learn. Options of the optimizer that are far from usual, noise, the size
of batches, statistics of batch normalisation, the initialisation: each change is one training with the same samples
and steps, and a change after which the network learns names the cause. Adam at its usual rate comes last, because it
hides many causes; it is said only where nothing else helped.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.bundle import Bundle
from foretrain.doctor.calls import Rule, intercept, pass_on, watch
from foretrain.doctor.data import feature_axis, standardised, standardising_code
from foretrain.doctor.finding import SCORE_GAIN, Examination, Finding, Severity, Treatment
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.proof import try_cure
from foretrain.doctor.setup import Case, Group, Recipe, Setup
from foretrain.doctor.short_training import extent_of
from foretrain.doctor.stability import adaptive_edge
from foretrain.support.answers import labelled
from foretrain.support.seeds import integer

_SOURCE = "measured: trainings in which one thing is changed"
_NORMALISERS = nn.modules.batchnorm._BatchNorm
_LARGE_DECAY = 1e-3
_USUAL_EPSILON = 1e-8
_LARGE_EPSILON = 1e-5
_LARGE_MOMENTUM = 0.95
_SMALL_BATCH = 16
_USUAL_RATE = 1e-3
_HALF = (torch.float16, torch.bfloat16)
_UNEQUAL = 5.0  # times as many labels of the commonest class as of the rarest
_TINY_OUTPUTS = 0.02  # of the size that is wanted
_SMALL_OUTPUTS = 0.2  # the same, as a network should start with
_LARGE_NORM_EPSILON = 0.01
_ODD_DECAY, _ODD_EPSILON, _ODD_CLIP, _ODD_DROPOUT, _ODD_FACTOR = 0.5, 1e-3, 0.01, 0.8, 0.01
_WARM_UP = 100  # steps
_NOISY = 0.3  # of the variation of outputs between samples, from one pass to the next
_ODD_SIZE = 4.0  # times the usual size of weights


@dataclass(frozen=True)
class Change:
    """One part made standard: what is wrong if it helps, what to do, and how."""

    title: str
    advice: str
    code: str
    treatment: Treatment
    vague: int = 0  # as of findings
    last: bool = False  # tried only where nothing before it healed
    lasting: bool = False  # what it gains must last until the end of the trial
    odd: bool = False  # so far from usual that it is tried also where the network learns


def check(case: Case) -> Examination:
    """Try the changes that apply, one by one."""
    outcome = outcome_of(case)
    changes = changes_for(case) if not outcome.at_ease else [one for one in odd_settings(case) if one.odd]
    if not changes:
        fine = Finding(Severity.GOOD, "No part had to be changed for it to learn.", outcome.sentence, _SOURCE)
        return Examination((fine,))
    helped, scores = list[Finding](), dict[str, float]()
    for change in changes:
        if outcome.learns and change.vague:
            continue  # it learns, if slowly: only a fault is worth a word
        if any(one.severity is Severity.CRITICAL and (change.last or not one.vague) for one in helped):
            break
        proof = try_cure(case, change.treatment)
        scores[change.treatment.name] = proof.after
        if change.lasting and not proof.lasts:
            continue
        if proof.worth or (proof.helps and proof.heals and not outcome.learns):
            severity = Severity.CRITICAL if proof.heals and not outcome.learns else Severity.WARNING
            numbers = {SCORE_GAIN: proof.gain, "score": proof.after}
            helped.append(
                Finding(
                    severity,
                    change.title,
                    outcome.evidence,
                    _SOURCE,
                    change.advice,
                    change.code,
                    change.treatment,
                    numbers,
                    vague=change.vague,
                    proof=f"With {change.treatment.name} instead: {proof.sentence}",
                )
            )
    if not helped:
        tried = ", ".join(scores) or "nothing that applies"
        title = "What is unusual does no harm." if outcome.at_ease else "None of the standard parts helps."
        severity = Severity.GOOD if outcome.at_ease else Severity.NOTE
        helped = [Finding(severity, title, f"Tried one by one: {tried}.", _SOURCE)]
    return Examination(
        tuple(sorted(helped, key=lambda one: -one.numbers.get(SCORE_GAIN, 0.0))), labelled(scores_of(scores))
    )


def scores_of(scores: dict[str, float]) -> dict[str, Any]:
    """Scores after each change, as labelled data."""
    return {f"after {name}": value for name, value in scores.items()}


def odd_settings(case: Case) -> Iterator[Change]:
    """Of the optimizer, of noise and of normalisation: what may be far from usual."""
    yield from _optimizer_options(case)
    yield from _schedule(case)
    yield from _precision(case)
    yield from _noise(case)
    yield from _statistics(case)


def changes_for(case: Case) -> Iterator[Change]:
    """Those that apply, the likeliest first."""
    yield from odd_settings(case)
    yield from _detached(case)
    yield from _class_weights(case)
    yield from _warm_up(case)
    yield from _batches(case)
    yield from _weights(case)
    yield from _outputs(case)
    yield from _inputs(case)
    yield from _adam(case)


def _schedule(case: Case) -> Iterator[Change]:
    """A schedule that leaves too little of the rate, from the start or too soon."""
    groups = case.recipe.groups
    if not any(group.schedule for group in groups):
        return
    steps = len(outcome_of(case).course.losses)
    factors = [
        group.rate_at(step) / max(group.rate, 1e-300) for group in groups for step in (0, steps // 2, steps)
    ]
    flat = replace(case.recipe, groups=tuple(replace(group, schedule=()) for group in groups))
    yield Change(
        f"The schedule leaves {min(factors):.2g} of the learning rate, too little to learn at.",
        "Let the rate fall later and less, or warm up over fewer steps.",
        "# leave out scheduler.step(), or lengthen the schedule",
        Treatment("no schedule", lambda setup: setup.with_recipe(flat)),
        odd=min(factors) < _ODD_FACTOR,
    )


def _warm_up(case: Case) -> Iterator[Change]:
    """Adam's first steps are of full size whatever the gradients are, before it knows how large these will be."""
    recipe = case.recipe
    if not recipe.is_adaptive or any(group.schedule for group in recipe.groups):
        return
    # The trial must go on long after the ramp: a rate that is small throughout is another cure.
    count = min(_WARM_UP, extent_of(case.setup, case.setup.training_seconds).steps // 4)
    ramp = tuple((step + 1) / count for step in range(count))
    warm = tuple(replace(group, schedule=ramp) for group in recipe.groups)
    bound = adaptive_edge(case)
    told = (
        ""
        if bound is None or not bound.product > bound.limit
        else f" (rate x preconditioned curvature {bound.product:.2g} of {bound.limit:.2g})"
    )
    yield Change(
        f"{recipe.kind.__name__}'s first steps are too large{told}: with a warm-up over {count} steps it learns.",
        f"Let the rate grow from zero over the first {count} steps or more.",
        "scheduler = torch.optim.lr_scheduler.LambdaLR(\n"
        f"    optimizer, lambda step: min(1.0, (step + 1) / {count})\n)  # scheduler.step() after every step",
        Treatment("warm-up", lambda setup: setup.with_recipe(replace(recipe, groups=warm))),
        1,
        lasting=True,
    )


def _precision(case: Case) -> Iterator[Change]:
    """Weights in half precision, in which small steps are rounded away."""
    half = {str(p.dtype).removeprefix("torch.") for p in case.setup.model.parameters() if p.dtype in _HALF}
    if not half or isinstance(case.task.x, Bundle):
        return

    def widen(setup: Setup) -> Setup:
        wide = setup.with_weights(lambda model: model.float())
        x, y = (
            v.float() if isinstance(v, Tensor) and v.dtype in _HALF else v
            for v in (setup.task.x, setup.task.y)
        )
        return replace(wide, task=replace(wide.task, x=x, y=y), known={})

    yield Change(
        f"The weights are in {', '.join(sorted(half))}: steps that are small beside them are rounded away.",
        "Keep the weights in float32, and use torch.autocast for the passes.",
        "model = model.float()",
        Treatment("weights in float32", widen),
        odd=True,
    )


def _detached(case: Case) -> Iterator[Change]:
    """A way back that is cut while all parameters still get some gradient, as by a detach in every step of a loop."""
    names = {"detach", "data"}
    try:
        _, calls = watch(case.setup.with_weights(lambda m: None).model.train(), case.task.x[:4], names)
    except (RuntimeError, ValueError, TypeError):
        return
    lines = list(dict.fromkeys(call.line for call in calls if call.line))
    if lines:
        yield Change(
            f"Gradients are cut on their way back, {len(calls)} times in a pass ({lines[0]}).",
            "Remove the detach: what lies before it cannot learn from what comes after.",
            f"# remove in the model's forward: {lines[0]}",
            _intercepted("no detach", Rule(frozenset(names), pass_on)),
        )


def _class_weights(case: Case) -> Iterator[Change]:
    """Weights of classes in the loss, and classes that are rare without them."""
    loss, y = case.task.loss, case.task.y
    given = [key for key in ("weight", "pos_weight") if isinstance(getattr(loss, key, None), Tensor)]
    if given:
        bare = copy.deepcopy(loss)
        for key in given:
            setattr(bare, key, None)
        yield Change(
            f"The weights of classes in the loss ({', '.join(given)}) hold learning back.",
            "Leave them out, or make them the inverse of how often classes occur.",
            f"loss = torch.nn.{type(loss).__name__}()",
            Treatment("no weights of classes", lambda setup: setup.with_loss(bare)),
        )
        return
    usual = loss is nn.functional.cross_entropy or type(loss) is nn.CrossEntropyLoss
    if not usual or not isinstance(y, Tensor) or y.is_floating_point() or y.ndim > 1:
        return
    counts = torch.bincount(y[y >= 0]).float()
    present = counts[counts > 0]
    if len(present) > 1 and float(present.max() / present.min()) > _UNEQUAL:
        weight = torch.where(counts > 0, counts.sum() / (len(present) * counts.clamp_min(1)), 0.0)
        share = float(present.max() / present.sum())
        yield Change(
            f"Classes are unequal: {share:.0%} of the labels are one class, and the network neglects the others.",
            "Weigh the classes by the inverse of how often they occur, or sample them equally often.",
            "counts = torch.bincount(y).float()\n"
            "loss = torch.nn.CrossEntropyLoss(weight=counts.sum() / (len(counts) * counts))",
            Treatment(
                "weights of classes",
                lambda setup: setup.with_loss(nn.CrossEntropyLoss(weight=weight.to(y.device))),
            ),
        )


def _outputs(case: Case) -> Iterator[Change]:
    """Outputs so small that they would take very long to reach the targets."""
    with torch.no_grad():
        outputs = case.model(case.task.x[: case.at_once(64)])
    y, size = case.task.y, float((outputs - outputs.mean(0)).double().square().mean().sqrt())
    wanted = float(y.double().std(correction=0)) if isinstance(y, Tensor) and y.is_floating_point() else 1.0
    if not 0 < size < _TINY_OUTPUTS * wanted:
        return
    factor = float(f"{_SMALL_OUTPUTS * wanted / size:.3g}")

    def enlarge(model: nn.Module) -> None:
        model.register_forward_hook(lambda module, given, result: factor * result)

    yield Change(
        f"Outputs are {factor:,.3g} times too small at the start: a temperature or small last weights "
        "hold them down.",
        "Leave out what divides the outputs, or make the weights of the last layer larger.",
        f"# in the model's forward: return {factor:g} * outputs",
        Treatment("larger outputs", lambda setup: setup.with_weights(enlarge)),
        1,
    )


def _with_options(case: Case, **options: Any) -> Callable[[Setup], Setup]:
    def apply(setup: Setup) -> Setup:
        groups = tuple(replace(group, options={**group.options, **options}) for group in setup.recipe.groups)
        return setup.with_recipe(replace(setup.recipe, groups=groups))

    return apply


def _option_change(case: Case, title: str, advice: str, name: str, value: Any, odd: bool = False) -> Change:
    code = f'for group in optimizer.param_groups:\n    group["{name}"] = {value!r}'
    cure = Treatment(f"{name} {value}", _with_options(case, **{name: value}))
    return Change(title, advice, code, cure, odd=odd)


def _optimizer_options(case: Case) -> Iterator[Change]:
    recipe = case.recipe
    options = [group.options for group in recipe.groups]
    kind = recipe.kind.__name__
    if any(one.get("maximize") for one in options):
        title = f"{kind} climbs the loss instead of descending it: maximize is on."
        yield _option_change(case, title, "Turn maximize off.", "maximize", False)
    decay = max(float(one.get("weight_decay", 0.0) or 0.0) for one in options)
    if decay >= _LARGE_DECAY:
        title = f"The weight decay of {decay:g} outweighs the gradients."
        odd = decay >= (_ODD_DECAY if "W" in kind else 0.1 * _ODD_DECAY)  # decoupled ones are times the rate
        yield _option_change(
            case, title, "Lower the weight decay, to 1e-4 or none.", "weight_decay", 0.0, odd
        )
    epsilon = max(float(one.get("eps", 0.0) or 0.0) for one in options)
    if epsilon >= _LARGE_EPSILON:
        title = f"The epsilon of {kind}, {epsilon:g}, outweighs the gradients: steps are far too small."
        advice = f"Set eps to {_USUAL_EPSILON:g}."
        yield _option_change(case, title, advice, "eps", _USUAL_EPSILON, epsilon >= _ODD_EPSILON)
    momentum = max(float(one.get("momentum", 0.0) or 0.0) for one in options)
    if momentum > _LARGE_MOMENTUM:
        title = f"The momentum of {momentum:g} carries the weights past every minimum."
        yield _option_change(case, title, "Lower the momentum to 0.9.", "momentum", 0.9, True)
    betas = next((one["betas"] for one in options if "betas" in one), None)
    if betas is not None and (betas[0] > 0.95 or betas[1] < 0.9 or betas[0] > betas[1]):
        title = f"The betas of {kind}, {tuple(betas)}, average gradients over the wrong times."
        yield _option_change(case, title, "Set betas to (0.9, 0.999).", "betas", (0.9, 0.999), True)
    for name, function in (("clip_norm", "clip_grad_norm_"), ("clip_value", "clip_grad_value_")):
        bound = getattr(recipe, name)
        if bound is not None:
            what = "a norm of " if name == "clip_norm" else ""
            title = f"Gradients are clipped to {what}{bound:g}, which leaves steps far too small."
            free = Treatment("no clipping", partial(_unclipped, name=name))
            advice, code = "Clip at 1 or more, or not at all.", f"# leave out {function}"
            yield Change(title, advice, code, free, odd=bound <= _ODD_CLIP)
    top = recipe.rate
    slow = [group for group in recipe.groups if group.rate < 0.01 * top]
    if slow:
        count = sum(len(g.names) for g in slow)
        title = f"{count} parameters have a learning rate below a hundredth of the others'."
        yield _option_change(case, title, "Give all groups the same rate.", "lr", top)


def _unclipped(setup: Setup, name: str) -> Setup:
    kept: dict[str, Any] = {name: None}
    return setup.with_recipe(replace(setup.recipe, **kept))


def _noise(case: Case) -> Iterator[Change]:
    """Dropout and whatever else the forward pass draws at random, wherever it is called."""
    model = case.setup.with_weights(lambda m: None).model.train()
    dropout = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"}
    drawn = {
        "randn",
        "randn_like",
        "normal",
        "normal_",
        "rand",
        "rand_like",
        "uniform_",
        "bernoulli",
        "bernoulli_",
    }
    x = case.task.x[: max(2, min(32, case.at_once(32) // 2))]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            outputs, calls = watch(model, x, dropout | drawn)
            again = model(x)
    except (RuntimeError, ValueError, TypeError):
        return
    shares = [_dropout_share(call.arguments, call.options) for call in calls if call.name in dropout]
    lines = sorted({call.line for call in calls if call.line and not call.line.startswith("module.py")})
    shown = f" ({lines[0]})" if lines else ""
    differ = float((again - outputs).abs().mean() / (outputs - outputs.mean(0)).abs().mean().clamp_min(1e-12))
    if max(shares, default=0.0) > 0:
        advice = "Drop at most a tenth to a half, and not right before the outputs."
        code = "for module in model.modules():\n    if isinstance(module, torch.nn.Dropout):\n        module.p = 0.1"
        quiet = Rule(frozenset(dropout), pass_on)
        yield Change(
            f"Dropout of {max(shares):g} drowns the signal{shown}.",
            advice,
            code,
            _intercepted("no dropout", quiet),
        )
    if differ > _NOISY and any(call.name in drawn for call in calls):
        title = f"Random noise in the forward pass drowns the signal{shown}: two passes differ by {differ:.2g} of "
        title += "the variation between samples."
        advice = (
            "Make the noise (augmentation, random states) smaller than what it is added to, or leave it out."
        )
        yield Change(title, advice, "", _intercepted("no noise", Rule(frozenset(drawn), _middle)))


def _middle(func: Callable[..., Any], arguments: tuple[Any, ...], options: Any) -> Any:
    """A draw without noise: its mean."""
    result = func(*arguments, **options)
    mean = 0.5 if "rand" in func.__name__ and "randn" not in func.__name__ else None
    if func.__name__.startswith("randn"):
        mean = 0.0
    return result if mean is None else torch.full_like(result, mean)


def _intercepted(name: str, rule: Rule) -> Treatment:
    return Treatment(name, lambda setup: setup.with_weights(lambda model: intercept(model, rule)))


def _dropout_share(arguments: tuple[Any, ...], options: Any) -> float:
    training = options.get("training", arguments[2] if len(arguments) > 2 else True)
    share = options.get("p", arguments[1] if len(arguments) > 1 else 0.5)
    return float(share) if training and isinstance(share, int | float) else 0.0


def _batches(case: Case) -> Iterator[Change]:
    size = case.setup.batch_size
    if size is None or size > _SMALL_BATCH:
        return
    larger = min(8 * size if size > 4 else 32, len(case.task.x) // 2)
    title = f"Batches of {size} are too small: the noise of their gradients outweighs what they agree on."
    yield Change(
        title,
        f"Take {larger} samples in a step, or accumulate gradients over as many; or lower the learning rate.",
        f"batch_size = {larger}",
        Treatment(f"batches of {larger}", lambda setup: replace(setup, batch_size=larger)),
    )


def _statistics(case: Case) -> Iterator[Change]:
    """Batch normalisation whose running statistics are not those of the data."""
    parts = [part for part in case.setup.model.modules() if isinstance(part, _NORMALISERS)]

    def measured(model: nn.Module) -> None:
        for part in model.modules():
            if isinstance(part, _NORMALISERS):
                part.momentum, part.track_running_stats = 0.1, True

    odd = [part for part in parts if part.momentum is not None and not 0.005 <= part.momentum <= 0.7]
    if odd:
        title = (
            f"Batch normalisation keeps statistics with momentum {odd[0].momentum:g}: not those of the data."
        )
        code = "for module in model.modules():\n    if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):\n"
        code += "        module.momentum = 0.1"
        yield Change(
            title,
            "Set its momentum to 0.1.",
            code,
            Treatment("momentum 0.1", lambda s: s.with_weights(measured)),
            odd=True,
        )
    large = {
        name: float(part.eps)
        for name, part in case.setup.model.named_modules()
        if isinstance(getattr(part, "eps", None), float) and part.eps > _LARGE_NORM_EPSILON
    }
    if large:

        def usual(model: nn.Module) -> None:
            for name in large:
                vars(model.get_submodule(name))["eps"] = 1e-5

        first = next(iter(large))
        yield Change(
            f"The eps of normalisation {first!r} is {large[first]:g}, larger than what it normalises.",
            "Set eps to 1e-5.",
            "\n".join(f"model.get_submodule({name!r}).eps = 1e-5" for name in large),
            Treatment("eps 1e-5", lambda s: s.with_weights(usual)),
            odd=True,
        )


def _weights(case: Case) -> Iterator[Change]:
    """Weights whose size is far from what torch draws, and then all of them."""
    if not case.setup.fresh:
        return
    usual = redrawn(case.setup).model
    sizes = dict[str, float]()
    for name, weight in case.setup.model.named_parameters():
        other = usual.get_parameter(name)
        if weight.ndim > 1 and float(other.detach().abs().max()) > 0 and not torch.equal(weight, other):
            sizes[name] = float(
                weight.detach().square().mean().sqrt() / other.detach().square().mean().sqrt()
            )
    odd = {name: ratio for name, ratio in sizes.items() if not 1 / _ODD_SIZE < ratio < _ODD_SIZE}
    if odd and len(odd) < len(sizes):
        owners = sorted({name.rpartition(".")[0] for name in odd})
        first, ratio = max(odd.items(), key=lambda pair: abs(math.log(max(pair[1], 1e-300))))
        how = f"{ratio:,.3g} times too large" if ratio > 1 else f"{1 / max(ratio, 1e-9):,.3g} times too small"
        yield Change(
            f"The weights of {first.rpartition('.')[0]!r} are {how} by what torch draws, and make signals too "
            f"{'large' if ratio > 1 else 'small'}.",
            f"Draw them by torch's defaults: {', '.join(owners)}.",
            "\n".join(f"model.get_submodule({owner!r}).reset_parameters()" for owner in owners),
            Treatment("weights of usual size", lambda setup: redrawn(setup, owners)),
        )
    title = "The initial weights hold learning back: as torch draws them by default, the network learns."
    code = "for module in model.modules():\n    if hasattr(module, 'reset_parameters'):\n"
    code += "        module.reset_parameters()"
    cure = Treatment("default weights", redrawn)
    yield Change(title, "Draw the weights by torch's defaults.", code, cure, 1)


def redrawn(setup: Setup, names: Iterable[str] | None = None) -> Setup:
    """With the weights of these modules, or of all that can draw them, drawn anew."""

    def draw(model: nn.Module) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(integer(setup.seed))
            for module in model.modules() if names is None else map(model.get_submodule, names):
                reset = getattr(module, "reset_parameters", None) or getattr(
                    module, "_reset_parameters", None
                )
                if callable(reset):
                    reset()

    return setup.with_weights(draw)


def _inputs(case: Case) -> Iterator[Change]:
    x = case.task.x
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.ndim < 2:
        return
    axis = feature_axis(case.setup.model, x)
    yield Change(
        "The scale of the inputs holds learning back.",
        "Standardise the inputs, feature by feature, and use the same numbers for data that come later.",
        standardising_code(x, axis),
        Treatment("standardised inputs", lambda setup: setup.with_inputs(standardised(setup.task.x, axis))),
        1,
    )


def _adam(case: Case) -> Iterator[Change]:
    recipe = case.recipe
    usual = recipe.is_adaptive and 0.2 * _USUAL_RATE < recipe.rate < 5 * _USUAL_RATE
    if usual:
        return
    names = tuple(name for group in recipe.groups for name in group.names)
    adam = Recipe(torch.optim.Adam, (Group(names, {"lr": _USUAL_RATE}),))
    yield Change(
        f"{recipe} is what holds learning back: Adam at {_USUAL_RATE:g} learns.",
        f"Train by Adam at a rate of {_USUAL_RATE:g}, or look for a rate that suits {recipe.kind.__name__}.",
        f"optimizer = torch.optim.Adam(model.parameters(), lr={_USUAL_RATE:g})",
        Treatment("Adam", lambda setup: setup.with_recipe(adam)),
        vague=2,
        last=True,
    )
