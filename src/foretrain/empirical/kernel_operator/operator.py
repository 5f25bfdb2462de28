"""``ntk_operator``: the tangent kernel as an operator, by passes through the model in chunks that fit the memory."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foretrain.empirical.any_kernel import AnyKernel, as_tensor
from foretrain.empirical.kernel_operator.passes import Linearised, Values, Ways, find_ways
from foretrain.empirical.models.arguments import Batch, Rates
from foretrain.empirical.models.model import Output
from foretrain.empirical.tangent_kernel.engine import probe
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, chunk_size, prepare
from foretrain.operators.estimators.estimate import KernelEstimate, stated_seed
from foretrain.support.answers import Answer, labelled
from foretrain.support.errors import InputError
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, torch_generator
from foretrain.support.threads import on_free_cores

_SHARE = 0.4  # of the available memory that the passes may take
_LARGEST_WORKING = 2e9  # bytes; more would not be faster
_MOST_TOGETHER = 64  # vectors in one pass
_PASSES_HELD = 2.0  # a forward pass with tangents, or a backward pass with its graph, in units of a plain one


class NTKOperator(AnyKernel):
    """Theta = J(x) diag(rates) J(x2)^T on vectors v[sample, output]; ``shape`` counts (samples * outputs).

    Vectors are tensors or arrays of shape (N, C), or flat (N*C,); many at once are (k, N, C). Results have the
    shape of what was given, the model's dtype, and are on its device.
    """

    most_together = 2**31  # what fits the memory is decided product by product

    def __init__(
        self,
        linear: Linearised,
        ways: Ways,
        rates: Mapping[str, float],
        first: Batch,
        second: Batch | None,
        batch_size: int | None,
        bytes_per_sample: float,
    ) -> None:
        self.linear, self.ways, self.rates = linear, ways, rates
        self.first, self._columns = first, first if second is None else second
        self.batch_size, self.bytes_per_sample = batch_size, bytes_per_sample
        like = next(iter(linear.parameters.values()))
        super().__init__(
            (first.count, self._columns.count),
            tuple(linear.outputs),
            traced=False,
            symmetric=second is None,
            dtype=like.dtype,
            device=like.device,
            best_block=_MOST_TOGETHER,
        )

    @property
    def routes(self) -> Mapping[str, str]:
        """How J^T v and J t are computed."""
        return {
            name: f"{way.name}, {'many vectors together' if way.together else 'one vector after the other'}"
            for name, way in (("gradient", self.ways.pull), ("pushforward", self.ways.push))
        }

    def _apply(self, flat: Tensor) -> Tensor:
        return self._product(flat, self._columns, self.first)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return self._product(flat, self.first, self._columns)

    def gradient(self, v: Any) -> Values:
        """J(x2)^T v by parameter, without rates: the gradient of sum(outputs * v)."""
        vector = self._structured(self._flat_vector(v, self.domain))
        return {name: value[0] for name, value in self._pull(vector, self._columns).items()}

    def pushforward(self, change: Mapping[str, Any]) -> Tensor:
        """J(x) t, (N, C): how the outputs change along a change of parameters; those not named stay as they are."""
        unknown = [name for name in change if name not in self.linear.parameters]
        if unknown:
            known = ", ".join(list(self.linear.parameters)[:8])
            raise InputError(f"{unknown[0]!r} is no parameter of this kernel: it has {known}.")
        tangents: Values = {}
        for name, value in self.linear.parameters.items():
            given = as_tensor(change[name]) if name in change else torch.zeros_like(value.detach())
            if given.shape != value.shape:
                raise InputError(
                    f"the change of {name!r} has shape {tuple(given.shape)}, but it must be {tuple(value.shape)}."
                )
            tangents[name] = given.to(value.detach())[None]
        return self._push(tangents, self.first)[0]

    def model_outputs(self) -> Tensor:
        """The model's present outputs of x, (N, C)."""
        chunks = self._chunks(self.first, 1)
        return torch.cat([self.linear.rows(part, differentiable=False).detach() for _, part in chunks])

    def trace(self, probes: int = 64, seed: Seed = 0, **options: Any) -> Any:
        """Sum of the diagonal as the mean of |sqrt(rates) J^T z|^2 over random signs z (Hutchinson 1989).

        With ``method=``, ``accuracy=`` or ``products=`` it is that of any operator, by products.
        """
        self.require_symmetric("trace")
        if options:
            return super().trace(seed=seed, **options)
        drawn, number = self._probes(probes, seed)
        lengths = torch.cat([self._squared_lengths(part) for part in self._groups(drawn)])
        return KernelEstimate.of(lengths.cpu().numpy(), number)

    def diagonal(self, probes: int = 64, seed: Seed = 0) -> KernelEstimate:
        """The diagonal (N, C) as the mean of z * Theta z over random signs z (Bekas, Kokiopoulou & Saad 2007)."""
        self.require_symmetric("diagonal")
        drawn, number = self._probes(probes, seed)
        return KernelEstimate.of((drawn * self.matmat(drawn)).double().cpu().numpy(), number)

    def quadratic(self, v: Any) -> float:
        """v . Theta v, from one backward pass."""
        self.require_symmetric("quadratic form")
        vector = self._flat_vector(v, self.domain)
        return float(self._squared_lengths(self._structured(vector))[0])

    def answer(self) -> Answer:
        """Its sizes and how products are taken; none is taken now, and ``to_dataset`` writes the kernel out."""
        rows, columns = self.samples
        entries = sum(value.numel() for value in self.linear.parameters.values())
        statement = (
            f"NTKOperator {self.codomain.size} x {self.size}: {rows} x {columns} samples, "
            f"{len(self.outputs)} outputs, {entries} parameters, {str(self.dtype).removeprefix('torch.')}"
        )
        ways = "\n".join(f"{name}: {way}" for name, way in self.routes.items())
        more = (
            ".matvec(v), .matmat(V), .gradient(v), .pushforward(change), .trace(), .diagonal(), .spectrum(), "
            ".linear_operator()"
        )
        return Answer(statement, [ways, more], lambda: labelled({"ntk": ("row column", self.dense())}))

    def _structured(self, flat: Tensor) -> Tensor:
        return flat.view(len(flat), -1, len(self.outputs))

    def _product(self, flat: Tensor, source: Batch, target: Batch) -> Tensor:
        """J(target) diag(rates) J(source)^T of every vector, as many together as fit the memory."""
        if not bool(torch.isfinite(flat).all()):
            raise InputError("the vector has entries that are not finite: remove nan and inf first.")
        found = []
        for part in track(self._groups(self._structured(flat)), "NTK products"):
            gradients = self._pull(part, source)
            for name, rate in self.rates.items():
                if rate != 1:
                    gradients[name] = gradients[name] * rate
            found.append(self._push(gradients, target).flatten(1))
        return torch.cat(found).to(self.dtype)

    def _pull(self, vectors: Tensor, batch: Batch) -> Values:
        total: Values = {}
        way = self.ways.pull
        for where, part in track(self._chunks(batch, way.held(len(vectors))), "backward passes"):
            for name, value in way.run(self.linear, part, vectors[:, where]).items():
                total[name] = total[name] + value if name in total else value
        return total

    def _push(self, tangents: Values, batch: Batch) -> Tensor:
        way = self.ways.push
        chunks = self._chunks(batch, way.held(len(next(iter(tangents.values())))))
        return torch.cat(
            [way.run(self.linear, part, tangents).detach() for _, part in track(chunks, "forward passes")], 1
        )

    def _squared_lengths(self, vectors: Tensor) -> Tensor:
        """v . Theta v of every vector, from its gradient alone."""
        gradients = self._pull(vectors, self.first)
        return torch.stack(
            [
                self.rates[name] * value.flatten(1).double().square().sum(1)
                for name, value in gradients.items()
            ]
        ).sum(0)

    def _groups(self, vectors: Tensor) -> list[Tensor]:
        """Vectors in parts whose gradients, and passes of two samples, fit the memory."""
        entries = sum(value.numel() * value.element_size() for value in self.linear.parameters.values())
        each = 2.0 * entries + 2 * _PASSES_HELD * self.bytes_per_sample
        require_memory(each, "a product with the kernel", "choose fewer parameters with parameters=")
        size = int(max(1, min(_MOST_TOGETHER, self._room() / (each + 1))))
        return list(torch.split(vectors, size))

    def _chunks(self, batch: Batch, together: int) -> list[tuple[slice, Batch]]:
        """The samples in equal parts, each with its place."""
        size = self.batch_size
        if size is None:
            size = int(max(2, self._room() / (_PASSES_HELD * self.bytes_per_sample * together + 1)))
        parts = -(-batch.count // size)
        bounds = [batch.count * i // parts for i in range(parts + 1)]
        return [
            (slice(start, stop), batch if parts == 1 else batch.pick(slice(start, stop)))
            for start, stop in pairwise(bounds)
        ]

    def _room(self) -> float:
        return min(_SHARE * available_bytes(), _LARGEST_WORKING)

    def _probes(self, count: int, seed: Seed) -> tuple[Tensor, int]:
        """Random signs (count, N, C), drawn on the CPU so that all devices see the same."""
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 2:
            raise InputError(f"`probes` is {count!r}, but a standard error needs at least 2.")
        number = stated_seed(seed)
        shape = (int(count), self.first.count, len(self.outputs))
        signs = torch.randint(0, 2, shape, generator=torch_generator(number)) * 2 - 1
        return signs.to(dtype=self.dtype, device=self.device), number


@on_free_cores()
def ntk_operator(
    model: Any,
    x: Any,
    x2: Any = None,
    outputs: Sequence[int] | None = None,
    *,
    output: Output = None,
    parameters: Any = None,
    rates: Rates = None,
    batch_size: int | Literal["auto"] = "auto",
    batch_axis: int = 0,
    shared: Collection[str | int] = (),
) -> NTKOperator:
    """The tangent kernel J(x) diag(rates) J(x2)^T as an operator; one product costs about three passes of the model.

    Arguments are those of ``ntk``; ``outputs`` is a list of output numbers, None for all. Nothing of size N x N2 is
    ever formed: samples go through the model in chunks that fit the memory. Products are those at the parameters
    that the model has when they are asked for.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> kernel = ntk_operator(net, torch.randn(5, 3))
    >>> kernel.shape, kernel.matvec(torch.ones(5, 2)).shape
    ((10, 10), torch.Size([5, 2]))
    """
    if isinstance(outputs, str):
        raise InputError(
            f"`outputs=`{outputs!r} has no operator: pass a list of output numbers or None, or use ntk(...)."
        )
    size = chunk_size(batch_size)
    engine, first, second = prepare(
        model,
        x,
        x2,
        KernelOptions(
            "full" if outputs is None else outputs, output, parameters, rates, None, batch_axis, shared
        ),
    )
    linear = Linearised(engine.model, engine.parameters, engine.outputs)
    return NTKOperator(
        linear=linear,
        ways=find_ways(linear, probe(first)),
        rates=engine.rates,
        first=first,
        second=second,
        batch_size=size,
        bytes_per_sample=engine.memory.passes,
    )
