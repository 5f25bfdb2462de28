"""Does a gradient reach every parameter that should move, and does the optimizer hold it?

Seen over a short training, so that what is zero at the first step only (a branch behind a gate that starts at zero)
is not taken for cut. Where no way leads back from the loss, the calls that end it are named with their lines.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from foretrain.doctor.calls import Rule, intercept, pass_on, watch
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment, all_of, number_of
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.setup import Case, Group, Setup
from foretrain.doctor.trials import descend
from foretrain.support.answers import labelled
from foretrain.support.errors import ForetrainError

_CUTS = {
    "detach",
    "detach_",
    "data",
    "argmax",
    "round",
    "sign",
    "floor",
    "numpy",
    "tolist",
    "item",
    "_set_grad_enabled",
}
_SOURCE = "measured: gradients over a short training"
_MOST_LINES = 3
_BATCH = 256
_SMALL = (1e-2, 1e-3, 1e-4)  # of the given rates: one of them is small enough, unless the direction is wrong
_RISES = 1e-6  # of the loss: less is rounding


def check(case: Case) -> Examination:
    """What is trained, and what is not and why."""
    outcome, model = outcome_of(case), case.setup.model
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    rates = case.recipe.rates
    left_out = [name for name in sizes if name not in frozen and not rates.get(name)]
    seen = outcome.course.largest_gradients
    unreached = [name for name in sizes if name in seen and name not in left_out and not seen[name] > 0]
    cut = [name for name in unreached if name in _without_way(case)]
    idle = unused(case, cut)
    cut = [name for name in cut if name not in idle]
    still = {*frozen, *left_out, *unreached}
    share = 1 - sum(sizes[name] for name in still) / max(1, sum(sizes.values()))
    numbers = {
        "trained_share": share,
        "frozen": len(frozen),
        "left_out": len(left_out),
        "unreached": len(unreached),
    }
    findings = _hidden(case, outcome.at_ease)
    if not outcome.at_ease:
        findings += _uphill(case, numbers)
    if cut and not outcome.at_ease:
        findings.append(_cut(case, cut, len(sizes), numbers))
    if idle and not outcome.at_ease:
        findings.append(_idle(idle, len(sizes), numbers))
    if frozen and not outcome.at_ease:
        findings.append(_freed(frozen, f"{'has' if len(frozen) == 1 else 'have'} requires_grad off", numbers))
    if left_out and not outcome.at_ease:
        findings.append(
            _freed(left_out, f"{'is' if len(left_out) == 1 else 'are'} not in the optimizer", numbers)
        )
    dead = [name for name in unreached if name not in cut and name not in idle]
    if dead and not outcome.at_ease:
        findings.append(_silent(dead, numbers))
    if not findings:
        verbs = "gets a gradient and is moved" if len(sizes) == 1 else "get a gradient and are moved"
        what = f"{all_of(len(sizes), 'parameter').capitalize()} {verbs}."
        if still:
            what = f"{share:.1%} of the numbers are trained; {len(still)} of {number_of(len(sizes), 'tensor')} not."
        severity = Severity.GOOD if share > 0.5 or not still else Severity.NOTE
        evidence = (
            f"{sum(sizes.values()):,} numbers; requires_grad off: {len(frozen)}, not in the optimizer: "
        )
        evidence += f"{len(left_out)}, without a gradient: {number_of(len(unreached), 'parameter')}."
        findings = [Finding(severity, what, evidence, _SOURCE, numbers=numbers, where=tuple(sorted(still)))]
    return Examination(tuple(findings), labelled(numbers))


def small_step(case: Case, share: float) -> tuple[float, float]:
    """The loss of a batch before and after a step of the given optimizer at this share of its rates."""
    model, batch = copy.deepcopy(case.setup.model).train(), case.chosen(_BATCH)
    optimizer = case.recipe.scaled(share).build(model)
    losses = []
    with torch.random.fork_rng(devices=[]):
        for _ in range(2):
            torch.manual_seed(0)  # the same dropout before and after
            losses.append(descend(optimizer, model, batch))
    return losses[0], losses[1]


def _uphill(case: Case, numbers: dict[str, float]) -> list[Finding]:
    """A step that is small enough lowers the loss, unless its direction is wrong."""
    try:
        steps = [small_step(case, share) for share in _SMALL]
    except (RuntimeError, ValueError, ForetrainError):
        return []  # a step that cannot be made at all is told by the outcome
    before, after = steps[0]
    numbers["small_step"] = after - before
    rises = all(later >= earlier for earlier, later in steps) and after - before > _RISES * abs(before)
    if not rises or any(group.options.get("maximize") for group in case.recipe.groups):
        return []
    return [
        Finding(
            Severity.CRITICAL,
            f"A small step of {case.recipe.kind.__name__} raises the loss: its direction is wrong.",
            f"At {_SMALL[0]:g} of its rate and below the loss of one batch goes from {before:.6g} to {after:.6g}.",
            "measured: one step on the same batch",
            "Look at the sign of the update, and at what changes the gradients on their way to the optimizer.",
            numbers=numbers,
        )
    ]


def _hidden(case: Case, learns: bool) -> list[Finding]:
    """Layers in lists and dicts, which torch does not register: no optimizer gets to know their parameters."""
    hidden: dict[str, list[nn.Module]] = {}
    registered = {id(module) for module in case.setup.model.modules()}
    for name, module in case.setup.model.named_modules():
        for key, value in vars(module).items():
            values = value.values() if isinstance(value, dict) else value
            if key.startswith("_") or not isinstance(values, Iterable) or isinstance(values, Tensor | str):
                continue
            parts = [one for one in values if isinstance(one, nn.Module) and id(one) not in registered]
            if parts and any(p.requires_grad for one in parts for p in one.parameters()):
                hidden[f"{name}.{key}".lstrip(".")] = parts
    if not hidden or learns:
        return []
    first, count = (
        next(iter(hidden)),
        sum(p.numel() for parts in hidden.values() for m in parts for p in m.parameters()),
    )
    listed = isinstance(
        getattr(case.setup.model.get_submodule(first.rpartition(".")[0]), first.rpartition(".")[2]), list
    )

    def register(setup: Setup) -> Setup:
        def change(model: nn.Module) -> None:
            for place in hidden:
                owner, _, key = place.rpartition(".")
                parent = model.get_submodule(owner)
                layers = vars(parent).pop(key)
                setattr(
                    parent, key, nn.ModuleList(layers) if isinstance(layers, list) else nn.ModuleDict(layers)
                )

        changed = setup.with_weights(change)
        known = {name for name, _ in setup.model.named_parameters()}
        return train_too(changed, [name for name, _ in changed.model.named_parameters() if name not in known])

    kind = "ModuleList" if listed else "ModuleDict"
    return [
        Finding(
            Severity.CRITICAL,
            f"The layers in {first!r} are in a Python {'list' if listed else 'collection'}, which does "
            "not register them: "
            "no optimizer moves their parameters.",
            f"{count:,} numbers of layers in {', '.join(map(repr, hidden))} are not among model.parameters().",
            "measured: modules among the attributes of the model",
            f"Put them into a torch.nn.{kind}, and make the optimizer again.",
            f"self.{first.rpartition('.')[2]} = torch.nn.{kind}(...)  # in the model's __init__",
            Treatment("layers registered", register),
            {"hidden": float(count)},
            tuple(hidden),
        )
    ]


def _without_way(case: Case) -> set[str]:
    """Parameters that the loss has no graph to: their gradient is missing, and not zero."""
    model = copy.deepcopy(case.setup.model).train()
    task = case.chosen(16)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            torch.autograd.backward(task.loss_of(model))
        except (RuntimeError, ForetrainError):
            return {name for name, _ in model.named_parameters()}
    return {name for name, parameter in model.named_parameters() if parameter.grad is None}


def unused(case: Case, names: list[str]) -> list[str]:
    """Those of these parameters whose numbers the outputs do not depend on, gradients or not."""
    model, x = copy.deepcopy(case.model), case.task.x[:4]
    with torch.no_grad():
        outputs, kept = model(x), []
        for name in names:
            weight = model.get_parameter(name)
            before = weight.clone()
            weight.add_(1.0 + weight.abs())
            if torch.equal(model(x), outputs):
                kept.append(name)
            weight.copy_(before)
    return kept


def _idle(names: list[str], count: int, numbers: dict[str, float]) -> Finding:
    return Finding(
        Severity.WARNING,
        f"{len(names)} of {number_of(count, 'parameter')} {'is' if len(names) == 1 else 'are'} not used: outputs do "
        f"not depend on {'it' if len(names) == 1 else 'them'}.",
        f"Outputs stay the same, bit by bit, whatever numbers these have: {', '.join(names[:6])}"
        f"{' and others' if len(names) > 6 else ''}.",
        "measured: outputs with other numbers in single parameters",
        "Look whether the model's forward pass calls the layers that they belong to, and in the right order.",
        numbers=numbers,
        where=tuple(names),
        vague=2,
    )


def _cut(case: Case, names: list[str], count: int, numbers: dict[str, float]) -> Finding:
    try:
        _, calls = watch(copy.deepcopy(case.setup.model).train(), case.task.x[:16], _CUTS)
    except (RuntimeError, TypeError):
        calls = []
    lines = list(dict.fromkeys(call.line for call in calls if call.line))[:_MOST_LINES]
    shown = f" ({'; '.join(lines)})" if lines else ""
    evidence = (
        f"The loss has no way back to {len(names)} of {count} parameters: they stay as they are{shown}."
    )
    if calls:
        evidence += f" In the forward pass {', '.join(sorted({call.name for call in calls}))} ends the way."
    detached = {call.name for call in calls} & {"detach", "data", "round", "sign", "floor"}
    treatment = None
    if detached and not {call.name for call in calls} & {"numpy", "tolist", "item"}:
        rule = Rule(frozenset(detached), pass_on)
        treatment = Treatment(
            f"without {', '.join(sorted(detached))}",
            lambda setup: setup.with_weights(lambda model: intercept(model, rule)),
        )
    return Finding(
        Severity.CRITICAL,
        f"No gradient reaches {len(names)} of {number_of(count, 'parameter')}: the way back from the loss is cut.",
        evidence,
        _SOURCE,
        "Remove what cuts it (detach, .data, torch.no_grad, argmax or rounding, a way through numpy), or "
        "parameters that "
        "are not used.",
        f"# remove in the model's forward: {'; '.join(lines)}" if lines else "",
        treatment,
        numbers,
        tuple(names),
    )


def _freed(names: list[str], why: str, numbers: dict[str, float]) -> Finding:
    listed = ", ".join(repr(name) for name in names)
    return Finding(
        Severity.CRITICAL,
        f"{number_of(len(names), 'parameter')} {why}, and the network does not learn as it should.",
        f"Not trained: {', '.join(names[:6])}{' and others' if len(names) > 6 else ''}; "
        f"{numbers['trained_share']:.1%} of all numbers are.",
        _SOURCE,
        "Train them too: set requires_grad, and make the optimizer from all parameters.",
        f"for name in ({listed},):\n    model.get_parameter(name).requires_grad_(True)\n"
        "# then make the optimizer again, from model.parameters()",
        Treatment("train all parameters", lambda setup: train_too(setup, names)),
        numbers,
        tuple(names),
    )


def train_too(setup: Setup, names: list[str]) -> Setup:
    """With these parameters in the group of the largest rate."""

    def free(model: nn.Module) -> None:
        for name in names:
            model.get_parameter(name).requires_grad_(True)

    recipe = setup.recipe
    first = max(recipe.groups, key=lambda group: group.rate)
    kept = [replace(group, names=tuple(n for n in group.names if n not in names)) for group in recipe.groups]
    groups = [group for group in (*kept, Group(tuple(names), first.options)) if group.names]
    return setup.with_weights(free).with_recipe(replace(recipe, groups=tuple(groups)))


def _silent(names: list[str], numbers: dict[str, float]) -> Finding:
    return Finding(
        Severity.WARNING,
        f"The gradient of {number_of(len(names), 'parameter')} is exactly zero, at every step that was looked at.",
        f"Parameters: {', '.join(names[:6])}{' and others' if len(names) > 6 else ''}. There is a way "
        "back from the loss, but "
        "something on it is off: weights that are zero, units that never answer, or a saturated nonlinearity.",
        _SOURCE,
        "Look at the layers between these parameters and the outputs: draw weights that are zero anew.",
        numbers=numbers,
        where=tuple(names),
        vague=1,
    )
