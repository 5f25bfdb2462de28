"""Which parameters are read from a graph, by which way, and with which bias: the same for all chunks of samples.

The way that costs least is taken: Grams, sums over pairs of positions, or per-sample gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from math import prod
from typing import Literal

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.sites import UnreadableError
from foretrain.empirical.autograd_graph.structure import Block, Structure, analyse
from foretrain.empirical.autograd_graph.tape import Probe
from foretrain.empirical.tangent_kernel.capture import BlockCapture, FormedGradients, Key, Site

Way = Literal["gram", "pairs", "gradient", "sum", "derived", "per sample", "unused"]
Place = tuple[str, int | None]  # a parameter, and which part of it

# Relative agreement of a block's Gram with the gradient's length, on few samples.
_AGREES = {torch.float64: 1e-8, torch.float32: 2e-3}
_CHANGES = "the graph changes with the samples"
# Flops of small or strided products take longer than those of one large matrix product.
_FORMING = 1.5
_PAIRING = 1.2
_CARRYING = 1.7
_LARGE = 1024
_FLOPS_PER_ENTRY = 60.0  # that a machine does while it moves one number to memory and back


@dataclass(frozen=True, eq=False)
class Counted:
    """The parameters that count, with the rate of each and the label under which its contribution is summed."""

    parameters: Mapping[str, Tensor]
    rates: Mapping[str, float]
    labels: Mapping[str, str]

    @cached_property
    def dtype(self) -> torch.dtype:
        """That of the kernel: the widest of the parameters, single at least, which sums of many products need."""
        return reduce(torch.promote_types, (value.dtype for value in self.parameters.values()), torch.float32)


@dataclass(frozen=True)
class Share:
    """A block of parameters, the way it takes, and which bias goes with it."""

    block: Block
    way: Way
    counted: Counted
    bias: str | None = None
    piece: int | None = None  # which part of a parameter that is used in parts
    late: bool = False  # per-sample gradients are formed when they are multiplied

    @property
    def keeps_sensitivities(self) -> bool:
        """Whether the sensitivities of all outputs are kept, not gradients formed of them."""
        return self.way in ("gram", "pairs") or self.late

    @property
    def key(self) -> Key:
        """What tells the share from others in every chunk; a parameter comes first."""
        name = self.block.parameters[0]
        return (name,) if self.piece is None else (name, f"part {self.piece}")

    @property
    def place(self) -> tuple[str, int | None]:
        """The first parameter and which part of it."""
        return self.block.parameters[0], self.piece

    @property
    def parameters(self) -> tuple[str, ...]:
        """All parameters whose contribution is in the factor."""
        return self.block.parameters if self.bias is None else (*self.block.parameters, self.bias)

    def formed(self) -> list[tuple[Key, str, int]]:
        """Key, parameter and entries of all gradients that are formed."""
        parameters = self.counted.parameters
        if self.way in ("gram", "pairs"):
            return []
        if not self.block.direct and not self.late:
            return [((name,), name, parameters[name].numel()) for name in self.block.parameters]
        found: list[tuple[Key, str, int]] = []
        if not self.late:
            found.append((self.key, self.block.parameters[0], prod(self.block.sources[0].shape)))
        if self.bias is not None:
            found.append(((self.bias,), self.bias, parameters[self.bias].numel()))
        return found


@dataclass(frozen=True)
class Route:
    """How the contribution of a parameter is found."""

    way: Way
    note: str = ""

    def __str__(self) -> str:
        return f"{self.way}: {self.note}" if self.note else self.way


@dataclass(frozen=True)
class Job:
    """How large the kernel is: samples, outputs, and whether outputs are summed."""

    rows: int  # samples of x
    columns: int  # samples of x2
    outputs: int
    trace: bool
    symmetric: bool

    @property
    def pairs(self) -> float:
        """Pairs of samples to be computed."""
        return self.rows * (self.rows + 1) / 2 if self.symmetric else float(self.rows * self.columns)

    @property
    def is_large(self) -> bool:
        """Whether a chunk meets so many samples that it pays to look at it more closely."""
        return min(self.rows, self.columns) >= _LARGE

    @property
    def samples(self) -> int:
        """Samples whose gradients are needed."""
        return self.rows if self.symmetric else self.rows + self.columns


def costs(job: Job, site: Site) -> dict[Way, float]:
    """Multiplications and additions by each way, weighted by how fast they run, and the numbers it moves."""
    g, p, q, t, c = site.groups, site.p, site.q, site.positions, job.outputs
    across = c if job.trace else c * c  # products of two samples' gradients
    width = min(p, job.samples * t) if site.is_table else p  # rows of a table that are looked up
    forming = 1 if site.is_table else 2 * p
    gradient = _FORMING * job.samples * g * c * t * forming * q + job.pairs * 2 * g * across * width * q
    gradient += _FLOPS_PER_ENTRY * job.samples * g * c * width * q
    activity = t * t * (1 if site.is_table else p)
    if t == 1 and not site.is_table:
        rows = 1 if job.trace else c * c
        # Tiles stay in the cache.
        gram = job.pairs * (2 * g * (p + across * q) + _FLOPS_PER_ENTRY / 10 * rows)
        return {"gram": gram, "gradient": gradient}
    pairs = _PAIRING * job.pairs * 2 * g * (activity + t * t * c * q)
    if across > c:  # outputs are rows: sensitivities are carried from one sample's positions to the other's
        pairs *= _CARRYING
        pairs += job.pairs * g * t * c * q * (2 * c + _FLOPS_PER_ENTRY)
    else:
        pairs += _FLOPS_PER_ENTRY * job.pairs * g * t * t / 4
    return {"pairs": pairs, "gradient": gradient}


def cheapest(job: Job, site: Site) -> Way:
    """The way that costs least."""
    found = costs(job, site)
    return min(found, key=found.__getitem__)


class GraphChangedError(Exception):
    """A chunk's graph treats parameters differently from those before.

    ``unreadable`` must go sample by sample then, ``by_gradient`` by per-sample gradients, which suit any graph.
    """

    def __init__(self, unreadable: Iterable[str] = (), by_gradient: Iterable[str] = ()) -> None:
        super().__init__(_CHANGES)
        self.unreadable, self.by_gradient = frozenset(unreadable), frozenset(by_gradient)


@dataclass(frozen=True)
class Plan:
    """What is done for all graphs of one shape.

    ``trusted``: the graph is that of other numbers of samples too, so that no loop over samples can have put them in
    another order this time.
    """

    structure: Structure
    shares: Sequence[Share]
    sites: Mapping[Place, Site]
    trusted: bool = False


@dataclass
class Planner:
    """Makes plans that go together: a parameter takes the same way in all of them."""

    counted: Counted
    job: Job
    distrusted: set[str] = field(default_factory=set)  # go sample by sample
    by_gradient: set[str] = field(default_factory=set)
    _settled: dict[Place, Share] = field(default_factory=dict)
    _read: set[str] = field(default_factory=set)

    def plan(self, probe: Probe) -> Plan:
        """Sources, uses and ways of all parameters; those that cannot be read go sample by sample."""
        trusted = {n: value for n, value in self.counted.parameters.items() if n not in self.distrusted}
        structure = analyse(probe.tape, trusted, probe)
        structure.unreadable |= dict.fromkeys(self.distrusted & probe.tape.leaves.keys(), _CHANGES)
        sites: dict[Place, Site] = {}
        candidates: list[list[Share]] = []
        by_parameters: dict[tuple[str, ...], list[Block]] = {}
        for block in structure.blocks:
            by_parameters.setdefault(block.parameters, []).append(block)
        for names, blocks in by_parameters.items():
            try:
                candidates.append(self._shares(blocks, probe, sites))
            except UnreadableError as reason:
                structure.unreadable |= dict.fromkeys(names, str(reason))
        # Those whose reading gives the right gradients; where the nodes say how the samples lie, no proof is needed.
        unsure = [shares for shares in candidates if not _is_clear(shares, probe)]
        names_unsure = [name for shares in unsure for name in shares[0].block.parameters]
        lengths = probe.squared_lengths(names_unsure) if unsure else {}
        wrong = [shares for shares in unsure if not self._agree(shares, probe, lengths)]
        for shares in wrong:
            reason_given = "reading it from the graph does not give its gradients"
            structure.unreadable |= dict.fromkeys(shares[0].block.parameters, reason_given)
        kept = [share for shares in candidates if shares not in wrong for share in shares]
        return self._settle(Plan(structure, self._with_biases(kept, structure), sites))

    def react(self, change: GraphChangedError) -> None:
        """Remember what cannot be treated as it was, and start afresh."""
        new = (change.unreadable - self.distrusted) | (change.by_gradient - self.by_gradient)
        self.distrusted |= change.unreadable if new else set(self.counted.parameters)
        self.by_gradient |= change.by_gradient
        self._settled.clear()
        self._read.clear()

    def _shares(self, blocks: Sequence[Block], probe: Probe, sites: dict[Place, Site]) -> list[Share]:
        found = []
        for number, block in enumerate(blocks):
            trial = Share(block, "gradient", self.counted)
            collectors = BlockCapture(probe.tape, trial, probe.samples, 1).collected
            way: Way = "gradient"
            site = None
            if not block.direct:
                way = "derived"
            elif len(collectors) == 1 and isinstance(collectors[0], FormedGradients):
                site = collectors[0].site
                if not self.by_gradient & {*block.parameters}:
                    way = cheapest(self.job, site)
            elif len(collectors) == 1:
                way = "sum"
            piece = number if len(blocks) > 1 else None
            late = way == "gradient" and site is not None and site.forms_late
            found.append(Share(block, way, self.counted, piece=piece, late=late))
            if site is not None:
                sites[found[-1].place] = site
        return found

    def _agree(self, shares: Sequence[Share], probe: Probe, lengths: Mapping[str, float]) -> bool:
        """Whether the samples' Gram from the graph gives the length of the parameters' gradient.

        With sample n weighted by w_n, the squared length of the gradient is the sum of w_n w_m K_nm.
        """
        found = probe.tape.outputs.new_zeros(probe.samples, probe.samples, dtype=self.counted.dtype)
        for share in shares:
            capture = BlockCapture(probe.tape, share, probe.samples, 1)
            probe.see(edge for collector in capture.collected for edge in collector.edges)
            for collector in capture.collected:
                collector.take(0, [probe.plain[edge] for edge in collector.edges])
            for factor in capture.factors(trace=False).values():
                factor.accumulate(found, slice(0, probe.samples), factor, slice(0, probe.samples))
        expected = 0.0
        precision = _AGREES.get(found.dtype, 0.1)
        for name in shares[0].block.parameters:
            precision = max(precision, _AGREES.get(self.counted.parameters[name].dtype, 0.1))
            expected += lengths[name] * self.counted.rates[name]
        for share in shares:
            for source in share.block.sources:
                for use in source.uses:
                    precision = max(precision, _AGREES.get(probe.tape.dtype_at((use.node, 0)), 0.1))
        weights = probe.weights.to(found.dtype)
        scale = float((found.diagonal() * weights**2).sum())
        difference = abs(float(weights @ found @ weights) - expected)
        # Beside the longest gradient, that of a parameter without influence is rounding and proves nothing.
        rounding = torch.finfo(probe.tape.outputs.dtype).eps * max(lengths.values())
        return difference <= precision * max(scale, expected) + rounding

    def _with_biases(self, shares: Sequence[Share], structure: Structure) -> list[Share]:
        """A bias joins the weight of its product where that is cheaper, if both have the same label."""
        way = {share.block.parameters[0]: share.way for share in shares if share.block.direct}
        joined = {
            weight: bias
            for weight, bias in structure.bias_of.items()
            if way.get(weight) in ("gram", "gradient")
            and bias in way
            and self.counted.labels[weight] == self.counted.labels[bias]
        }
        return [
            replace(share, bias=joined.get(share.block.parameters[0]))
            for share in shares
            if share.block.parameters[0] not in joined.values()
        ]

    def _settle(self, plan: Plan) -> Plan:
        """Take the ways of earlier plans, or find that this graph does not go with them."""
        lost = self._read & {*plan.structure.unreadable}
        if lost:
            raise GraphChangedError(unreadable=lost)
        shares = []
        for share in plan.shares:
            known = self._settled.setdefault(share.place, share)
            mine, its = share.block, known.block
            # Whether the factors of both graphs can be multiplied.
            alike = (mine.parameters, mine.direct, share.bias) == (its.parameters, its.direct, known.bias)
            layouts = [[source.made for source in block.sources] for block in (mine, its)]
            if not alike or (mine.direct and layouts[0] != layouts[1]):
                raise GraphChangedError(unreadable={*share.parameters, *known.parameters})
            site = plan.sites.get(share.place)
            if known.way == "gram" and site is not None and site.positions > 1:
                raise GraphChangedError(by_gradient=share.block.parameters)
            shares.append(replace(share, way=known.way, late=known.late))
            self._read |= {*share.parameters}
        self.distrusted |= {*plan.structure.unreadable}
        return replace(plan, shares=shares)

    def small_gradients(self, plan: Plan, largest: int) -> dict[str, dict[Key, int]]:
        """By label: which formed gradients are small, and their entries."""
        found: dict[str, dict[Key, int]] = {}
        for share in plan.shares:
            for key, name, entries in share.formed():
                if entries <= largest:
                    found.setdefault(self.counted.labels[name], {})[key] = entries
        return found


def _is_clear(shares: Sequence[Share], probe: Probe) -> bool:
    """Whether parameters are used as they are, or rows of them, where it is certain how the samples lie."""
    names, sources = probe.tape.names, [source for share in shares for source in share.block.sources]
    rows = all(names[node].startswith("Embedding") for source in sources for node, _ in source.edges)
    if not rows and not all(share.block.direct for share in shares):
        return False
    uses = [use for source in sources for use in source.uses]
    if all((use.node, 0) in probe.known for use in uses):
        return True
    # A plain linear layer, of which no other reading fits.
    return shares[0].block.parameters[0] in probe.tape.linear_weights and uses[0].axis.certain


def routes(plan: Plan, distrusted: Set[str]) -> dict[str, Route]:
    """Which way each parameter takes, in words."""
    found: dict[str, Route] = {}
    for share in plan.shares:
        uses = sum(len(source.uses) for source in share.block.sources)
        note = "" if uses == 1 else f"{uses} uses"
        if (site := plan.sites.get(share.place)) is not None:
            groups = "" if site.groups == 1 else f" in {site.groups} groups"
            where = f"{site.p} x {site.q}{groups}, {site.positions} position{'s' * (site.positions > 1)}"
            note = f"{where} in {note}" if note else where
        route = Route(share.way, note)
        found |= dict.fromkeys(share.block.parameters, route)
        if share.bias is not None:
            found[share.bias] = Route(share.way, f"with {share.block.parameters[0]}")
    for name in plan.structure.unused:
        found[name] = Route("unused", "the output does not depend on it")
    for name in {name for names in plan.structure.silent.values() for name in names} - {*found}:
        found[name] = Route("unused", "no gradient arrives where it is used")
    for name in distrusted:
        found[name] = Route("per sample", plan.structure.unreadable.get(name, _CHANGES))
    return found
