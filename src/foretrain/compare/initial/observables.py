"""What is compared at initialisation: the observables, their independent components, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations_with_replacement, product

from foretrain.compare.initial.preactivation_statistics import ESTIMATORS
from foretrain.compare.judging.entries import Entry
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.complexity import SYMMETRIES, generated_group
from foretrain.theory.recursions.kinks import inputs_on_kinks
from foretrain.theory.tensors import DIFFERENTIALS, MEANINGS, TANGENT

OBSERVABLES = {
    **{name: MEANINGS[name] for name in ("K", "V", "G1", "three_point", *TANGENT, *DIFFERENTIALS)},
    "kurtosis": "fan-in times the mean of z_a⁴ less 3 times the squared mean of z_a², of one neuron",
}


def entries_of(observable: str, mlp: MLP, inputs: int) -> list[Entry]:
    """Each independent component once, in the layers where it fluctuates.

    All from layer 2 on but G1 and H1, from layer 3 on (4.37), and the three-point function, in layers with a skip
    connection; pairs a ≤ b, and of components that are equal by symmetry the first.
    """
    pairs = list(combinations_with_replacement(range(inputs), 2))
    indices: list[tuple[int, ...]]
    if observable == "kurtosis":
        indices = [(a,) for a in range(inputs)]
    elif observable == "three_point":
        indices = [(a, *pair) for a in range(inputs) for pair in pairs]
    elif observable in SYMMETRIES:
        group = generated_group(SYMMETRIES[observable])
        indices = [
            index
            for index in product(range(inputs), repeat=4)
            if all(index <= tuple(index[place] for place in order) for order in group)
        ]
    else:
        indices = list(pairs)
    layers = [layer.number for layer in mlp.layers[2 if observable in ("G1", "H1") else 1 :]]
    if observable == "three_point":
        layers = [layer.number for layer in mlp.layers if layer.gamma]
    return [Entry(observable, layer, index) for layer in layers for index in indices]


_MOST_INPUTS = 4


def check_observables(
    mlp: MLP, inputs: int, observables: Sequence[str] | None, estimator: str
) -> tuple[str, ...]:
    """Their names, those of the NTK and of its differentials last; an error for what cannot be measured."""
    if estimator not in ESTIMATORS:
        raise unknown_name("`estimator`", str(estimator), ESTIMATORS)
    if observables is None:
        few = ("V",) if inputs <= _MOST_INPUTS else ()
        if mlp.is_residual:
            return ("K", *few, *(("three_point",) if few else ()))
        return ("K", *few, "G1" if estimator == "metric" else "kurtosis")
    if not isinstance(observables, str | Iterable):
        raise InputError(f"`observables` is {observables!r}: give a list of names such as ['K', 'V'].")
    names = tuple(dict.fromkeys([observables] if isinstance(observables, str) else observables))
    for name in names:
        if name not in OBSERVABLES:
            raise unknown_name("observable", str(name), OBSERVABLES, "observables")
    if not names:
        raise InputError(f"ask for at least one observable of: {', '.join(OBSERVABLES)}.")
    if "G1" in names:
        _refuse_unmeasured("G1", mlp, estimator, "metric")
    if "kurtosis" in names:
        _refuse_unmeasured("kurtosis", mlp, estimator, "neurons")
    if "three_point" in names and not mlp.is_residual:
        raise InputError("three_point vanishes without skip connections: leave it out, or give gamma.")
    carried = [name for name in (*TANGENT, *DIFFERENTIALS) if name in names]
    if carried:
        _refuse_unmeasured(carried[0], mlp, estimator, "metric")
    large = [name for name in ("V", "three_point", "D", "F", "A", "B", *DIFFERENTIALS) if name in names]
    if large and inputs > _MOST_INPUTS:
        raise InputError(
            f"the full {large[0]} of {inputs} inputs would be compared: give at most {_MOST_INPUTS} inputs at a time."
        )
    return *(name for name in names if name not in carried), *carried


def _refuse_unmeasured(name: str, mlp: MLP, estimator: str, needed: str) -> None:
    """What some estimators and networks do not allow, with the way out that this request has."""
    if mlp.is_residual:
        raise NotSupportedError(
            f"{name} of networks with skip connections is not measured: leave {name} out of the observables, or "
            "gamma out of the network."
        )
    if estimator != needed:
        raise NotSupportedError(
            f"{name} is measured with `estimator=`{needed!r} only: give that, or leave {name} out of the observables."
        )


def refuse_kinks(mlp: MLP, inputs: FloatArray) -> None:
    """Inputs whose every preactivation lies on a kink have the NTK that torch chooses."""
    numbers = inputs_on_kinks(mlp, inputs)
    if numbers:
        raise InputError(
            f"the kernel of input {', '.join(map(str, numbers))} is exactly zero, at the kink of "
            f"{mlp.activation.label}, where the NTK depends on what torch takes for the slope: leave the input "
            "out, or give C_b > 0."
        )


def refuse_empty(mlp: MLP, names: Sequence[str], entries: Sequence[Entry]) -> None:
    """Observables without an entry would otherwise be missing from the answer without a word."""
    measured = {entry.observable for entry in entries}
    empty = [name for name in names if name not in measured]
    if empty and empty[0] in ("G1", "H1"):
        raise InputError(
            f"{empty[0]} vanishes in layers 1 and 2, and the network has depth {mlp.depth}: leave it out, or give "
            "more layers."
        )
    if empty:
        raise InputError(
            f"{empty[0]} of two different neurons cannot be read from one output: leave it out, or give n_out of 2 "
            "or more, more layers or `estimator='metric'`."
        )
