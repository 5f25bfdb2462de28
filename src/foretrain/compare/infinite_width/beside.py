"""Kernels of infinite width beside those of networks drawn again and again, entry by entry, with a verdict.

Entries are extrapolated to infinite width from several widths (see :mod:`foretrain.compare.reinitialised`). Entries
of one ensemble are correlated, so the verdict rests on uncorrelated combinations of them as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import nn

from foretrain.compare.ensemble_statistics import EnsembleStatistics
from foretrain.compare.infinite_width import InfiniteWidth, Network, computed, of_module
from foretrain.compare.judging.agreement import Judgement, decorrelated, judge
from foretrain.compare.judging.ladder import BatchValues, Extrapolated
from foretrain.compare.reinitialised import Quantity, ensemble
from foretrain.support.answers import Answer, Column, Figure, Result, Table
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, kept_random_states, spawn

FloatArray = NDArray[np.float64]
_BATCHES = 32
_KERNELS: tuple[Quantity, ...] = ("nngp", "ntk")
_SHOWN = 12


@dataclass(frozen=True, eq=False, repr=False)
class WidthComparison(Extrapolated, Result):
    """Theory at infinite width, networks of several widths, and how far they are apart."""

    theory: InfiniteWidth
    entries: tuple[tuple[str, int, int], ...]  # kernel, first and second input
    widths: tuple[int, ...]
    draws: int  # of each width
    batches: tuple[BatchValues, ...]  # by width

    @cached_property
    def predicted(self) -> FloatArray:
        """What the theory says, by entry."""
        return np.array([float(getattr(self.theory, name)[a, b]) for name, a, b in self.entries])

    @cached_property
    def predicted_error(self) -> FloatArray:
        """Standard errors of what the theory sampled."""
        errors = self.theory.standard_error
        return np.array([0.0 if errors is None else float(errors[name][a, b]) for name, a, b in self.entries])

    @property
    def inverse_widths(self) -> FloatArray:
        """1/n of every width, in units of the narrowest."""
        return np.asarray(min(self.widths) / np.array(self.widths))

    @cached_property
    def errors(self) -> FloatArray:
        """Standard errors of limit minus theory, by entry."""
        return np.sqrt(np.diagonal(self._spread))

    @cached_property
    def _spread(self) -> FloatArray:
        """Covariance of the limits, and what the theory sampled."""
        return self.covariance + np.diag(self.predicted_error**2)

    @cached_property
    def z(self) -> FloatArray:
        """(limit - theory) / standard error, by entry; 0 where nothing fluctuates and both are equal."""
        deviation = self.errors
        apart = self.limit - self.predicted
        still = deviation <= 1e-9 * np.abs(self.predicted)
        equal = np.abs(apart) <= 1e-6 * np.abs(self.predicted)
        return np.where(still, np.where(equal, 0.0, np.inf), apart / np.where(still, 1.0, deviation))

    @cached_property
    def judgement(self) -> Judgement:
        """The numbers on which the verdict rests."""
        moving = self.errors > 1e-9 * np.abs(self.predicted)
        freedom = _BATCHES - 1.0
        inside = self._spread[np.ix_(moving, moving)]
        return judge([(self.z[moving], decorrelated(self.z[moving], inside, freedom))])

    @property
    def agrees(self) -> bool:
        """Whether the z-scores are within their bounds."""
        return self.judgement.agrees and bool(np.isfinite(self.z).all())

    def to_xarray(self) -> xr.Dataset:
        """Every number, by entry and width."""
        names = [f"{name}[{a},{b}]" for name, a, b in self.entries]
        return xr.Dataset(
            {
                "theory": ("entry", self.predicted),
                "theory_error": ("entry", self.predicted_error),
                "limit": ("entry", self.limit),
                "limit_error": ("entry", self.errors),
                "z": ("entry", self.z),
                "measured": (("width", "entry"), self.measured),
                "measured_error": (("width", "entry"), self.measured_error),
            },
            {"entry": names, "width": list(self.widths)},
        )

    @property
    def verdict(self) -> str:
        """One sentence."""
        word = "agree with" if self.agrees else "differ from"
        widths = ", ".join(map(str, self.widths))
        return (
            f"{self.draws} networks of each width {widths}, extrapolated, {word} infinite width: "
            f"{self.judgement.text(bool(np.isfinite(self.z).all()))}."
        )

    def answer(self) -> Answer:
        """The verdict, the entries, and a picture."""
        columns = [Column(word) for word in ("entry", "theory", "networks, limit", "±", "z")]
        rows = [
            (f"{name}[{a},{b}]", theory, limit, error, z)
            for (name, a, b), theory, limit, error, z in zip(
                self.entries, self.predicted, self.limit, self.errors, self.z
            )
        ]
        return Answer(
            self.verdict,
            [Table(columns, rows), self._figure, self.theory.reading],
            self.to_xarray,
            holds=self.agrees,
        )

    def _figure(self) -> Figure:
        figure = Figure("Networks beside infinite width", columns=2)
        across = 1 / np.array(self.widths)
        for kernel in _KERNELS:
            panel = figure.panel(x="1 / width", y=kernel.upper())
            chosen = [k for k, entry in enumerate(self.entries) if entry[0] == kernel][:_SHOWN]
            for k in chosen:
                _, a, b = self.entries[k]
                panel.curve(
                    across, self.measured[:, k], "o", f"inputs {a}, {b}", error=self.measured_error[:, k]
                )
                panel.curve([0.0], [self.predicted[k]], "x")
            panel.level(x=0.0, label="infinite width, theory")
        return figure


def compare_infinite_width(
    make: Callable[[int], nn.Module],
    x: Any,
    *,
    draws: int = 320,
    widths: Sequence[int] | None = None,
    init: Any = "module",
    rates: Any = "ntk",
    seed: Seed = 0,
) -> WidthComparison:
    """Kernels of infinite width of any module beside those of finite networks drawn anew.

    ``make(width)`` builds the network; ``widths`` are three or more; ``draws`` of each width are rounded up to 32
    batches of two or more. ``init`` and ``rates`` as in ``infinite_width``: networks are measured with the rates that
    the theory has.
    """
    if isinstance(make, nn.Module) or not callable(make):
        raise InputError(
            "a comparison draws networks of several widths: give a function make(width) that builds one."
        )
    sizes = tuple(sorted({whole_number("widths", one, least=1) for one in (widths or (32, 64, 128))}))
    if len(sizes) < 2:
        raise InputError("`widths` must hold two or more different numbers, from narrow to wide.")
    network = of_module(make, x, None, init, rates, None, sizes[:2])
    theory = computed(network, seed=seed)
    if theory.nngp.ndim > 2:
        raise InputError("the output keeps positions: compare a model that picks or averages them.")
    count = theory.nngp.sizes["input_1"]
    entries = tuple((name, a, b) for name in _KERNELS for a in range(count) for b in range(a, count))
    per_batch = max(2, -(-whole_number("draws", draws, least=2) // _BATCHES))
    own_rates = network_rates(network, make, sizes, x, rates)
    found = [
        ensemble(
            make,
            x,
            draws=per_batch,
            widths=sizes,
            quantities=_KERNELS,
            rates=own_rates,
            seed=own,
        )
        for own in spawn(seed, _BATCHES)
    ]
    batches = tuple(BatchValues(_values(found, width, entries)) for width in sizes)
    return WidthComparison(theory, entries, sizes, per_batch * _BATCHES, batches)


def _values(
    found: Sequence[EnsembleStatistics], width: int, entries: Sequence[tuple[str, int, int]]
) -> FloatArray:
    """(batches, entries)."""
    kernels = [{str(name): getattr(one, name).sel(width=width).values for name in _KERNELS} for one in found]
    return np.array([[one[name][a, b] for name, a, b in entries] for one in kernels])


def network_rates(
    network: Network, make: Callable[[int], nn.Module], widths: Sequence[int], x: Any, rates: Any
) -> Callable[[nn.Module], dict[str, float]]:
    """A function of a finite network: the rates lambda / fan-in with which it has the kernel of the theory.

    Fan-ins at each width are read from a network of this width, as those of the theory are; its laws do not matter.
    """
    any_law = {"*": (1.0, 1.0)}
    found: dict[Any, dict[str, float]] = {}
    for width in widths:
        with kept_random_states():
            model = make(width)
        fan_ins = of_module(model, x, None, any_law, rates, None, known=network.wide).learning
        found[_shapes(model)] = {
            name: network.learning[name][0] / fan_ins[name][1] if name in network.learning else 0.0
            for name, _ in model.named_parameters()
        }
    return lambda model: found[_shapes(model)]


def _shapes(model: nn.Module) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(parameter.shape) for parameter in model.parameters())
