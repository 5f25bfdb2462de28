"""Whether all layers take part in learning: their shares of the tangent kernel (Roberts & Yaida, section 9.4).

A step of descent changes the outputs by the sum over parameters of rate x tangent kernel; the trace of each term over
outputs and samples is that parameter's share. The equivalence principle asks that layers have equal ones. Weight
matrices are judged; biases and other vectors are told apart.

Data: ``share`` (parameter), at the given rates, adding up to 1; ``share_at_equal_rates`` (parameter); ``kind``
(parameter), "weight" or "other"; ``relative`` (layer), a weight's share over the mean of all weights;
``theory_share`` (layer), the same at equal rates by (9.28), for models that are an MLP. Attribute: ``samples``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.doctor.finding import (
    Examination,
    Finding,
    Severity,
    Treatment,
    all_of,
    dictionary_code,
    number_of,
)
from foretrain.doctor.mlp_chain import chain_of
from foretrain.doctor.setup import Case
from foretrain.doctor.stability import edge
from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.empirical.tangent_kernel import ntk
from foretrain.support.answers import labelled
from foretrain.support.errors import ForetrainError, NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import torch_generator
from foretrain.theory.ntk_shares import contributions, diagonal

Array = NDArray[np.float64]

_SOURCE = "Roberts & Yaida, section 9.4 (equivalence principle) and (9.28)"
_ENTRIES, _SAMPLES = 512, 48  # samples x outputs that the traces are taken over
_MANY_PARAMETERS = 10**6  # from which on traces are estimated, as for more outputs
_PROBES = 8  # of such traces: they are known to about a tenth
_STARVED = 1e-3  # of an equal share: where a small rate is why
# Where the network is why; usual initialisations of up to eight layers of relu, tanh, gelu stay above.
_VANISHING = 1e-4
# Of all weights: one layer learns for all, which is common at the end of networks, and trains.
_DOMINANT = 0.99
_BOUND = 1e4  # of the factors on rates that make shares equal
_SHARE = 0.5  # of the largest stable rate


@dataclass(frozen=True, eq=False)
class _Shares:
    """Traces by parameter at equal rates, and what the rates make of them."""

    names: tuple[str, ...]
    traces: Array
    rates: Array
    is_weight: NDArray[np.bool_]
    samples: int

    @property
    def shares(self) -> Array:
        """At the given rates; of all."""
        return _normed(self.traces * self.rates)

    @property
    def relative(self) -> Array:
        """A weight's share over that of the mean weight, at the given rates."""
        return _relative((self.traces * self.rates)[self.is_weight])

    @property
    def numbers(self) -> dict[str, float]:
        """The extremes of these."""
        return {"smallest": float(self.relative.min()), "largest": float(self.relative.max())}

    @property
    def natural(self) -> Array:
        """The same at equal rates."""
        return _relative(self.traces[self.is_weight])

    @property
    def is_silent(self) -> NDArray[np.bool_]:
        """Weights between zeros, which no rate can wake: a layer that starts from zero, inputs that are none."""
        return np.asarray(self.traces[self.is_weight] <= 1e-30 * self.traces.max())

    @property
    def weights(self) -> tuple[str, ...]:
        """Names of the weight matrices."""
        return tuple(name for name, weight in zip(self.names, self.is_weight) if weight)


def check(case: Case) -> Examination:
    """Shares of all weight matrices against equal ones."""
    rates = case.recipe.rates
    samples = max(2, min(_SAMPLES, _ENTRIES // max(1, case.outputs_per_sample)))
    x = case.chosen(samples).x
    exact = samples > 2 and case.setup.trained_parameters <= _MANY_PARAMETERS
    names, traces = _exact_traces(case, x) if exact else _estimated_traces(case, x)
    is_weight = np.array([case.model.get_parameter(name).ndim >= 2 for name in names])
    if not traces.sum() > 0:
        raise NotSupportedError("no trained parameter changes the outputs: there are no shares of learning.")
    if is_weight.sum() < 2:
        raise NotSupportedError("fewer than two weight matrices are trained: there is nothing to share.")
    seen = _Shares(names, traces, np.array([rates[name] for name in names]), is_weight, len(x))
    finding = _by_rates(case, seen) if case.recipe.is_adaptive else _by_shares(case, seen)
    theory = None  # by (9.28), where lambda_W = n_{l-1} for equal rates
    try:
        chain = chain_of(case)
        if chain.whole and tuple(f"{name}.weight" for name in chain.names) == seen.weights:
            terms = contributions(chain.mlp, diagonal(chain.mlp, chain.inputs).factors)[:, 1].mean(1)
            theory = _relative(terms / np.asarray(chain.mlp.lambda_W) * np.asarray(chain.widths[:-1]))
    except ForetrainError:
        pass
    data = {
        "share": ("parameter", seen.shares),
        "share_at_equal_rates": ("parameter", _normed(seen.traces)),
        "kind": ("parameter", np.where(seen.is_weight, "weight", "other")),
        "relative": ("layer", seen.relative),
        "theory_share": ("layer", theory),
    }
    places = {"parameter": list(seen.names), "layer": list(seen.weights)}
    return Examination((finding,), labelled(data, {"samples": seen.samples}, **places))


def _normed(values: Array) -> Array:
    return np.asarray(values / values.sum()) if values.sum() > 0 else np.zeros_like(values)


def _relative(values: Array) -> Array:
    return _normed(values) * len(values)


def _by_rates(case: Case, seen: _Shares) -> Finding:
    """Optimizers that divide gradients by their size make layers move by their rates, whatever their shares."""
    rates = seen.rates[seen.is_weight]
    low, kind = rates < _STARVED * seen.rates.max(), case.recipe.kind.__name__
    if not low.any():
        return _fair(seen, f"{kind} divides gradients by their size, so that small shares learn too. ")
    title = (
        f"{_some(low.sum(), len(rates))} hardly {'learns' if low.sum() == 1 else 'learn'}: rates are as small as "
        f"{rates.min() / seen.rates.max():.1g} of the largest."
    )
    evidence = (
        f"{kind} moves every parameter by about its rate in each step; these have rates of {rates[low].max():.1g} or "
        f"less beside {seen.rates.max():.1g}."
    )
    return _starved(title, evidence, _lifted(seen, low), seen, low)


def _exact_traces(case: Case, x: Any) -> tuple[tuple[str, ...], Array]:
    rates = case.recipe.rates
    with differentiable_kernels():
        kernel = ntk(case.model, x, outputs="trace", by="parameter", parameters=lambda name, _: name in rates)
    assert kernel.labels is not None  # by parameter
    return tuple(kernel.labels), np.array([float(part.diagonal().double().mean()) for part in kernel.values])


def _estimated_traces(case: Case, x: Any) -> tuple[tuple[str, ...], Array]:
    """Of many outputs: the mean square of J^T v for random signs v (Hutchinson 1990), one pass back for each."""
    weights = {name: p for name, p in case.model.named_parameters() if name in case.recipe.rates}
    source, traces = torch_generator(case.setup.seed), np.zeros(len(weights))
    with torch.enable_grad():
        outputs = case.model(x)
    for _ in track(range(_PROBES), "probes of the outputs"):
        signs = torch.randint(2, outputs.shape, generator=source).to(outputs) * 2 - 1
        slopes = torch.autograd.grad(
            outputs, list(weights.values()), signs, retain_graph=True, materialize_grads=True
        )
        traces += [float(slope.double().square().sum()) / _PROBES for slope in slopes]
    return tuple(weights), traces


def _by_shares(case: Case, seen: _Shares) -> Finding:
    relative, rates = seen.relative, seen.rates[seen.is_weight]
    by_rate = (relative < _STARVED) & (seen.natural > 10 * relative) & (rates < seen.rates.max())
    low = (by_rate | (relative < _VANISHING)) & ~seen.is_silent
    if not low.any():
        return _fair(seen)
    worst = int(np.argmin(relative))
    title = (
        f"{_some(low.sum(), len(relative))} hardly {'learns' if low.sum() == 1 else 'learn'}: "
        f"{seen.weights[worst]} has {relative[worst]:.1g} of an equal share."
    )
    why = f"rates are as small as {rates[low].min():.1g} beside {seen.rates.max():.1g}"
    evidence = (
        f"Of the change of the outputs in a step, on {seen.samples} samples, {_told(seen)}; "
        f"{why if by_rate.any() else 'rates are the same, so the network is why'}."
    )
    if by_rate.any():
        factors = _lifted(seen, by_rate)
    else:  # shares become equal, as far as factors are bounded, and their sum stays
        terms = (seen.traces * seen.rates)[seen.is_weight]
        equal = np.clip(terms.mean() / np.maximum(terms, 1e-300), 1 / _BOUND, _BOUND)
        equal[seen.is_silent] = 1.0
        equal *= terms.sum() / float(equal @ terms)
        factors = {name: float(f"{factor:.4g}") for name, factor in zip(seen.weights, equal)}
    # All rates are lowered where descent would come nearer to its edge than half of it, or than it is.
    recipe = case.recipe
    before, after = (edge(Case(case.setup.with_recipe(one))) for one in (recipe, recipe.scaled(factors)))
    highest = max(_SHARE, before.ratio)
    if not after.reason and after.ratio > highest:
        factors = {name: highest / after.ratio * factors.get(name, 1.0) for name in recipe.rates}
    return _starved(title, evidence, factors, seen, low)


def _starved(
    title: str, evidence: str, factors: dict[str, float], seen: _Shares, low: NDArray[np.bool_]
) -> Finding:
    code = [
        *dictionary_code("factors", (f"{name!r}: {factor!r}" for name, factor in factors.items())),
        "names = {id(p): name for name, p in model.named_parameters()}",
        "groups = [",
        '    {**group, "params": [p], "lr": group["lr"] * factors.get(names[id(p)], 1.0)}',
        "    for group in optimizer.param_groups",
        '    for p in group["params"]',
        "]",
        "optimizer = type(optimizer)(groups)",
    ]
    return Finding(
        Severity.WARNING,
        title,
        evidence,
        _SOURCE,
        "Give these weight matrices learning rates at which all layers change the outputs at one order.",
        "\n".join(code),
        Treatment("rates by layer", lambda setup: setup.with_recipe(setup.recipe.scaled(factors))),
        seen.numbers,
        tuple(name for name, small in zip(seen.weights, low) if small),
    )


def _lifted(seen: _Shares, low: NDArray[np.bool_]) -> dict[str, float]:
    """Factors that bring the rates of some weights, and rates of vectors that are as small, to the largest one."""
    chosen = ~seen.is_weight & (seen.rates < _STARVED * seen.rates.max())
    chosen[seen.is_weight] = low
    return {name: float(seen.rates.max() / r) for name, r, up in zip(seen.names, seen.rates, chosen) if up}


def _fair(seen: _Shares, prefix: str = "") -> Finding:
    relative = seen.relative
    count, largest = len(relative), float(relative.max() / len(relative))
    numbers = seen.numbers
    evidence = f"{prefix}Of the change of the outputs in a step, on {seen.samples} samples, {_told(seen)}."
    if seen.is_silent.any():
        silent = tuple(name for name, quiet in zip(seen.weights, seen.is_silent) if quiet)
        title = (
            f"{_some(len(silent), count)} {'changes' if len(silent) == 1 else 'change'} nothing yet: zeros come "
            "before or after."
        )
        return Finding(Severity.NOTE, title, evidence, _SOURCE, numbers=numbers, where=silent)
    if largest > _DOMINANT and count > 2:
        name = seen.weights[int(np.argmax(relative))]
        title = f"{name} does {largest:.1%} of what all weights do; the others follow slowly."
        return Finding(Severity.NOTE, title, evidence, _SOURCE, numbers=numbers, where=(name,))
    if relative.min() < _VANISHING:
        low = tuple(name for name, share in zip(seen.weights, relative) if share < _VANISHING)
        title = (
            f"{_some(len(low), count)} hardly {'changes' if len(low) == 1 else 'change'} the outputs yet: the least "
            f"has {relative.min():.1g} of an equal share."
        )
        return Finding(Severity.NOTE, title, evidence, _SOURCE, numbers=numbers, where=low)
    title = "The only weight matrix takes part in learning."
    if count > 1:
        every = all_of(count, "weight matrix", "weight matrices").capitalize()
        title = f"{every} take part in learning, the least {relative.min():.2g} of an equal share."
    return Finding(Severity.GOOD, title, evidence, _SOURCE, numbers=numbers)


def _some(part: int, count: int) -> str:
    return f"{part} of {number_of(count, 'weight matrix', 'weight matrices')}"


def _told(seen: _Shares) -> str:
    weights = seen.shares[seen.is_weight]
    least, most = int(np.argmin(weights)), int(np.argmax(weights))
    return (
        f"{seen.weights[most]} makes {weights[most]:.2g}, {seen.weights[least]} {weights[least]:.1g}, and biases and "
        f"other vectors {1 - weights.sum():.2g}"
    )
