"""Do all units answer to the data?

A rectifier that is off on every sample passes neither signal nor gradient; a saturated tanh passes no gradient.

Measurements (dimension layer, those that another layer follows):
``units``         how many
``dead``          share of units whose answer is the same for all samples
``always_on``     share of units that are positive for all samples; without a fault as large as ``dead``
``closed``        share of units and samples with a slope below a twentieth of the steepest; 0 for rectifiers
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from textwrap import indent
from typing import Any

import numpy as np
from torch import Tensor, nn

from foretrain.doctor.finding import (
    Examination,
    Finding,
    Severity,
    Treatment,
    all_of,
    body_of,
    dictionary_code,
    number_of,
)
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.units import Response, responses, units_last
from foretrain.support.answers import labelled
from foretrain.support.errors import NotSupportedError

_SAMPLES = 256
_FIXED_ON = 512  # samples that a treatment looks at
# In deep healthy networks inputs look alike, so that a unit is on for all or off for all; as many are on as off. What
# counts is the excess, beyond chance. Some dead units make a layer narrower, almost all of them cut the network.
_DEAD_NOTE, _DEAD_WARNING, _DEAD_CRITICAL = 0.1, 0.4, 0.95
_DEVIATIONS = 3.0
# Preactivations of size one saturate few units; tanh at size 10 closes 83 percent, and a gradient then passes one
# unit in six.
_CLOSED_WARNING, _CLOSED_CRITICAL = 0.8, 0.98
_SOURCE = "Roberts & Yaida (9.93): a unit passes gradients by its slope; Glorot & Bengio 2010 on saturation"


def check(case: Case) -> Examination:
    """Silent and saturated units, layer by layer."""
    try:
        found = responses(case.model, case.chosen(_SAMPLES).x)
    except RuntimeError as error:
        raise NotSupportedError(
            "gradients cannot be followed through this model, as where it overwrites tensors in place."
        ) from error
    if not found:
        raise NotSupportedError("no two layers of the model follow one another with an activation between.")
    # What a short training wakes, as behind a branch that starts at zero, is not dead.
    awake = {one.name for one in _after_training(case) if _excess(one) < _DEAD_NOTE}
    asleep = [one for one in found if one.name not in awake]
    faults = [one for one in (_dead(case, asleep), _saturated(case, found)) if one is not None]
    data = {
        "units": ("layer", [len(one.silent) for one in found]),
        "dead": ("layer", [_share(one.silent) for one in found]),
        "always_on": ("layer", [_share(one.always_on) for one in found]),
        "closed": ("layer", [one.closed for one in found]),
    }
    notes = {"units": "shares of one; units: a number"}
    unreached = tuple(one.name for one in found if not one.reached)
    if not faults and unreached:
        layers = f"{len(unreached)} of {number_of(len(found), 'layer')}"
        title = f"Units of {layers} get the same for every sample: none can answer."
        evidence = f"Nothing that differs between {min(_SAMPLES, len(case.task.x))} samples enters them."
        faults = [Finding(Severity.NOTE, title, evidence, _SOURCE, where=unreached)]
    if not faults:
        dead, closed = max(_share(one.silent) for one in found), max(one.closed for one in found)
        good = Finding(
            Severity.GOOD,
            f"Units answer to the data in {all_of(len(found), 'layer')}.",
            f"At most {dead:.0%} of a layer's units give the same for all samples, about as many as are always on; "
            f"at most {closed:.0%} of a layer is saturated.",
            _SOURCE,
            numbers={"dead": dead, "closed": closed},
        )
        faults = [good]
    return Examination(tuple(faults), labelled(data, notes, layer=[one.name for one in found]))


def _after_training(case: Case) -> list[Response]:
    run = outcome_of(case).course
    if run.diverged or run.error:
        return []
    return responses(copy.deepcopy(run.model), case.chosen(_SAMPLES).x)


def _share(units: Tensor) -> float:
    return float(units.double().mean())


def _excess(one: Response) -> float:
    """Share of units that are silent beyond those that are always on; 0 where chance explains it."""
    silent, on = _share(one.silent), _share(one.always_on)
    chance = _DEVIATIONS * float(np.sqrt((silent + on) / len(one.silent)))
    certain = silent - on > chance or silent > _DEAD_CRITICAL
    return silent - on if certain else 0.0


def _dead(case: Case, found: list[Response]) -> Finding | None:
    worst = max(found, key=_excess, default=None)
    if worst is None:
        return None
    excess, share = _excess(worst), _share(worst.silent)
    if excess < _DEAD_NOTE:
        return None
    severity = Severity.WARNING if excess > _DEAD_WARNING else Severity.NOTE
    if share > _DEAD_CRITICAL or (severity == Severity.WARNING and worst.shut > _CLOSED_CRITICAL):
        severity = Severity.CRITICAL
    layers = {one.name: one.silent.nonzero().ravel().tolist() for one in found if _excess(one) >= _DEAD_NOTE}
    mendable = {name: units for name, units in layers.items() if _parameter(case, name, "bias")}
    return Finding(
        severity,
        f"{share:.0%} of the units in layer {worst.name!r} are dead: they give the same for every sample.",
        f"{int(worst.silent.sum())} of {len(worst.silent)} units did not answer to any of "
        f"{min(_SAMPLES, len(case.task.x))} samples; {int(worst.always_on.sum())} were on for all of them. Their "
        f"mean preactivation is {float(worst.v[:, worst.silent].mean()):.3g}.",
        _SOURCE,
        "Shift the biases of the dead units, so that their mean preactivation over the data is zero.",
        _code(mendable, _shift) if mendable else "",
        _treatment("biases of dead units shifted", mendable, _shift),
        {"dead": share, "excess": excess},
        tuple(layers),
    )


def _saturated(case: Case, found: list[Response]) -> Finding | None:
    others = [one for one in found if _excess(one) < _DEAD_NOTE]  # not told as dead already
    worst = max(others, key=lambda one: one.closed, default=None)
    if worst is None or worst.closed < _CLOSED_WARNING:
        return None
    severity = Severity.CRITICAL if worst.closed > _CLOSED_CRITICAL else Severity.WARNING
    layers = {one.name: list[int]() for one in others if one.closed >= _CLOSED_WARNING}
    mendable = {name: units for name, units in layers.items() if _parameter(case, name, "weight")}
    return Finding(
        severity,
        f"{worst.closed:.0%} of the units and samples in layer {worst.name!r} are saturated and pass no gradient.",
        f"Their slope is below a twentieth of the steepest; the preactivations have size "
        f"{float(worst.v.square().mean().sqrt()):.3g} over {min(_SAMPLES, len(case.task.x))} samples.",
        _SOURCE,
        "Divide weights and biases of these layers by the size of their preactivations on the data.",
        _code(mendable, _shrink) if mendable else "",
        _treatment("saturated layers rescaled", mendable, _shrink),
        {"closed": worst.closed},
        tuple(layers),
    )


def _parameter(case: Case, layer: str, own: str) -> bool:
    parameter = case.model.get_submodule(layer)._parameters.get(own)
    return parameter is not None and parameter.requires_grad


_Mend = Callable[[Any, Sequence[int], Tensor], None]


def _treatment(name: str, layers: Mapping[str, list[int]], mend: _Mend) -> Treatment | None:
    """Layer after layer, because what is mended first changes what the next ones see."""

    def change(model: nn.Module, x: Tensor) -> None:
        training = model.training
        model.eval()
        for layer, units in layers.items():
            module, held = model.get_submodule(layer), list[Tensor]()
            handle = module.register_forward_hook(
                lambda part, given, out, held=held: held.append(out.clone())
            )
            try:
                model(x)
            finally:
                handle.remove()
            mend(module, units, units_last(module, held[0]))
        model.train(training)

    def apply(setup: Setup) -> Setup:
        return setup.with_weights(lambda model: change(model, setup.task.x[:_FIXED_ON]))

    return Treatment(name, apply) if layers else None


# Shown as they stand, with ``units`` as a list or a range.
def _shift(layer: Any, units: Sequence[int], v: Tensor) -> None:
    layer.bias[list(units)] -= v.mean(0)[list(units)]


def _shrink(layer: Any, units: Sequence[int], v: Tensor) -> None:
    for parameter in layer.parameters():
        parameter.div_(v.square().mean().sqrt())


def _code(layers: Mapping[str, list[int]], mend: _Mend) -> str:
    rows = []
    for name, units in layers.items():
        in_a_row = len(units) > 2 and units == list(range(units[0], units[-1] + 1))
        rows.append(f"{name!r}: {f'range({units[0]}, {units[-1] + 1})' if in_a_row else units}")
    return "\n".join(
        [
            *dictionary_code("layers", rows, "layer: units"),
            "training = model.training",
            "model.eval()",
            "with torch.no_grad():",
            "    for name, units in layers.items():",
            "        layer, held = model.get_submodule(name), []",
            "        handle = layer.register_forward_hook(lambda part, given, out: held.append(out.clone()))",
            f"        model(x[:{_FIXED_ON}])",
            "        handle.remove()",
            "        units_last = isinstance(layer, (torch.nn.Linear, torch.nn.LayerNorm))",
            "        v = held[0] if units_last else held[0].movedim(1, -1)",
            "        v = v.reshape(-1, v.shape[-1])",
            indent(body_of(mend), "    "),
            "model.train(training)",
        ]
    )
