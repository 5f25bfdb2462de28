"""From a model and a batch to factors: looks at a few samples first, then treats chunks of any size alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from foretrain.empirical.tangent_kernel.batches import Batch
from foretrain.empirical.tangent_kernel.capture import BlockCapture, Key, Share, backward_passes
from foretrain.empirical.tangent_kernel.collectors import FormedGradients
from foretrain.empirical.tangent_kernel.factors import Factor, Gradients
from foretrain.empirical.tangent_kernel.model import Model
from foretrain.empirical.tangent_kernel.per_sample import sample_gradients
from foretrain.empirical.tangent_kernel.refusals import (
    close,
    refuse_checkpoints,
    refuse_coupling,
    refuse_false_gradients,
    refuse_not_finite,
    refuse_random,
)
from foretrain.empirical.tangent_kernel.routes import Job, Route, Site, Way, cheapest
from foretrain.empirical.tangent_kernel.sites import UnreadableError
from foretrain.empirical.tangent_kernel.structure import Block, Probe, Structure, analyse
from foretrain.empirical.tangent_kernel.tape import Tape, read

Factors = dict[str, dict[Key, Factor]]  # by label, then by the parameters that they stand for

PROBE_SAMPLES = 3
_AGREES = {
    torch.float64: 1e-8,
    torch.float32: 2e-3,
}  # of a block's Gram with brute force, on the first samples
_FUSED = ("MkldnnRnnLayer", "CudnnRnn", "MiopenRnn")
_SMALL = 4096  # gradients with fewer entries are joined into one matrix
_ACTIVATIONS_HELD = 3.0  # arrays of the size of all activations during a backward pass


class GraphChangedError(Exception):
    """A chunk's graph is not built as that of the first samples: nothing read from it can be trusted."""


@dataclass(frozen=True)
class Plan:
    """What is done for all graphs of one shape.

    Only the plan of the first samples, met again with another number of samples, is trusted without a look: its
    graph does not depend on how many samples there are, so that no loop over samples can put them in another order.
    """

    structure: Structure
    shares: Sequence[Share]
    sites: Mapping[tuple[str, int | None], Site]


@dataclass(frozen=True)
class Bytes:
    """Memory per sample: what the factors keep, and what one pass holds while it runs."""

    factors: float
    passes: float


@dataclass
class Engine:
    """Chunks of samples in, factors out. ``labels``: parameters with the same label share a kernel."""

    model: Model
    parameters: Mapping[str, Tensor]
    rates: Mapping[str, float]
    job: Job
    outputs: Sequence[int]
    labels: Mapping[str, str]
    routes: dict[str, Route] = field(default_factory=dict)
    memory: Bytes = field(default_factory=lambda: Bytes(0, 0))
    reads_graph: bool = True
    _plans: dict[int, Plan] = field(default_factory=dict)
    _first: Plan | None = None
    _small: dict[str, dict[Key, int]] = field(
        default_factory=dict
    )  # by label: gradients to join, their entries

    def look(self, batch: Batch, outputs: Tensor) -> None:
        """Find out how the model is built from a few samples and their outputs, and check it there.

        Three backward passes see all of it: two tell the samples apart, and the gradients of the parameters in one
        of them must be those of the factors found.
        """
        tape = read(outputs)
        if any(name.startswith(_FUSED) for name in tape.names):
            self.model.unfused = True
            tape = read(self.model(batch))
        refuse_checkpoints(tape)
        refuse_false_gradients(tape)
        refuse_not_finite(tape.outputs)
        self._refuse_mixing(batch, tape.outputs)
        generator = torch.Generator().manual_seed(0)
        cotangent = torch.randn(outputs.shape, generator=generator, dtype=torch.float64).to(outputs)
        plan = self._plan(tape, Probe(tape, cotangent, lambda: self._moved(batch)))
        self._plans[tape.shape] = self._first = plan
        self._small = self._small_gradients(plan)
        self.routes = _routes(plan)
        self.memory = self._bytes(tape, plan)

    def _moved(self, batch: Batch) -> Tape | None:
        """The graph of the same samples with all parameters moved a little."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            moved = self.model.moved()
        return None if moved is None else read(moved(batch))

    def _refuse_mixing(self, batch: Batch, outputs: Tensor) -> None:
        """Fewer samples in another order must have the same outputs."""
        order = [1, 0]
        with torch.no_grad():
            if not close(outputs[order], again := self.model(batch.pick(order), differentiable=False)):
                refuse_random(outputs, self.model(batch, differentiable=False))
                refuse_coupling(outputs[order], again)

    def trust_nothing(self) -> None:
        """From now on all gradients are formed sample by sample."""
        self.reads_graph = False
        self.routes = dict.fromkeys(
            self.parameters, Route("per sample", "the graph changes with the samples")
        )

    def chunk(self, batch: Batch) -> Factors:
        """The factors of a chunk. A lone sample is run twice, as a batch like the others, and counted once."""
        found: Factors = {label: {} for label in self.labels.values()}
        if not self.reads_graph:
            self._add_by_sample(found, batch, list(self.parameters))
            return found
        run = batch.pick([0, 0]) if batch.count == 1 else batch
        tape = read(self.model(run))
        refuse_not_finite(tape.outputs)
        plan = self._plan_for(tape)
        try:
            captures = [
                BlockCapture(tape, share, self.parameters, run.count, len(self.outputs))
                for share in plan.shares
            ]
            if plan.structure.depends_on_values or run.count == PROBE_SAMPLES or plan is not self._first:
                _confirm(tape, captures)
            backward_passes(tape, captures, self.outputs)
        except UnreadableError as reason:
            raise GraphChangedError from reason
        for capture in captures:
            found[self.labels[capture.share.parameters[0]]] |= capture.factors(self.job.trace)
        del captures, tape
        self._add_by_sample(found, run, list(plan.structure.unreadable))
        return {label: self._joined(label, factors, run.count) for label, factors in found.items()}

    def _joined(self, label: str, factors: dict[Key, Factor], samples: int) -> dict[Key, Factor]:
        """Small gradients side by side in one matrix: one large product instead of many small ones.

        All chunks have the same ones, with zeros where a chunk does not use a parameter.
        """
        small = self._small.get(label, {})
        if len(small) < 2:
            return factors
        rows = 1 if self.job.trace else len(self.outputs)
        like = next(iter(self.parameters.values()))
        parts = []
        for key, entries in small.items():
            factor = factors.get(key)
            if isinstance(factor, Gradients):
                parts.append(factor.gradients)
            else:
                width = entries * len(self.outputs) // rows
                parts.append(like.new_zeros(samples * rows, width))
        names = tuple(name for key in small for name in key)
        kept = {key: factor for key, factor in factors.items() if key not in small}
        return kept | {names: Gradients(torch.cat(parts, 1), rows)}

    def _plan(
        self, tape: Tape, probe: Probe, ways: Mapping[tuple[str, int | None], Way] | None = None
    ) -> Plan:
        """Sources, uses and ways of all parameters (or the ways given); those that fail go sample by sample."""
        structure = analyse(tape, self.parameters, probe)
        by_parameters: dict[tuple[str, ...], list[Block]] = {}
        for block in structure.blocks:
            by_parameters.setdefault(block.parameters, []).append(block)
        shares: list[Share] = []
        sites: dict[tuple[str, int | None], Site] = {}
        for names, blocks in by_parameters.items():
            try:
                found = [self._way(block, tape) for block in blocks]
                candidates = [
                    Share(block, way, self.rates, piece=piece if len(blocks) > 1 else None)
                    for piece, (block, (way, _)) in enumerate(zip(blocks, found))
                ]
                if ways is not None:
                    candidates = [replace(c, way=ways.get(c.place, c.way)) for c in candidates]
                if not self._agree(candidates, probe):
                    raise UnreadableError("reading it from the graph does not give its gradients")
            except UnreadableError as reason:
                structure.unreadable |= dict.fromkeys(names, str(reason))
                continue
            shares += candidates
            sites |= {share.place: site for share, (_, site) in zip(candidates, found) if site is not None}
        return Plan(structure, self._with_biases(shares, structure), sites)

    def _way(self, block: Block, tape: Tape) -> tuple[Way, Site | None]:
        trial = Share(block, "gradient", self.rates)
        capture = BlockCapture(tape, trial, self.parameters, len(tape.outputs), 1)
        if not block.direct:
            return "derived", None
        if len(capture.collected) > 1:
            return "gradient", None
        (collector,) = capture.collected
        if not isinstance(collector, FormedGradients):
            return "sum", None
        return cheapest(self.job, collector.site), collector.site

    def _agree(self, shares: Sequence[Share], probe: Probe) -> bool:
        """Whether the samples' Gram from the graph gives the length of the parameters' gradient.

        With sample n weighted by w_n, the squared length of the gradient is the sum of w_n w_m K_nm.
        """
        found = probe.tape.outputs.new_zeros(probe.samples, probe.samples)
        for share in shares:
            capture = BlockCapture(probe.tape, share, self.parameters, probe.samples, 1)
            for collector in capture.collected:
                collector.take(0, [probe.plain[edge] for edge in collector.edges])
            for factor in capture.factors(trace=False).values():
                factor.accumulate(found, slice(0, probe.samples), factor, slice(0, probe.samples))
        expected = 0.0
        for name in shares[0].block.parameters:
            leaf = probe.tape.leaf(self.parameters[name])
            gradient = None if leaf is None else probe.weighted[leaf, 0]
            if gradient is not None:
                dense = gradient.to_dense() if gradient.is_sparse else gradient
                expected += float(torch.linalg.vector_norm(dense)) ** 2 * self.rates[name]
        scale = float((found.diagonal() * probe.weights**2).sum())
        difference = abs(float(probe.weights @ found @ probe.weights) - expected)
        rounding = torch.finfo(found.dtype).eps * probe.scale
        return difference <= _AGREES.get(found.dtype, 0.1) * max(scale, expected) + rounding

    def _with_biases(self, shares: Sequence[Share], structure: Structure) -> list[Share]:
        """A bias joins the weight of its product where that is cheaper, if both have the same label."""
        way = {share.block.parameters[0]: share.way for share in shares if share.block.direct}
        joined = {
            weight: bias
            for weight, bias in structure.bias_of.items()
            if way.get(weight) in ("gram", "gradient")
            and bias in way
            and self.labels[weight] == self.labels[bias]
        }
        return [
            replace(share, bias=joined.get(share.block.parameters[0]))
            for share in shares
            if share.block.parameters[0] not in joined.values()
        ]

    def _plan_for(self, tape: Tape) -> Plan:
        """The plan of the first samples, or a new one where this chunk's graph is built differently."""
        if tape.shape not in self._plans:
            assert self._first is not None
            known = self._first
            ways = {share.place: share.way for share in known.shares}
            plan = self._plan(tape, Probe(tape, torch.randn_like(tape.outputs)), ways)
            if [share.key for share in plan.shares] != [share.key for share in known.shares]:
                raise GraphChangedError
            self._plans[tape.shape] = plan
        return self._plans[tape.shape]

    def _small_gradients(self, plan: Plan) -> dict[str, dict[Key, int]]:
        found: dict[str, dict[Key, int]] = {}
        for share in plan.shares:
            formed = [] if share.way in ("gram", "pairs") else [(share.key, share.entries(self.parameters))]
            if share.bias is not None and formed:
                formed.append(((share.bias,), self.parameters[share.bias].numel()))
            for key, entries in formed:
                if entries <= _SMALL:
                    found.setdefault(self.labels[share.parameters[0]], {})[key] = entries
        return found

    def _add_by_sample(self, found: Factors, batch: Batch, names: Sequence[str]) -> None:
        """Factors of parameters whose gradients are formed sample by sample."""
        chosen = {name: self.parameters[name] for name in names}
        gradients = sample_gradients(self.model, batch, chosen, self.outputs, self.rates)
        rows = 1 if self.job.trace else len(self.outputs)
        for name, values in gradients.items():
            found[self.labels[name]][name,] = Gradients(values.reshape(batch.count * rows, -1), rows)

    def _bytes(self, tape: Tape, plan: Plan) -> Bytes:
        item, outputs = tape.outputs.element_size(), len(self.outputs)
        entries = 0.0
        for share in plan.shares:
            site = plan.sites.get(share.place)
            if site is not None:
                width = 1 if site.is_table else site.p
                held = (
                    outputs if share.way in ("gram", "pairs") else 1
                )  # outputs whose sensitivities are kept
                entries += site.groups * site.positions * (width + held * site.q)
            if share.way not in ("gram", "pairs"):
                entries += outputs * sum(self.parameters[name].numel() for name in share.parameters)
        entries += outputs * sum(self.parameters[name].numel() for name in plan.structure.unreadable)
        return Bytes(entries * item, _ACTIVATIONS_HELD * plan.structure.active * item)


def probe(batch: Batch) -> Batch:
    """A few samples spread over the batch; a lone one is taken more than once."""
    last = batch.count - 1
    return batch.pick([last * i // (PROBE_SAMPLES - 1) for i in range(PROBE_SAMPLES)])


def _confirm(tape: Tape, captures: Iterable[BlockCapture]) -> None:
    """Check in this very chunk, by two more backward passes, that every use has its samples where they should be."""
    uses = [use for capture in captures for source in capture.share.block.sources for use in source.uses]
    edges = list(dict.fromkeys((use.node, 0) for use in uses))
    axes = {(use.node, 0): use.axis for use in uses}
    cotangent = torch.randn_like(tape.outputs)
    weights = 1 + torch.rand_like(tape.outputs[:, :1])
    plain, weighted = tape.gradients(edges, cotangent), tape.gradients(edges, cotangent * weights)
    for edge, first, second in zip(edges, plain, weighted):
        if first is None or second is None:
            continue
        axis = axes[edge]
        if axis.before * axis.after * len(weights) != first.numel():
            raise UnreadableError("its samples are elsewhere")
        difference = axis.split(first, len(weights)) * weights - axis.split(second, len(weights))
        if float(difference.abs().max()) > 1e-3 * float(first.abs().max()):
            raise UnreadableError("its samples are elsewhere")


def _routes(plan: Plan) -> dict[str, Route]:
    found: dict[str, Route] = {}
    for share in plan.shares:
        uses = sum(len(source.uses) for source in share.block.sources)
        route = Route(share.way, _note(uses, plan.sites.get(share.place)))
        found |= dict.fromkeys(share.block.parameters, route)
        if share.bias is not None:
            found[share.bias] = Route(share.way, f"with {share.block.parameters[0]}")
    for name, reason in plan.structure.unreadable.items():
        found[name] = Route("per sample", reason)
    for name in plan.structure.unused:
        found[name] = Route("unused", "the output does not depend on it")
    return found


def _note(uses: int, site: Site | None) -> str:
    times = "" if uses == 1 else f"{uses} uses"
    if site is None:
        return times
    groups = "" if site.groups == 1 else f" in {site.groups} groups"
    where = f"{site.p} x {site.q}{groups}, {site.positions} position{'s' * (site.positions > 1)}"
    return f"{where} in {times}" if times else where
