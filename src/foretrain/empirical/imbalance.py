"""Imbalance of layer norms under gradient flow (Rawal & DeWeese, section 2 and Cor. 12), on any torch model.

``imbalance``          Δ of every pair of layers, its drift as measured and by the identity; by neuron, as a matrix
``record_imbalance``   the same over steps of descent, with the part of second order in the learning rate
``observe_imbalance``  an observable for recorders

Two layers form a pair if the first one's output reaches the loss only through the second one, entry by entry. Their
identity is (2), with layer rates (A.2), for single neurons and as a matrix (Cor. 12).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.layers import (
    WeightCall,
    WeightCalls,
    dependence,
    is_elementwise,
    slopes,
)
from foretrain.empirical.fields.state import check_rate
from foretrain.empirical.models.model import call_with, explained
from foretrain.support.answers import Answer, Figure, Result, dataset_table, labelled, names_axis
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.progress import track
from foretrain.support.threads import on_free_cores

if TYPE_CHECKING:
    import xarray as xr

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Network:
    """A model, or a function of (parameters, x), with its trained parameters, its data and its loss."""

    call: Callable[..., Any]
    parameters: Mapping[str, Tensor]
    x: Any
    y: Any
    loss: Loss

    def run(self, cut: bool) -> tuple[list[WeightCall], Tensor]:
        """All calls of weights in one run, and the loss."""
        with torch.enable_grad(), WeightCalls(self.parameters, cut) as watch:
            with explained(self.x, self.parameters.values()):
                outputs = call_with(self.call, self.x)
            value = self.loss(outputs, self.y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InputError(
                "loss(model(x), y) must be a tensor with one number: average or sum over the data."
            )
        if not bool(torch.isfinite(value).all()):
            raise InputError("the loss is not finite: check the inputs and the weights.")
        return watch.calls, value.reshape(())


def network(model: Any, x: Any, y: Any, loss: Loss, parameters: Mapping[str, Tensor] | None) -> Network:
    """A module with its parameters, or a function with the parameters it takes first."""
    if parameters is not None:
        if not callable(model):
            raise InputError(
                f"the model is {type(model).__name__}: with `parameters=` give a function of them and x."
            )
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        return Network(partial(model, leaves), leaves, x, y, loss)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"the model is {type(model).__name__}: give a torch module, or a function with `parameters=`."
        )

    @wraps(model.forward)  # with its signature, by which dicts of arguments are understood
    def call(*args: Any, **named: Any) -> Any:
        # Running statistics do not notice that the model is called: it has copies of its buffers.
        buffers = {name: value.detach().clone() for name, value in model.named_buffers()}
        return torch.func.functional_call(model, buffers, args, named)

    return Network(call, dict(model.named_parameters()), x, y, loss)


@dataclass(frozen=True)
class Pair:
    """Two sites, by their place in the order of the run, and a name."""

    lower: int
    upper: int
    name: str


def find_pairs(found: Network) -> tuple[list[Pair], dict[str, str]]:
    """All pairs of a model, and for every other weight why nothing below it forms a pair with it."""
    sites, loss = found.run(cut=True)
    if not sites:
        raise NotSupportedError(
            "the model multiplies nothing by its parameters through linear maps or convolutions: the imbalance is "
            "about pairs of such layers."
        )
    names = sorted({name for site in sites for name in (site.weight, site.bias) if name is not None})
    trained = [name for name in names if found.parameters[name].requires_grad]
    sources = [*(site.value for site in sites), *(found.parameters[name] for name in trained)]
    # Read from the cut graph: autograd knows what an end is made of.
    reached = [dependence(end, sources) for end in (*(site.signal for site in sites), loss)]
    reach = [[place for place in places if place < len(sites)] for places in reached]
    outside = {trained[place - len(sites)] for places in reached for place in places if place >= len(sites)}
    pairs, refused = [], {}
    for place, site in enumerate(sites):
        reason = _objection(found, sites, reach, outside, place)
        if reason is None:
            (lower,) = reach[place]
            pairs.append(Pair(lower, place, f"{sites[lower].weight} -> {site.weight}"))
        else:
            refused[site.weight] = reason
    return pairs, refused


def _objection(
    found: Network, sites: Sequence[WeightCall], reach: Sequence[list[int]], outside: set[str], place: int
) -> str | None:
    """Why the site forms no pair with what is below it; None if it does.

    ``reach``: for every end (the signals of all sites, then the loss) the values that it depends on; ``outside``: the
    parameters that it depends on directly.
    """
    site, below = sites[place], reach[place]
    uses = [one.weight for one in sites]
    if not below:
        return (
            "its input comes from no linear layer that is seen, but from data, embeddings or fused operations"
        )
    if len(below) > 1:
        return f"its input comes from {len(below)} layers at once ({', '.join(uses[i] for i in below)})"
    lower = sites[below[0]]
    for other in (site, lower):
        if uses.count(other.weight) > 1:
            return f"{other.weight} is used {uses.count(other.weight)} times"
        if not found.parameters[other.weight].requires_grad:
            return f"{other.weight} is frozen"
        if outside & {other.weight, other.bias}:
            return f"{other.weight} or its bias is also used outside of its layer"
    users = [end for end, leaves in enumerate(reach) if below[0] in leaves]
    if users != [place]:
        others = ["the loss" if end == len(sites) else uses[end] for end in users if end != place]
        return f"the output of {lower.weight} also goes another way, to {', '.join(others)}"
    # What is between two layers must act entry by entry, up to a reshape.
    between = f"between {lower.weight} and {site.weight}"
    if site.signal.numel() != lower.value.numel():
        shapes = f"{tuple(lower.value.shape)} becomes {tuple(site.signal.shape)}"
        return f"{between} {shapes}, which no elementwise activation does"
    (slope,) = slopes(site.signal, [lower.value])
    if slope is None or not is_elementwise(lower.value, site.signal, slope):
        return f"{between} entries are mixed, as by normalisation, softmax or a change of order"
    return None


@dataclass(frozen=True, eq=False)
class PairState:
    """Two layers with their gradients, and what is between them: z, σ(z), σ'(z) and p = ∂ℓ/∂σ(z).

    The lower layer is [W_l, b_l] if its bias learns; a frozen bias is left out of z, so that φ = (z - b)σ'(z) - σ(z).
    """

    name: str
    lower: WeightCall
    upper: WeightCall
    values: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    z: Tensor
    activation: Tensor
    slope: Tensor
    p: Tensor

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Names of the parameters in Δ with their sign: the upper weight against the lower weight and bias."""
        bias = self.lower.bias
        own = [] if bias is None or bias not in self.gradients else [(bias, -1)]
        return [(self.upper.weight, 1), (self.lower.weight, -1), *own]

    @cached_property
    def phi(self) -> Tensor:
        """φ_σ(z) = zσ'(z) - σ(z) (1)."""
        return self.z * self.slope - self.activation

    def delta(self, rates: Mapping[str, float]) -> float:
        """Δ = ‖W_{l+1}‖²/ρ_{l+1} - ‖W_l‖²/ρ_l - ‖b_l‖²/ρ_b (A.2)."""
        return sum(sign * _dot(self.values[n], self.values[n]) / rates[n] for n, sign in self.parts)

    def drift(self) -> float:
        """dΔ/dt of the gradient flow, from weights and gradients: -2⟨W_{l+1}, ∇_{l+1}⟩ + 2⟨W_l, ∇_l⟩ (+ bias)."""
        return sum(-2 * sign * _dot(self.values[n], self.gradients[n]) for n, sign in self.parts)

    def identity(self) -> float:
        """2 E⟨W_{l+1}ᵀ∇_{z_{l+1}}ℓ, φ_σ(z_l)⟩ (2)."""
        return 2 * _dot(self.p, self.phi)

    def scale(self) -> float:
        """The size of the terms that cancel in the drift, beside which round-off is judged."""
        return sum(
            2 * float(self.values[n].double().norm()) * float(self.gradients[n].double().norm())
            for n, _ in self.parts
        )

    def second_order(self, rates: Mapping[str, float]) -> float:
        """What a step of descent adds at order η²: ρ_{l+1}‖∇_{l+1}‖² - ρ_l‖∇_l‖² (- bias)."""
        return sum(sign * rates[n] * _dot(self.gradients[n], self.gradients[n]) for n, sign in self.parts)

    def weight_matrices(self, rates: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """W_{l+1}ᵀW_{l+1} - W_lW_lᵀ (- b_l b_lᵀ), each over its rate, and its drift from weights and gradients."""
        if self.upper.grouped or self.upper.signal.shape != self.lower.value.shape:
            raise NotSupportedError(
                f"the units of {self.name} are not one to one (flattened positions or groups): the scalar identity "
                "holds, the matrix has no meaning."
            )
        if self.upper.axis != self.lower.axis:
            raise NotSupportedError(
                f"{self.name} count their units along different axes: only the scalar identity holds."
            )
        total = drift = torch.zeros((), dtype=torch.float64)
        for name, sign in self.parts:
            W, G = (self._matrix(name, tensors[name]) for tensors in (self.values, self.gradients))
            total = total + sign * W @ W.T / rates[name]
            drift = drift - sign * (W @ G.T + G @ W.T)
        return total, drift

    def matrix_identities(self) -> tuple[Tensor, Tensor]:
        """E[(σ'p)zᵀ + z(σ'p)ᵀ - pσᵀ - σpᵀ], and E[pφᵀ + φpᵀ] as Cor. 12 prints it: equal on the diagonal."""
        fields = (self.z, self.activation, self.slope, self.p, self.phi)
        z, sigma, slope, p, phi = (
            values.movedim(self.lower.axis, 0).flatten(1).double().cpu() for values in fields
        )
        half = (slope * p) @ z.T - p @ sigma.T
        return half + half.T, p @ phi.T + phi @ p.T

    def _matrix(self, name: str, values: Tensor) -> Tensor:
        """A parameter as (units between the layers, everything else)."""
        double = values.detach().double().cpu()
        if name == self.upper.weight:
            return self.upper.columns(double)
        return double[:, None] if name == self.lower.bias else self.lower.rows(double)


def pair_states(found: Network, pairs: Sequence[Pair]) -> list[PairState]:
    """One more run with its whole graph, one backward pass, and everything that the pairs need of it."""
    sites, loss = found.run(cut=False)
    if len(sites) <= max((pair.upper for pair in pairs), default=0):
        raise NotSupportedError(
            "two runs of the model took different ways: switch its randomness off by model.eval()."
        )
    trained = {name: value for name, value in found.parameters.items() if value.requires_grad}
    signals = [sites[pair.upper].signal for pair in pairs]
    received = torch.autograd.grad(
        loss, [*signals, *trained.values()], retain_graph=True, allow_unused=True, materialize_grads=True
    )
    gradients = dict(zip(trained, received[len(pairs) :]))
    states = []
    for pair, p in zip(pairs, received):
        lower, upper = sites[pair.lower], sites[pair.upper]
        end = upper.signal.reshape(lower.value.shape)
        (slope,) = torch.autograd.grad(end.sum(), lower.value, retain_graph=True)
        z = lower.value.detach()
        if lower.bias is not None and lower.bias not in gradients:
            along = [1] * z.ndim
            along[lower.axis] = -1
            z = z - found.parameters[lower.bias].detach().reshape(along)
        # Without the graph, which would keep every activation of the model in memory.
        lower, upper = (replace(s, signal=s.signal.detach(), value=s.value.detach()) for s in (lower, upper))
        states.append(
            PairState(
                name=pair.name,
                lower=lower,
                upper=upper,
                values={name: value.detach() for name, value in found.parameters.items()},
                gradients=gradients,
                z=z,
                activation=end.detach(),
                slope=slope.detach(),
                p=p.detach().reshape(z.shape),
            )
        )
    return states


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum())


class Imbalance(Result):
    """The imbalance of every pair of layers, its drift as measured and by the identity.

    ``data`` (pair): ``delta``; ``drift`` from weights and gradients; ``identity``, the right side of (2); their
    ``difference``, and ``roundoff``, the size below which a difference means nothing. ``refused`` says for all other
    layers why they form no pair with the one below.
    """

    def __init__(
        self, states: Sequence[PairState], rates: Mapping[str, float], refused: Mapping[str, str]
    ) -> None:
        self.refused = dict(refused)
        self._states, self._rates = list(states), dict(rates)

    @property
    def pairs(self) -> list[str]:
        """The names of the pairs, from below to above."""
        return [state.name for state in self._states]

    @cached_property
    def data(self) -> xr.Dataset:
        """All scalars, by pair."""
        states = self._states
        # Which Δ it is, in words.
        about = [
            " ".join(f"{'+' if sign > 0 else '-'} |{name}|²" for name, sign in state.parts)
            for state in states
        ]
        drift = np.array([state.drift() for state in states])
        identity = np.array([state.identity() for state in states])
        variables = {
            "delta": [state.delta(self._rates) for state in states],
            "drift": drift,
            "identity": identity,
            "difference": drift - identity,
            "roundoff": [torch.finfo(state.z.dtype).eps * state.scale() for state in states],
        }
        return labelled(
            {name: ("pair", values) for name, values in variables.items()},
            {"meaning": "imbalance of layer norms under gradient flow, identity (2)"},
            pair=self.pairs,
            about=("pair", about),
        )

    def neurons(self, pair: str | int = 0) -> xr.Dataset:
        """The identity neuron by neuron: ‖column of W_{l+1}‖² - ‖row of W_l‖² drifts by 2E[p φ_σ(z)]."""
        found = self._matrices(pair)
        del found["printed"]
        found["delta"] = found.pop("value")
        diagonals = {name: ("unit", np.diagonal(matrix).copy()) for name, matrix in found.items()}
        return labelled(diagonals, unit=np.arange(len(found["delta"])))

    def matrix(self, pair: str | int = 0) -> xr.Dataset:
        """W_{l+1}ᵀW_{l+1} - W_lW_lᵀ and its drift, measured and by the identity, (unit_1, unit_2).

        The identity is E[(σ'p)zᵀ + z(σ'p)ᵀ - pσᵀ - σpᵀ]. ``printed`` is E[pφᵀ + φpᵀ] of Cor. 12: the two agree on the
        diagonal, and everywhere if σ' is constant, but not else; for ReLU only the diagonal is conserved.
        """
        found = self._matrices(pair)
        units = np.arange(len(found["value"]))
        variables = {name: ("unit_1 unit_2", matrix) for name, matrix in found.items()}
        return labelled(variables, unit_1=units, unit_2=units)

    def step(self, lr: float) -> xr.Dataset:
        """How a step of gradient descent changes Δ, exactly: lr (η) times the identity, and a part of order η²."""
        check_rate(lr)
        first = [lr * state.identity() for state in self._states]
        second = [lr**2 * state.second_order(self._rates) for state in self._states]
        return labelled({"first_order": ("pair", first), "second_order": ("pair", second)}, pair=self.pairs)

    def answer(self) -> Answer:
        """Every pair with its imbalance and drift, and why other layers form none."""
        largest = float(abs(self.data["difference"]).max())
        statement = (
            f"Imbalance of {len(self.pairs)} pairs of layers: the drift differs from the identity by at most "
            f"{largest:.1e}. Ask .neurons(pair), .matrix(pair), .step(lr)."
        )
        table = dataset_table(self.data, "pair", ["delta", "drift", "identity", "difference"])
        refused = "\n".join(f"no pair: {name}: {reason}" for name, reason in self.refused.items())
        return Answer(statement, [table, *([refused] if refused else []), self._figure], self.data)

    def _figure(self) -> Figure:
        figure = Figure("Imbalance of neighbouring layers", columns=2)
        for title, names in (("Imbalance", ["delta"]), ("Its drift", ["drift", "identity"])):
            panel = figure.panel(title, y=names_axis(self.pairs, reverse=True), legend="below")
            for number, name in enumerate(names):
                at = np.arange(len(self.pairs)) + 0.4 * (number - (len(names) - 1) / 2)
                label = name if len(names) > 1 else ""
                panel.bars(at, self.data[name].values, label, width=0.8 / len(names), horizontal=True)
        return figure

    def _matrices(self, pair: str | int) -> dict[str, Any]:
        if isinstance(pair, str):
            if pair not in self.pairs:
                raise unknown_name("`pair`", pair, self.pairs)
            pair = self.pairs.index(pair)
        if not -len(self._states) <= pair < len(self._states):
            raise InputError(f"pair is {pair}: there are pairs 0 to {len(self._states) - 1}.")
        state = self._states[pair]
        value, drift = (matrix.numpy() for matrix in state.weight_matrices(self._rates))
        identity, printed = (matrix.numpy() for matrix in state.matrix_identities())
        found = {"value": value, "drift": drift, "identity": identity, "difference": drift - identity}
        return found | {"printed": printed}


@on_free_cores()
def imbalance(
    model: nn.Module | Callable[..., Any],
    x: Any,
    y: Any,
    loss: Loss,
    rates: Mapping[str, float] | None = None,
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> Imbalance:
    """Δ = ‖W_{l+1}‖² - ‖W_l‖² of neighbouring layers, and its drift under gradient flow, measured and by (2).

    Parameters
    ----------
    model
        Any module, or with ``parameters`` a function of (parameters, x). Pairs are two linear maps or convolutions
        with nothing but an elementwise activation (any) and a reshape between them, and no other way out of the
        first; all other layers are listed in ``refused`` with the reason.
    loss
        loss(model(x), y), one number; any.
    rates
        ρ by parameter name for Ẇ = -ρ∇, one if not named; a bias that is not named takes the rate of its weight. Then
        Δ = ‖W_{l+1}‖²/ρ_{l+1} - ‖W_l‖²/ρ_l, and the drift is the same (A.2).
    pairs
        (lower weight, upper weight) by name, to insist on some; one that is no pair is an error that says why.

    A bias of the lower layer that learns belongs to Δ, as one more column of W_l; one of the upper layer does not
    matter. With a frozen bias b the identity holds for φ = (z - b)σ'(z) - σ(z).

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    >>> x = torch.randn(20, 3, dtype=torch.float64)
    >>> found = imbalance(model, x, x[:, :1], nn.functional.mse_loss)
    >>> bool(abs(found.data["difference"][0]) < 1e-12)
    True
    """
    found = network(model, x, y, loss, parameters)
    chosen, refused = _chosen(*find_pairs(found), pairs)
    states = pair_states(found, chosen)
    return Imbalance(states, _rates(states, rates, found.parameters), refused)


def observe_imbalance(model: nn.Module, batch: Any, *, loss: Loss) -> xr.Dataset:
    """Δ, drift and identity of all pairs on a batch (x, y): an observable for a recorder of trainings."""
    x, y = _inputs_and_targets(batch)
    return imbalance(model, x, y, loss).data[["delta", "drift", "identity"]]


def record_imbalance(
    model: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    loss: Loss,
    lr: float,
    rates: Mapping[str, float] | None = None,
) -> xr.Dataset:
    """Descend with a copy of the model, one step of ``lr`` (η) for each batch, and hold every Δ against the identity.

    By (step, pair): ``delta``; ``change`` since the start, as measured; ``first_order``, the sum of η times the
    identity; ``second_order``, the sum of η²(ρ_{l+1}‖∇_{l+1}‖² - ρ_l‖∇_l‖²); ``difference``, what is left: round-off.
    """
    check_rate(lr)
    moved = copy.deepcopy(model)
    pairs: list[Pair] | None = None
    rows: list[
        list[list[float]]
    ] = []  # by step: Δ before and after it, and both orders of its change, of all pairs
    for batch in track(batches, "training steps"):
        found = network(moved, *_inputs_and_targets(batch), loss, None)
        if pairs is None:
            pairs, _ = _chosen(*find_pairs(found), None)
        states = pair_states(found, pairs)
        given = _rates(states, rates, found.parameters)
        before = [state.delta(given) for state in states]
        first = [lr * state.identity() for state in states]
        second = [lr**2 * state.second_order(given) for state in states]
        with torch.no_grad():
            for name, gradient in states[0].gradients.items():
                found.parameters[name].sub_(lr * given[name] * gradient)
            after = [replace(state, values=found.parameters).delta(given) for state in states]
        rows.append([before, after, first, second])
    if pairs is None:
        raise InputError("there are no batches: give at least one (x, y).")
    table = np.array(rows)  # (step, what, pair)
    start = table[0, 0]
    delta = np.vstack([start, table[:, 1]])
    first_order, second_order = (np.vstack([0 * start, np.cumsum(table[:, i], axis=0)]) for i in (2, 3))
    variables = {
        "delta": delta,
        "change": delta - start,
        "first_order": first_order,
        "second_order": second_order,
        "difference": delta - start - first_order - second_order,
    }
    by_pair = {name: ("step pair", values) for name, values in variables.items()}
    return labelled(by_pair, {"lr": lr}, step=np.arange(len(delta)), pair=[pair.name for pair in pairs])


def _chosen(
    found: list[Pair], refused: dict[str, str], asked: Sequence[tuple[str, str]] | None
) -> tuple[list[Pair], dict[str, str]]:
    if asked is not None:
        by_name = {pair.name: pair for pair in found}
        for lower, upper in asked:
            if f"{lower} -> {upper}" not in by_name:
                reason = refused.get(upper, f"{upper} is not a layer that takes the output of {lower}")
                raise NotSupportedError(f"{lower} and {upper} are no pair of the identity: {reason}.")
        return [by_name[f"{lower} -> {upper}"] for lower, upper in asked], refused
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise NotSupportedError(f"no two layers of the model form a pair of the identity ({reasons}).")
    return found, refused


def _rates(
    states: Sequence[PairState], rates: Mapping[str, float] | None, parameters: Mapping[str, Tensor]
) -> dict[str, float]:
    given = dict(rates or {})
    unknown = sorted(set(given) - set(parameters))
    if unknown or any(not rate > 0 for rate in given.values()):
        raise InputError(
            f"`rates` must be positive and named after parameters{': unknown ' + str(unknown) if unknown else ''}."
        )
    known = {name: float(given.get(name, 1.0)) for name in parameters}
    for state in states:
        for site in (state.lower, state.upper):
            if site.bias is not None and site.bias not in given:
                known[site.bias] = known[site.weight]
    return known


def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError("a batch must be a pair (x, y) of inputs and targets.")
    return batch[0], batch[1]
