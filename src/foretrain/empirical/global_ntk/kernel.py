"""The global-state NTK as an operator on the states of a model, with the parts it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.alignment import StateAlignment, alignment
from foretrain.empirical.global_ntk.dynamics import Dynamics, Site, places_of
from foretrain.empirical.global_ntk.parameter_shares import LossDecrease
from foretrain.empirical.global_ntk.ranks import RankBounds, rank_bounds
from foretrain.empirical.global_ntk.reduced_views import ReducedView, reduced_view
from foretrain.operators import Operator, Space, SumSpace, Vector, add, dense_operator, from_functions, lift
from foretrain.operators.linear_map import kind_of
from foretrain.operators.spaces import VectorSpace
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.summary import GlobalSummary

Flat = Callable[[Tensor], Tensor]
R = TypeVar("R")


class GlobalNTK(Operator):
    """NTK_S = J J* on the chosen states: one step of gradient descent changes them by -rate NTK_S err.

    ``P``, ``K``, ``J`` and ``sites`` act on the full state, which may hold more than the chosen states (the cell of
    an LSTM, lower layers): ``full`` is NTK_S on all of it.
    """

    def __init__(
        self, dynamics: Dynamics, members: Sequence[str] | None = None, *, side_by_side: bool = False
    ) -> None:
        """``members``: which of a direct sum of states, in this order; None for all.

        ``side_by_side`` makes one state of several with the same axes: their units stand beside each other.
        """
        self.dynamics = dynamics
        self.members = None if members is None else tuple(members)
        self._columns: list[slice] | None = None  # of the chosen members in the full state
        self._joined = False
        domain = dynamics.space
        if members is not None:
            if not isinstance(domain, SumSpace):
                raise InputError(
                    f"the states {domain.describe()} have one member: leave out which of them are meant."
                )
            for name in members:
                if name not in domain.names:
                    raise unknown_name("state", str(name), domain.names, "members")
            self._columns = [domain.slices[name] for name in members]
            several = SumSpace({name: domain[name] for name in members})
            domain = several[members[0]] if len(members) == 1 else several
        if side_by_side and isinstance(domain, SumSpace):
            first, *others = (member.plain("units side by side") for member in domain.members.values())
            if any(other != first for other in others):
                raise InputError(
                    f"the members of {domain.describe()} have different axes: they stay a direct sum."
                )
            *places, (name, units) = first.axes
            domain, self._joined = Space(*places, (name, units * len(domain.members))), True
        super().__init__(domain, positive=True, **kind_of(dynamics))
        self.flops = dynamics.flops

    def _apply(self, flat: Tensor) -> Tensor:
        return self._kept(_differentiating(self.dynamics.product)(self._embedded(flat)))

    @property
    def states(self) -> Vector:
        """The states themselves, as the model computes them."""
        return self.domain.unflatten(self._kept(self.dynamics.values[None])[0])

    @cached_property
    def full(self) -> Operator:
        """NTK_S on the full state."""
        return self if self.members is None else GlobalNTK(self.dynamics)

    @cached_property
    def P(self) -> Operator:
        """(D_h F)^-1: what a change added to the states does to all of them (6)."""
        own = self.dynamics
        return self._operator(own.space, own.propagate, own.propagate_adjoint)

    @cached_property
    def P_inverse(self) -> Operator:
        """D_h F: what has to be added to the states for all of them to change so."""
        own = self.dynamics
        return self._operator(own.space, own.constrain, own.constrain_adjoint)

    @property
    def structure(self) -> str:
        """In words: which states were taken, how they follow from each other, and so what P and K are."""
        return self.dynamics.structure

    @cached_property
    def P_core(self) -> Operator:
        """The lifted propagator (20) from products to states: sum_w P_w q_w of changes q_w added to products W v.

        NTK_S on the full state is P_core ``site_gram`` P_core*, where every parameter has a site.
        """
        sites, space = self.sites, self._space_of_sites

        def propagate(flat: Tensor) -> Tensor:
            parts = torch.split(flat, [site.space.size for site in sites.values()], 1)
            return sum((site.propagate(part) for site, part in zip(sites.values(), parts)), torch.zeros(()))

        def propagate_adjoint(flat: Tensor) -> Tensor:
            return torch.cat([site.propagate_adjoint(flat) for site in sites.values()], 1)

        forth, back = _differentiating(propagate), _differentiating(propagate_adjoint)
        return from_functions(space, self.dynamics.space, forth, back, **kind_of(self))

    @cached_property
    def site_gram(self) -> Operator:
        """The direct sum of V V* (x) I over the sites, on their products."""
        sites = self.sites

        def product(flat: Tensor) -> Tensor:
            parts = torch.split(flat, [site.space.size for site in sites.values()], 1)
            return torch.cat([site.gram_product(part) for site, part in zip(sites.values(), parts)], 1)

        return self._operator(self._space_of_sites, product, None)

    @property
    def _space_of_sites(self) -> SumSpace:
        if not self.sites:
            raise NotSupportedError(
                "no counted parameter acts by a matrix product: there are no weight sites."
            )
        return SumSpace({name: site.space for name, site in self.sites.items()})

    @cached_property
    def K(self) -> Operator:
        """D_theta f D_theta f*: what the parameters do to each state alone (6)."""
        return self._operator(self.dynamics.space, self.dynamics.local_product, None)

    @cached_property
    def J(self) -> Operator:
        """dh/dtheta, from the direct sum of the parameters to the full state."""
        shapes = {name: tuple(value.shape) for name, value in self.dynamics.parameters.items()}
        source = SumSpace(
            {
                name: Space(*((f"axis_{i}", size) for i, size in enumerate(shape)))
                for name, shape in shapes.items()
            }
        )

        @_differentiating
        def push(flat: Tensor) -> Tensor:
            parts = torch.split(flat, [source[name].size for name in shapes], 1)
            return self.dynamics.push(
                {name: part.reshape(-1, *shapes[name]) for name, part in zip(shapes, parts)}
            )

        @_differentiating
        def pull(flat: Tensor) -> Tensor:
            found = self.dynamics.pull(flat)
            return torch.cat([found[name].reshape(len(flat), -1) for name in shapes], 1)

        return from_functions(source, self.dynamics.space, push, pull, **kind_of(self))

    @cached_property
    def sites(self) -> Mapping[str, Site]:
        """Where weight matrices act, by the name of the weight (Thm 1); further parts of one have numbers."""
        found: dict[str, Site] = {}
        for site in self.dynamics.sites:
            name = site.parameters[0]
            before = sum(other.parameters[0] == name for other in found.values())
            found[f"{name} [{before}]" if before else name] = site
        return found

    @cached_property
    def terms(self) -> Mapping[str, Operator]:
        """The share of every weight site in NTK_S, P_w (V V* (x) I) P_w*, on the chosen states.

        Parameters that enter otherwise than by a matrix product share the last one, named "others".
        """
        others = self.without_site

        def product_of_others(flat: Tensor) -> Tensor:
            kept = {
                name: values if name in others else torch.zeros_like(values)
                for name, values in self.dynamics.pull(flat).items()
            }
            return self.dynamics.push(kept)

        products: dict[str, Flat] = {name: site.product for name, site in self.sites.items()}
        if others:
            products["others"] = product_of_others
        return {name: self._term(product) for name, product in products.items()}

    @property
    def without_site(self) -> tuple[str, ...]:
        """Counted parameters that enter otherwise than by a matrix product."""
        return self.dynamics.without_site

    @cached_property
    def core(self) -> Operator:
        """The direct sum over weight matrices: equal to NTK_S, made of the sites (Thm 1, sharpened)."""
        return add(*self.terms.values())

    @cached_property
    def concatenated_core(self) -> Operator:
        """The cheap proxy V V* (x) I with V the rows of all sites side by side: not equal to NTK_S."""
        kept = places_of(self.domain, "the concatenated core")
        rows = self.site_rows()
        if len(rows) != kept.size:
            raise NotSupportedError(
                f"the sites have {len(rows)} rows, the states {kept.size} places ({kept.describe()}): the "
                "concatenated core needs one row of every weight for each."
            )
        gram = dense_operator(rows @ rows.t(), kept, positive=True)
        return lift(gram, self.domain)

    def site_rows(self) -> Tensor:
        """V: the rows of all sites side by side, (batch * time, columns)."""
        rows = [self.sites[name].inputs for name in self._space_of_sites.names]
        counts = {len(part) for part in rows}
        if len(counts) > 1:
            raise NotSupportedError(
                f"the weight sites have different numbers of rows ({', '.join(map(str, sorted(counts)))}), which "
                "cannot stand side by side: choose weights of one kind with `parameters=`."
            )
        return torch.cat(rows, 1)

    def adjoint_state(self, err: Any) -> Vector:
        """P* err on the full state: back-propagation through time of the gradient at the chosen states."""
        return self.dynamics.space.unflatten(self.P.apply_adjoint(self._whole(err))[0])

    def loss_decrease(self, err: Any) -> LossDecrease:
        """<NTK_S err, err>, how fast gradient descent lowers the loss, and every parameter's part (Cor. 2)."""
        gradient = _differentiating(self.dynamics.pull)(self._whole(err))
        lengths = {
            name: float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
            for name, values in gradient.items()
        }
        return LossDecrease(lengths)

    def alignment(self, target: Any, readout: Any = None, **options: Any) -> StateAlignment:
        """Which modes of a target gradient descent can learn from here: see ``global_ntk.alignment``."""
        return alignment(self, target, readout, **options)

    def rank_bounds(self, err: Any, tolerance: float = 1e-8) -> RankBounds:
        """The rank of the states' change and the bounds on it (Prop. 2): see ``global_ntk.ranks``."""
        return rank_bounds(self, err, tolerance)

    def restrict_to(self, part: str | Tensor) -> Operator:
        """One of several states, by name, as a global-state NTK; or the entries of a mask."""
        if isinstance(part, str) and (self._joined or isinstance(self.domain, SumSpace)):
            return GlobalNTK(self.dynamics, [part])
        return super().restrict_to(part)

    def same_spectrum(self) -> Operator:
        """J* J on the parameters, where these are fewer than the states."""
        source = self.J.domain
        if source.size >= self.size:
            return self
        dynamics, shapes = (
            self.dynamics,
            {name: value.shape for name, value in self.dynamics.parameters.items()},
        )

        @_differentiating
        def product(flat: Tensor) -> Tensor:
            parts = torch.split(flat, [shape.numel() for shape in shapes.values()], 1)
            given = {name: part.reshape(-1, *shapes[name]) for name, part in zip(shapes, parts)}
            if self.members is None:
                found = dynamics.parameter_product(given)
            else:
                found = dynamics.pull(self._embedded(self._kept(dynamics.push(given))))
            return torch.cat([found[name].flatten(1) for name in shapes], 1)

        found = from_functions(source, None, product, positive=True, **kind_of(self))
        found.flops = self.flops
        return found

    def carried_back(self, vectors: Tensor) -> Tensor:
        """J u for eigenvectors u of J* J, where ``same_spectrum`` is that."""
        return vectors if self.J.domain.size >= self.size else self._kept(self.J.apply(vectors))

    def trace_by_structure(self, most_flops: float) -> tuple[float, int] | None:
        """The sum of the squared lengths of every sample's gradients, where samples do not meet in the states."""
        found = self.parameter_traces(most_flops)
        return None if found is None else (math.fsum(found[0].values()), found[1])

    def trace_draws(self, count: int, generator: torch.Generator) -> Tensor:
        """|J g|^2 for random directions g, (count, samples) where every sample has its own."""
        states = self._kept(self.dynamics.random_states(count, generator, by_sample=True))
        if not self.dynamics.draws_by_sample:
            return _squares(states)[:, None]
        members = self.domain.members.values() if isinstance(self.domain, SumSpace) else [self.domain]
        samples = next(iter(members)).plain("draws by sample")["batch"]
        parts = torch.split(states, [member.size for member in members], 1)
        return torch.stack([_squares(part.view(count, samples, -1)) for part in parts]).sum(0)

    def parameter_traces(self, most_flops: float) -> tuple[dict[str, float], int] | None:
        """tr(J_p J_p*) of every counted parameter and the sweeps it took; None where that is not affordable."""
        return self.dynamics.parameter_traces(self.members, most_flops)

    def temporal(self, *, accuracy: float = 0.02, seed: Seed = 0) -> ReducedView:
        """NTK_temp = tr_unit(NTK_S) / units (15), on all other axes; images have channels for units.

        A large one is made of random directions of the parameters, as many as its effective rank ``.rank`` needs for
        a relative standard error of ``accuracy``; ``.error`` is its own expected error. The exact one, whose products
        are dear, is ``partial_trace(over="unit", normalize=True, method="exact")``.
        """
        return reduced_view(self, "temporal", accuracy=accuracy, seed=seed)

    def spatial(self, *, accuracy: float = 0.02, seed: Seed = 0) -> ReducedView:
        """NTK_space = tr_(batch, time)(NTK_S) / (batch * time) (15), on the units, in the same way."""
        return reduced_view(self, "spatial", accuracy=accuracy, seed=seed)

    def answer(self) -> Answer:
        """Its states and parameters; nothing is computed, ``summary`` has the numbers."""
        count = len(self.dynamics.parameters)
        statement = (
            f"GlobalNTK on {self.domain.describe()}: {self.size} states, {count} parameter{'s' * (count != 1)}, "
            f"{self.dtype}".replace("torch.", "")
        )
        more = ".summary(y), which .plot() draws, has ranks, modes and weights; .alignment(y), .top_modes(k) and "
        more += ".partial_trace(over=...) ask for one of them, .P, .K, .J and .sites are its parts."
        parts = [self.structure, more]
        return Answer(statement, parts, self.to_xarray, super().answer().record)

    def summary(self, y: Any = None, readouts: Any = None, **options: Any) -> GlobalSummary:
        """What there is to know at a glance: see ``global_ntk.summary.global_summary``."""
        from foretrain.empirical.global_ntk.summary import global_summary

        return global_summary(self, y, readouts, **options)

    def plot(self, ax: Any = None, *, path: Any = None) -> Any:
        """Draw its summary, which is made for it."""
        return self.summary().plot(ax, path=path)

    def _whole(self, err: Any) -> Tensor:
        """A vector of the chosen states as one of the full state, (1, size)."""
        return self._embedded(self._flat_vector(err, self.domain))

    def _embedded(self, flat: Tensor) -> Tensor:
        """The chosen states among the full state, zeros elsewhere."""
        if self._columns is None:
            return flat
        if self._joined:  # units side by side go apart, one member after the other
            members = self.domain.unflatten_block(flat).chunk(len(self._columns), -1)
            flat = torch.cat([part.flatten(1) for part in members], 1)
        whole = flat.new_zeros(len(flat), self.dynamics.space.size)
        start = 0
        for columns in self._columns:
            width = columns.stop - columns.start
            whole[:, columns] = flat[:, start : start + width]
            start += width
        return whole

    def _kept(self, whole: Tensor) -> Tensor:
        if self._columns is None:
            return whole
        parts = [whole[:, columns] for columns in self._columns]
        if self._joined:
            *places, units = self.domain.plain("units side by side").shape
            shape = (len(whole), *places, units // len(parts))
            return torch.cat([part.view(shape) for part in parts], -1).flatten(1)
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _term(self, product: Flat) -> Operator:
        return self._operator(self.domain, lambda flat: self._kept(product(self._embedded(flat))), None)

    def _operator(self, space: VectorSpace, apply: Flat, adjoint: Flat | None) -> Operator:
        """An operator on the space; positive if it has no other adjoint."""
        return from_functions(
            space,
            space,
            _differentiating(apply),
            None if adjoint is None else _differentiating(adjoint),
            positive=adjoint is None,
            **kind_of(self),
        )


def _squares(rows: Tensor) -> Tensor:
    """Squared lengths along the last axis, in double precision."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=-1, dtype=torch.float64)
    return lengths.square()


def _differentiating(function: Callable[[Tensor], R]) -> Callable[[Tensor], R]:
    """Passes through a graph need tensors that inference mode does not make."""

    def called(flat: Tensor) -> R:
        with torch.inference_mode(False):
            return function(flat.clone() if flat.is_inference() else flat)

    return called
