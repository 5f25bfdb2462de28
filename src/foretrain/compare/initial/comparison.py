"""Networks at initialisation: real random torch networks against the flow, entry by entry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, pairwise, product

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.comparison import Comparison
from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial import differentials, tangents
from foretrain.compare.initial.preactivations import ESTIMATORS, batch_values, collect
from foretrain.compare.judging.ladder import WIDTH_OVER_DEPTH, Asked, BatchValues, Entry, Ladder, share_draws
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray, check_network
from foretrain.theory.complexity import SYMMETRIES, generated_group
from foretrain.theory.ensembles import METHODS
from foretrain.theory.flow import flow
from foretrain.theory.recursions.kinks import inputs_on_kinks
from foretrain.theory.tensors import DIFFERENTIALS, MEANINGS, TANGENT

OBSERVABLES = {
    **{name: MEANINGS[name] for name in ("K", "V", "G1", "three_point", *TANGENT, *DIFFERENTIALS)},
    "kurtosis": "fan-in times the mean of z_a⁴ less 3 times the squared mean of z_a², of one neuron",
}
_LEGS = {
    "Theta": ("Theta",) * 2,
    "H1": ("Theta",) * 2,
    "D": ("K", "K", "Theta", "Theta"),
    "F": ("K", "Theta", "K", "Theta"),
    "A": ("Theta",) * 4,
    "B": ("Theta",) * 4,
    **dict.fromkeys(DIFFERENTIALS, ("Theta",) * 4),
}
_PER_KERNEL = ("R", "S", "T", "U")

_BATCHES = 1000
_FEWEST_BATCHES = 50
_MOST_INPUTS = 4  # whose full tensors of four indices are compared
_TANGENT_WIDTH_OVER_DEPTH = 4.0  # carrying NTKs costs n³: as narrow as a quadratic in 1/n can be trusted
_MOST_NUMBERS = 1e10  # random numbers beyond which weights are not drawn one by one unless asked for


def compare_initial(
    mlp: MLP,
    X: ArrayLike,
    observables: Sequence[str] | None = None,
    draws: int = 20_000,
    *,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    method: str = "auto",
    estimator: str = "metric",
    seed: Seed = 0,
) -> Comparison:
    """Draw random torch networks of several widths and compare their statistics with the flow.

    Parameters
    ----------
    X
        Inputs (N, n_in); V, D, F, A, B and P to U need N ≤ 4, because their full tensors are compared.
    observables
        Any of ``K``, ``V``, ``G1`` (or ``kurtosis``, with estimator "neurons"), and for residual networks ``K``,
        ``V``, ``three_point``. By default all of these that the network, the estimator and the number of inputs
        allow. Statistics of the NTK and of its differentials are compared only if named, of networks without skip
        connections, with every weight drawn: ``Theta``, ``H1``, ``D``, ``F``, ``A``, ``B`` at a cost of n³ per layer,
        ``P``, ``Q`` (dNTK) and ``R``, ``S``, ``T``, ``U`` (ddNTKs) at about 400 n². Kinks count as automatic
        derivatives see them, with no second derivative.
    draws
        Networks per width, on average; they are shared out so that the limit is as sharp as their time allows.
    widths, scales
        Hidden widths to draw, or multipliers of the network's own, at least three; by default (1/4, 1/2, 1),
        (1/2, 1, 2) or (1, 2, 4) times the own ones, the narrowest at least six times as wide as the network is deep
        if possible (four times for the NTK).
    method
        ``"weights"`` draws every weight of every network; ``"conditional"`` draws each layer from its law given
        the one before, the same statistics at a cost of n instead of n² per layer. ``"auto"`` draws weights
        unless that takes more than 10¹⁰ random numbers; the result says which was used.
    estimator
        ``"metric"`` averages over a layer's own weights exactly; ``"neurons"`` uses its preactivations only.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = ft.compare(ft.MLP("relu", depth=3, width=32, C_W=2.0), [[1.0, 0.5], [0.2, -1.0]], draws=1000)
    >>> found.agrees
    True
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    mlp = mlp.with_inputs(inputs)
    names = check_observables(mlp, len(inputs), observables, estimator)
    if {*names} & {*TANGENT, *DIFFERENTIALS}:
        _refuse_kinks(mlp, inputs)
    asked = Asked(draws, widths, scales, seed)
    ladder = _plan(mlp, len(inputs), asked, method, names)
    # All but those of the vertex in layers of one neuron, if two of them would have to be read.
    entries = [
        entry
        for name in names
        for entry in entries_of(name, mlp, len(inputs))
        if not (estimator == "neurons" and name == "V" and mlp.widths[entry.layer] < 2)
    ]
    if observables is not None:
        _refuse_empty(mlp, names, entries)
    case = InitialCase(inputs, names, entries, estimator, ladder.method, theory(mlp, inputs, names))
    return Comparison.run(mlp, case, ladder, asked, seed)


def _plan(mlp: MLP, inputs: int, asked: Asked, method: str, names: Sequence[str]) -> Ladder:
    """Widths and draws for the observables asked for; NTKs and their differentials are carried by weights."""
    tangent = bool({*names} & {*TANGENT})
    carried = tangent or bool({*names} & {*DIFFERENTIALS})
    narrow = tangent and not {*names} & {*DIFFERENTIALS}
    rungs = asked.rungs(mlp, _TANGENT_WIDTH_OVER_DEPTH if narrow else WIDTH_OVER_DEPTH)
    if method not in ("auto", *METHODS):
        raise unknown_name("sampling `method`", str(method), ("auto", *METHODS))
    if carried and method == "conditional":
        raise NotSupportedError("the NTK is carried by weights: use `method='weights'`.")
    draws = whole_number("draws", asked.draws, least=10 * _FEWEST_BATCHES)
    allowed = (method,) if method != "auto" else ("weights",) if carried else METHODS
    for chosen in allowed:
        # Random numbers of one network, up to the last hidden layer.
        numbers = [
            inputs * sum(network.hidden_widths)
            if chosen == "conditional"
            else sum(n * fan_in for fan_in, n in pairwise(network.widths[:-1]))
            for network in rungs.networks
        ]
        costs = np.array(numbers, dtype=float)
        if tangent:  # products of matrices n × n take the time
            costs *= [max(network.hidden_widths) for network in rungs.networks]
        shares = share_draws(rungs.inverse, costs, draws)
        if np.dot(numbers, shares) <= _MOST_NUMBERS:
            break
    batches = max(_FEWEST_BATCHES, min(_BATCHES, min(shares) // 4))
    return Ladder.of(rungs, shares, batches, method=chosen)


@dataclass(frozen=True, eq=False)
class InitialCase:
    """What is compared at initialisation, what the theory says of it, and how networks are read."""

    inputs: FloatArray
    names: Sequence[str]
    entries: list[Entry]
    estimator: str
    method: str
    predicted: dict[str, FloatArray]  # by observable: (layers, inputs, ...)

    def values(self) -> FloatArray:
        """What the theory says, by entry."""
        return np.array([self.predicted[e.observable][(e.layer - 1, *e.inputs)] for e in self.entries])

    def units(self) -> FloatArray:
        """Natural sizes of the entries, not all zero."""
        units = np.array([unit_of(self.predicted, entry) for entry in self.entries])
        if not units.any():
            raise InputError(
                f"there is nothing to compare, since {', '.join(self.names)} is zero in theory and in every network: "
                "give inputs that are not zero and positive variances and learning rates."
            )
        return units

    def measure(self, mlp: MLP, draws: int, batches: int, seed: Seed) -> tuple[BatchValues, float]:
        """All entries from the same networks; those of the NTK come last, and its differentials after them."""
        tangent, differential = (
            [e for e in self.entries if e.observable in kind] for kind in (TANGENT, DIFFERENTIALS)
        )
        others = [e for e in self.entries if e.observable not in (*TANGENT, *DIFFERENTIALS)]
        size, K = len(self.inputs), self.predicted["K"]
        held = max(
            tangents.bytes_per_network(mlp, size) if tangent else 0,
            differentials.bytes_per_network(mlp, size) if differential else 0,
        )
        ensemble = Ensemble(mlp, self.inputs, draws // batches, batches, self.method, seed, held)
        columns = []
        if others:
            statistics = collect(ensemble, K, self.estimator, any(e.observable == "G1" for e in others))
            columns.append(batch_values(mlp, K, statistics, others).values)
        if tangent:
            Theta = self.predicted["Theta"]
            kernels = tangents.collect_tangents(ensemble, K, Theta)
            columns.append(tangents.tangent_batch_values(mlp, K, Theta, kernels, tangent).values)
        if differential:
            columns.append(differentials.differential_batch_values(ensemble, differential).values)
        return BatchValues(np.concatenate(columns, axis=1)), np.nan


def theory(mlp: MLP, inputs: FloatArray, names: Sequence[str]) -> dict[str, FloatArray]:
    """By name; the excess of one neuron's fourth moment is 3 V_(aa)(aa) (4.77)."""
    base = ("K", "Theta") if set(names) & {*TANGENT, *DIFFERENTIALS} else ("K",)
    wanted = list(
        dict.fromkeys("norm_covariance" if name == "kurtosis" else name for name in (*base, *names))
    )
    # Networks are differentiated automatically, which sees no second derivative at a kink.
    tensors = flow(mlp, inputs, wanted, kinks="almost_everywhere")
    found = {name: np.asarray(tensors[name].values, dtype=np.float64) for name in wanted}
    if "kurtosis" in names:
        found["kurtosis"] = 3 * np.diagonal(found["norm_covariance"], axis1=1, axis2=2)
    return found


def unit_of(predicted: dict[str, FloatArray], entry: Entry) -> float:
    """√K_aa for each index of z and √Θ_aa for each of the NTK: the size of the entry without any cancellation.

    P and Q have the dimension of Θ², R, S, T and U that of Θ³/K (11.63), (∞.22).
    """
    legs = 4 * entry.inputs if entry.observable == "kurtosis" else entry.inputs
    kinds = _LEGS.get(entry.observable, ("K",) * len(legs))
    size = float(np.prod([np.sqrt(predicted[kind][entry.layer - 1, i, i]) for kind, i in zip(kinds, legs)]))
    if entry.observable not in _PER_KERNEL:
        return size
    Theta, K = (np.diagonal(predicted[kind][entry.layer - 1]).max() for kind in ("Theta", "K"))
    return size * float(Theta / K) if K > 0 else size


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


def _refuse_kinks(mlp: MLP, inputs: FloatArray) -> None:
    """Inputs whose every preactivation lies on a kink have the NTK that torch chooses."""
    numbers = inputs_on_kinks(mlp, inputs)
    if numbers:
        raise InputError(
            f"the kernel of input {', '.join(map(str, numbers))} is exactly zero, at the kink of "
            f"{mlp.activation.label}, where the NTK depends on what torch takes for the slope: leave the input "
            "out, or give C_b > 0."
        )


def _refuse_empty(mlp: MLP, names: Sequence[str], entries: Sequence[Entry]) -> None:
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
