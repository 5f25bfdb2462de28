"""From a model and a batch to factors: looks at a few samples first, then treats chunks of any size alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod, sqrt
from typing import TypeVar

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.ownership import owners_by_nodes
from foretrain.empirical.autograd_graph.sites import UnreadableError
from foretrain.empirical.autograd_graph.tape import (
    SMALL_NODE,
    Probe,
    Tape,
    all_gradients,
    fixed_normal,
    read,
)
from foretrain.empirical.models.arguments import Batch
from foretrain.empirical.models.model import (
    Model,
    close,
    refuse_checkpoints,
    refuse_coupling,
    refuse_false_gradients,
    refuse_not_finite,
    refuse_random,
)
from foretrain.empirical.tangent_kernel.capture import (
    BlockCapture,
    Key,
    backward_passes,
    unit_cotangent,
)
from foretrain.empirical.tangent_kernel.factors import Factor, Gradients
from foretrain.empirical.tangent_kernel.planning import (
    Counted,
    GraphChangedError,
    Job,
    Plan,
    Planner,
    Route,
    routes,
)
from foretrain.support.memory import without_collection
from foretrain.support.progress import track
from foretrain.support.threads import on_free_cores

Computed = TypeVar("Computed")
Factors = dict[str, dict[Key, Factor]]  # by label, then by the parameters that they stand for

PROBE_SAMPLES = 2
_MORE = [1, 0, 0]  # of these: more samples in another order
_FUSED = ("MkldnnRnnLayer", "CudnnRnn", "MiopenRnn")
_PRODUCTS_PER_ENTRY = 15  # that a machine does while it moves one number to memory and back
_SMALL = 4096  # gradients with fewer entries are joined into one matrix
_ACTIVATIONS_HELD = 6.0  # arrays of the size of all activations at the peak of a backward pass
_GRADIENTS_HELD = 2.0  # the same for every further pass that runs beside it
_COPIES = 4  # of a gradient that is carried from a weight to the parameters it is made of
_SLACK = 1.5  # for copies on the way, and memory that is not given back at once


@dataclass(frozen=True)
class Bytes:
    """Memory per sample: what the factors keep, and what one pass holds while it runs."""

    factors: float
    passes: float


class Engine:
    """Chunks of samples in, factors out."""

    def __init__(
        self, model: Model, counted: Counted, job: Job, outputs: Sequence[int], needs_graph: bool = True
    ) -> None:
        """``needs_graph``: whether the caller uses how parameters enter the graph, not the factors alone."""
        self.model, self.job, self.outputs = model, job, outputs
        self.parameters, self.rates, self.labels = counted.parameters, counted.rates, counted.labels
        self.dtype = counted.dtype
        self.routes: dict[str, Route] = {}
        self.memory = Bytes(0, 0)
        self.forms_late = False  # whether some gradients are formed while they are multiplied
        self._may_go_at_once, self._goes_at_once = not needs_graph, False
        self._planner = Planner(counted, job)
        self._plans: dict[tuple[int, object], Plan] = {}
        self._few: Batch | None = None
        self._shown: Tensor | None = None  # outputs of the few, until they are compared with others
        self._small: dict[str, dict[Key, int]] = {}

    @without_collection()
    def look(self, batch: Batch, outputs: Tensor) -> None:
        """Find out how the model is built from a few samples and their outputs, and check it there."""
        tape = self._read(outputs)
        if any(name.startswith(_FUSED) for name in tape.names):
            self.model.unfused = True
            tape = self._read(self.model(batch))
        if _gains_from_channels_last(tape):
            self.model.channels_last = True
            try:
                again = self._read(self.model(batch))
                self.model.channels_last = close(tape.outputs, again.outputs)
            except RuntimeError:
                # Some models see images as vectors without a copy, which needs the usual order.
                self.model.channels_last = False
            if self.model.channels_last:
                tape = again
        refuse_checkpoints(tape)
        refuse_false_gradients(tape)
        refuse_not_finite(tape.outputs)
        self._few, self._shown = batch, tape.outputs.detach()
        if self._may_go_at_once and self._is_tiny(tape):
            self._begin_at_once(tape)
            return
        try:
            self._begin(tape)
        except UnreadableError:  # a graph whose samples depend on each other
            self.refuse_company()
            raise

    def refuse_company(self) -> None:
        """A sample must have the same outputs in every call and beside any others; chunks see to it themselves."""
        if self._few is None or self._shown is None:
            return
        others = self.model(self._few.pick(_MORE))
        if not close(self._shown[_MORE], others):
            refuse_random(self._shown, self.model(self._few))
            refuse_coupling(self._shown[_MORE], others)
        self._shown = None

    def _compare(self, batch: Batch, outputs: Tensor) -> None:
        """The same by a chunk that has the samples of the look elsewhere, beside others: nothing is run again."""
        if self._few is None or self._shown is None:
            return
        places = _places(batch.count)
        alike = batch.count > PROBE_SAMPLES and batch.pick(places).equals(self._few)
        if alike and close(self._shown, outputs[places]):
            self._shown = None
        else:
            self.refuse_company()

    def look_again(self, change: GraphChangedError) -> None:
        """Start afresh after a chunk whose graph does not go with those before."""
        assert self._few is not None
        if self._goes_at_once:
            self._goes_at_once = False  # the graph tells samples apart
        else:
            self._planner.react(change)
        self._plans.clear()
        self._begin(self._read(self.model(self._few)))

    def until_settled(self, compute: Callable[[], Computed]) -> Computed:
        """What is computed once all chunks go together: every time they do not, a parameter is put aside."""
        while True:
            try:
                return compute()
            except GraphChangedError as change:
                self.look_again(change)

    def _begin(self, tape: Tape) -> None:
        assert self._few is not None
        plan = replace(self._planner.plan(self._probe(tape, self._few)), trusted=True)
        self._plans[tape.shape, self._few.origin] = plan
        self._small = self._planner.small_gradients(plan, _SMALL)
        self.routes = routes(plan, self._planner.distrusted)
        self.memory = self._bytes(plan)
        self.forms_late = any(share.late for share in plan.shares)

    def _is_tiny(self, tape: Tape) -> bool:
        """Whether a pass for all rows of the kernel at once costs less than a look at every node of a long graph."""
        if not tape.is_long or not tape.is_plain:
            return False
        edges = {edge for taken in tape.inputs for edge in taken if edge is not None}
        inner = (edge for edge in edges if tape.names[edge[0]] != "AccumulateGrad")
        held = sum(prod(tape.shape_at(edge)) for edge in inner) / PROBE_SAMPLES
        sizes = [
            (value.numel(), value.shape[0] if value.ndim > 1 else 1) for value in self.parameters.values()
        ]
        # A node multiplies each of its entries by the inputs of a unit, forward and for both gradients.
        products = max(entries / units for entries, units in sizes if units) / _PRODUCTS_PER_ENTRY
        rows, samples = self.job.samples * len(self.outputs), self.job.samples
        moved = rows * (samples * held * (1 + products) + sum(entries for entries, _ in sizes))
        return moved <= SMALL_NODE * len(tape.nodes)

    def _begin_at_once(self, tape: Tape) -> None:
        self._goes_at_once = True
        for name in self.parameters:
            used = name in tape.leaves
            note = "all samples and outputs in one pass" if used else "the output does not depend on it"
            self.routes[name] = Route("gradient" if used else "unused", note)
        entries = len(self.outputs) * sum(value.numel() for value in self.parameters.values())
        self.memory = Bytes(_SLACK * entries * self.dtype.itemsize, 0)

    def _read(self, outputs: Tensor) -> Tape:
        return read(outputs, self.model.parameters, self.model.has_hooks)

    def _probe(self, tape: Tape, batch: Batch) -> Probe:
        def moved() -> Tape | None:
            # The graph of the same samples with all parameters moved a little.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                other = self.model.moved()
            return None if other is None else read(other(batch), other.parameters, other.has_hooks)

        def more() -> Tape:
            # Of another number of samples.
            others = _MORE if batch.count != len(_MORE) else _MORE[:2]
            return self._read(self.model(batch.pick(others)))

        known = owners_by_nodes(tape, batch.count)
        return Probe(tape, fixed_normal(tape.outputs), moved, more, known)

    @on_free_cores()
    @without_collection()
    def chunk(self, batch: Batch) -> Factors:
        """The factors of a chunk. A lone sample is run twice, as a batch like the others, and counted once."""
        run = batch.pick([0, 0]) if batch.count == 1 else batch
        outputs = self.model(run)
        refuse_not_finite(outputs)
        self._compare(run, outputs)
        found = self._at_once(outputs) if self._goes_at_once else self._by_graph(outputs, run)
        if run is batch:
            return found
        return {
            label: {key: factor.first_half() for key, factor in factors.items()}
            for label, factors in found.items()
        }

    def _at_once(self, outputs: Tensor) -> Factors:
        """The gradients of all samples and outputs, in one backward pass if all nodes bear it."""
        samples, count, given = len(outputs), len(self.outputs), list(self.parameters.values())
        units = outputs.new_zeros(samples, count, *outputs.shape)
        places = torch.arange(samples)[:, None]
        units[places, torch.arange(count), places, torch.as_tensor(self.outputs)] = 1
        gradients = all_gradients(outputs, given, units.flatten(0, 1), is_plain=True)
        if not all(bool(values.isfinite().all()) for values in gradients if values is not None):
            # The slope of one sample is infinite, and its product with the zeros of the others spoils theirs.
            raise GraphChangedError
        by_label: dict[str, dict[str, Tensor]] = {}
        for (name, value), gradient in zip(self.parameters.items(), gradients):
            found = value.new_zeros(samples * count, *value.shape) if gradient is None else gradient
            flat, rate = found.reshape(samples, count, -1), self.rates[name]
            by_label.setdefault(self.labels[name], {})[name] = flat if rate == 1 else flat * sqrt(rate)
        rows = 1 if self.job.trace else count
        return {
            label: {
                tuple(own): Gradients(
                    torch.cat([*own.values()], 2).to(self.dtype).view(samples * rows, -1), rows
                )
            }
            for label, own in by_label.items()
        }

    def _by_graph(self, outputs: Tensor, run: Batch) -> Factors:
        """The factors that the graph of the outputs shows."""
        found: Factors = {label: {} for label in self.labels.values()}
        tape = self._read(outputs)
        plan = self._plan_for(tape, run)
        try:
            captures = self._captured(tape, plan, run)
        except (UnreadableError, GraphChangedError):  # what fits a few samples need not fit more of them
            plan = self._planner.plan(self._probe(tape, run))
            try:
                captures = self._captured(tape, plan, run)
            except UnreadableError as reason:
                raise GraphChangedError from reason
            for name, route in routes(plan, self._planner.distrusted).items():
                if self.routes.get(name, route).way == "unused":  # the first samples did not use it
                    self.routes[name] = route
        for capture in captures:
            for key, factor in capture.factors(self.job.trace, self.job.is_large).items():
                found[self.labels[key[0]]][key] = factor
        del captures, tape
        chosen = {name: self.parameters[name] for name in plan.structure.unreadable}
        rows = 1 if self.job.trace else len(self.outputs)
        for name, values in sample_gradients(self.model, run, chosen, self.outputs, self.rates).items():
            shaped = values.reshape(run.count * rows, -1).to(self.dtype)
            found[self.labels[name]][name,] = Gradients(shaped, rows)
        return {label: self._joined(label, factors, run.count) for label, factors in found.items()}

    def _captured(self, tape: Tape, plan: Plan, batch: Batch) -> list[BlockCapture]:
        """All backward passes of a chunk; where the plan could be wrong for these samples, it is checked first."""
        found = [BlockCapture(tape, share, batch.count, len(self.outputs)) for share in plan.shares]
        sure = plan.trusted and plan.structure.certain and not plan.structure.depends_on_values
        if not sure or (batch.count == PROBE_SAMPLES and not plan.structure.clear):
            _confirm(tape, found)
        heard = backward_passes(tape, found, self.outputs, list(plan.structure.silent))
        if heard:
            raise GraphChangedError(unreadable=set().union(*(plan.structure.silent[edge] for edge in heard)))
        return found

    def _plan_for(self, tape: Tape, batch: Batch) -> Plan:
        """The plan for a chunk's graph: a known one, or that of a few of its samples, or else its own."""
        key = tape.shape, batch.origin
        if key not in self._plans:
            few = probe(batch)
            small = self._read(self.model(few))
            alike = small.shape == tape.shape
            own = self._planner.plan(self._probe(small, few) if alike else self._probe(tape, batch))
            self._plans[key] = replace(own, trusted=alike)
        return self._plans[key]

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
                parts.append(like.new_zeros(samples * rows, width, dtype=self.dtype))
        names = tuple(name for key in small for name in key)
        kept = {key: factor for key, factor in factors.items() if key not in small}
        return kept | {names: Gradients(torch.cat(parts, 1), rows)}

    def _bytes(self, plan: Plan) -> Bytes:
        outputs = len(self.outputs)
        entries = 0.0
        for share in plan.shares:
            site = plan.sites.get(share.place)
            if site is not None:
                width = 1 if site.is_table else site.p
                kept = outputs if share.keeps_sensitivities else 1  # outputs whose sensitivities are kept
                entries += site.groups * site.positions * (width + kept * site.q)
            copies = 1 if share.block.direct else _COPIES
            entries += copies * outputs * sum(size for _, _, size in share.formed())
        hidden = sum(self.parameters[name].numel() for name in plan.structure.unreadable)
        entries += 2 * outputs * hidden
        item = self.dtype.itemsize
        held = _ACTIVATIONS_HELD + _GRADIENTS_HELD * (min(torch.get_num_threads(), outputs) - 1)
        return Bytes(_SLACK * entries * item, held * plan.structure.active * item)


def join(passes: list[tuple[Factors, int]]) -> Factors:
    """The factors of several passes, each with its number of samples, as those of one; the passes are used up."""
    if len(passes) == 1:
        return passes[0][0]
    found: Factors = {}
    for label in passes[0][0]:
        found[label] = {}
        for key in dict.fromkeys(key for factors, _ in passes for key in factors[label]):
            parts = [(factors[label].pop(key, None), samples) for factors, samples in passes]
            like, of_mine = next((part, samples) for part, samples in parts if part is not None)
            first, *others = (part or like.without_gradients(samples, of_mine) for part, samples in parts)
            found[label][key] = first.joined(others)
    return found


def probe(batch: Batch) -> Batch:
    """A few samples of the batch; a lone one is taken twice."""
    return batch.pick(_places(batch.count))


def _places(count: int) -> list[int]:
    """Of so many samples those looked at, at other places than these: what couples samples shows."""
    return [count // 2, 0]


def _gains_from_channels_last(tape: Tape) -> bool:
    """Convolutions of images in single precision on a CPU go backward several times as fast that way."""
    found = [node for node, name in enumerate(tape.names) if name == "ConvolutionBackward0"]
    if not found or tape.outputs.device.type != "cpu":
        return False
    return all(
        tape.dtype_at((node, 0)) == torch.float32
        and len(tape.shape_at((node, 0))) == 4
        and not tape.saved(node, "transposed")
        and tape.saved(node, "groups") == 1
        for node in found
    )


def _confirm(tape: Tape, captures: Iterable[BlockCapture]) -> None:
    """Check in this very chunk, by two more backward passes, that every use has its samples where they should be."""
    uses = [use for capture in captures for source in capture.share.block.sources for use in source.uses]
    edges = list(dict.fromkeys((use.node, 0) for use in uses))
    axes = {(use.node, 0): use.axis for use in uses}
    cotangent = fixed_normal(tape.outputs)
    weights = 1 + torch.sigmoid(fixed_normal(tape.outputs[:, :1]))
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


def sample_gradients(
    model: Model,
    batch: Batch,
    parameters: Mapping[str, Tensor],
    outputs: Sequence[int],
    rates: Mapping[str, float],
) -> dict[str, Tensor]:
    """{name: (samples, outputs, entries)}, with the roots of the rates inside.

    A sample goes through the model twice in one batch, because some models treat a batch of one differently.
    """
    found = {
        name: value.new_zeros(batch.count, len(outputs), value.numel()) for name, value in parameters.items()
    }
    if not parameters:
        return found
    for sample in track(range(batch.count), "gradients sample by sample"):
        given = model(batch.pick([sample, sample]))
        for number, output in enumerate(outputs):
            cotangent = unit_cotangent(given, 0, output)
            gradients = torch.autograd.grad(
                given, list(parameters.values()), cotangent, retain_graph=True, allow_unused=True
            )
            for name, gradient in zip(parameters, gradients):
                if gradient is not None:
                    dense = gradient.to_dense() if gradient.is_sparse else gradient
                    found[name][sample, number] = dense.reshape(-1) * sqrt(rates[name])
    return found
