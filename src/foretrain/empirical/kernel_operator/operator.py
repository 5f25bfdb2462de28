"""The tangent kernel as an operator: products, gradients and pushes forward, in chunks that fit the memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.any_kernel import AnyKernel
from foretrain.empirical.kernel_operator.passes import Linearised, Values, Ways
from foretrain.empirical.models.batches import Batch
from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.errors import InputError
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, integer, torch_generator

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator

_SHARE = 0.4  # of the available memory that the passes may take
_LARGEST_WORKING = 2e9  # bytes; more would not be faster
_MOST_TOGETHER = 64  # vectors in one pass
_PASSES_HELD = 2.0  # a forward pass with tangents, or a backward pass with its graph, in units of a plain one


@dataclass(frozen=True, repr=False, eq=False)
class KernelEstimate(Result):
    """A mean over random probes with its standard error: a number, or one entry per (sample, output).

    Without probes it is exact.
    """

    value: Any
    standard_error: Any
    probes: int
    seed: int

    def answer(self) -> Answer:
        """The number with its error, or how many there are and between which ends they lie."""
        value, error = np.asarray(self.value, dtype=float), np.asarray(self.standard_error, dtype=float)
        drawn = f"{self.probes} random-sign probes, seed {self.seed}" if self.probes else "exact"
        said = f"{float(value):.6g} ± {float(error):.2g}" if value.ndim == 0 else f"shape {value.shape}"
        if value.size > 1:
            said += f", from {value.min():.6g} to {value.max():.6g}, errors up to {error.max():.2g}"
        axes = ("sample", "output")[: value.ndim]
        data = labelled({"value": (axes, value), "value_error": (axes, error)})
        return Answer(f"KernelEstimate({said}; {drawn})", data=data, record=vars(self))


@dataclass(frozen=True, repr=False, eq=False)
class NTKOperator(AnyKernel):
    """Theta = J(x) diag(rates) J(x2)^T on vectors v[sample, output]; ``shape`` counts (samples * outputs).

    Vectors are tensors or arrays of shape (N, C), or flat (N*C,); many at once are (k, N, C). Results have the
    shape of what was given, the model's dtype, and are on its device.
    """

    linear: Linearised
    ways: Ways
    rates: Mapping[str, float]
    first: Batch
    second: Batch | None
    batch_size: int | None
    bytes_per_sample: float

    @property
    def symmetric(self) -> bool:
        """Whether both sides are the same samples."""
        return self.second is None

    @property
    def outputs(self) -> tuple[int, ...]:
        """Numbers of the outputs that count."""
        return tuple(self.linear.outputs)

    @property
    def samples(self) -> tuple[int, int]:
        """N and N2."""
        return self.first.count, self._columns.count

    @property
    def shape(self) -> tuple[int, int]:
        """(N*C, N2*C)."""
        rows, columns = self.samples
        return rows * len(self.outputs), columns * len(self.outputs)

    @property
    def dtype(self) -> torch.dtype:
        """Of the parameters, hence of products."""
        return self._like.dtype

    @property
    def routes(self) -> Mapping[str, str]:
        """How J^T v and J t are computed."""
        return {
            name: f"{way.name}, {'many vectors together' if way.together else 'one vector after the other'}"
            for name, way in (("gradient", self.ways.pull), ("pushforward", self.ways.push))
        }

    def matvec(self, v: Any) -> Tensor:
        """Theta v, for v over the samples of x2 (of x if there is none)."""
        vector, flat = self._vector(v, self._columns)
        found = self._product(vector[None], self._columns, self.first)[0]
        return found.flatten() if flat else found

    def __matmul__(self, v: Any) -> Tensor:
        return self.matvec(v)

    def matmat(self, vectors: Any) -> Tensor:
        """Theta v for each of (k, N2, C): (k, N, C)."""
        return self._product(self._vectors(vectors, self._columns), self._columns, self.first)

    def rmatvec(self, v: Any) -> Tensor:
        """Theta^T v, for v over the samples of x."""
        vector, flat = self._vector(v, self.first)
        found = self._product(vector[None], self.first, self._columns)[0]
        return found.flatten() if flat else found

    def gradient(self, v: Any) -> Values:
        """J(x2)^T v by parameter, without rates: the gradient of sum(outputs * v)."""
        vector, _ = self._vector(v, self._columns)
        return {name: value[0] for name, value in self._pull(vector[None], self._columns).items()}

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

    def dense(self) -> Tensor:
        """The matrix (N*C, N2*C), from its products with unit vectors; ``ntk`` is faster where it fits."""
        rows, columns = self.shape
        size = self._like.element_size()
        require_memory(
            2.0 * rows * columns * size + columns * columns * size,
            f"the kernel as a {rows} x {columns} matrix",
            "use products with vectors, or fewer samples",
        )
        unit = torch.eye(columns, dtype=self.dtype, device=self._like.device)
        return self.matmat(unit.reshape(columns, -1, len(self.outputs))).reshape(columns, rows).T

    def linear_operator(self) -> LinearOperator:
        """The same for scipy: flat float64 vectors, columns side by side; products have the model's precision."""
        from scipy.sparse.linalg import LinearOperator

        forward = partial(self._numpy, source=self._columns, target=self.first)
        backward = partial(self._numpy, source=self.first, target=self._columns)
        return LinearOperator(
            self.shape,
            matvec=forward,
            rmatvec=backward,
            matmat=forward,
            rmatmat=backward,
            dtype=np.dtype(np.float64),
        )

    def trace(self, probes: int = 64, seed: Seed = 0) -> KernelEstimate:
        """Sum of the diagonal as the mean of |sqrt(rates) J^T z|^2 over random signs z (Hutchinson 1989)."""
        self.require_symmetric("trace")
        drawn, number = self._probes(probes, seed)
        lengths = torch.cat([self._squared_lengths(part) for part in self._groups(drawn)])
        return estimate(lengths.cpu().numpy(), number)

    def diagonal(self, probes: int = 64, seed: Seed = 0) -> KernelEstimate:
        """The diagonal (N, C) as the mean of z * Theta z over random signs z (Bekas, Kokiopoulou & Saad 2007)."""
        self.require_symmetric("diagonal")
        drawn, number = self._probes(probes, seed)
        return estimate((drawn * self.matmat(drawn)).double().cpu().numpy(), number)

    def quadratic(self, v: Any) -> float:
        """v . Theta v, from one backward pass."""
        self.require_symmetric("quadratic form")
        vector, _ = self._vector(v, self.first)
        return float(self._squared_lengths(vector[None])[0])

    def answer(self) -> Answer:
        """Its sizes and how products are taken; none is taken now, and ``to_dataset`` writes the kernel out."""
        rows, columns = self.samples
        entries = sum(value.numel() for value in self.linear.parameters.values())
        statement = (
            f"NTKOperator {self.shape[0]} x {self.shape[1]}: {rows} x {columns} samples, "
            f"{len(self.outputs)} outputs, {entries} parameters, {str(self.dtype).removeprefix('torch.')}"
        )
        ways = "\n".join(f"{name}: {way}" for name, way in self.routes.items())
        more = (
            ".matvec(v), .matmat(V), .gradient(v), .pushforward(change), .trace(), .diagonal(), .spectrum(), "
            ".linear_operator()"
        )
        return Answer(statement, [ways, more], lambda: labelled({"ntk": ("row column", self.dense())}))

    @property
    def _columns(self) -> Batch:
        return self.first if self.second is None else self.second

    @property
    def _like(self) -> Tensor:
        return next(iter(self.linear.parameters.values()))

    def _product(self, vectors: Tensor, source: Batch, target: Batch) -> Tensor:
        """J(target) diag(rates) J(source)^T of every vector, as many together as fit the memory."""
        found = []
        groups = self._groups(vectors)
        for part in track(groups, "NTK products"):
            gradients = self._pull(part, source)
            for name, rate in self.rates.items():
                if rate != 1:
                    gradients[name] = gradients[name] * rate
            found.append(self._push(gradients, target))
        return torch.cat(found)

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
        return signs.to(self._like.detach()), number

    def _vector(self, v: Any, batch: Batch) -> tuple[Tensor, bool]:
        """One vector as (samples, outputs), and whether it came flat."""
        given = self._tensor(v)
        wanted = (batch.count, len(self.outputs))
        if given.shape not in (wanted, (wanted[0] * wanted[1],)):
            raise InputError(
                f"the vector has shape {tuple(given.shape)}, but it must be {wanted} or flat "
                f"({wanted[0] * wanted[1]},)" + ("; use matmat for many." if given.ndim == 3 else ".")
            )
        return given.reshape(wanted), given.ndim == 1

    def _vectors(self, v: Any, batch: Batch) -> Tensor:
        given = self._tensor(v)
        if given.ndim != 3 or given.shape[1:] != (batch.count, len(self.outputs)) or not len(given):
            raise InputError(
                f"the vectors have shape {tuple(given.shape)}, but they must be "
                f"(k, {batch.count}, {len(self.outputs)}) with k of at least 1."
            )
        return given

    def _tensor(self, v: Any) -> Tensor:
        given = as_tensor(v).to(self._like.detach())
        if not bool(torch.isfinite(given).all()):
            raise InputError("the vector has entries that are not finite: remove nan and inf first.")
        return given

    def _numpy(self, vectors: np.ndarray[Any, Any], source: Batch, target: Batch) -> np.ndarray[Any, Any]:
        """Columns in, columns out; one flat vector stays flat."""
        columns = np.asarray(vectors).reshape(len(vectors), -1).T
        given = self._vectors(np.ascontiguousarray(columns).reshape(len(columns), source.count, -1), source)
        found = self._product(given, source, target).flatten(1).T
        result: np.ndarray[Any, Any] = found.double().cpu().numpy()
        return result.reshape(-1) if vectors.ndim == 1 else result


def as_tensor(values: Any) -> Tensor:
    """Tensors without their graph; lists and arrays in double precision if they are real."""
    if isinstance(values, Tensor):
        return values.detach()
    return torch.as_tensor(np.require(values, requirements=["C", "W"]))


def estimate(draws: NDArray[Any], seed: int) -> KernelEstimate:
    """Mean of independent draws along the first axis, and its standard error."""
    mean, error = draws.mean(0), standard_error(draws)
    if mean.ndim == 0:
        return KernelEstimate(float(mean), float(error), len(draws), seed)
    return KernelEstimate(mean, error, len(draws), seed)


def standard_error(draws: NDArray[Any]) -> Any:
    """Of the mean of independent draws along the first axis."""
    return np.std(draws, axis=0, ddof=1) / np.sqrt(len(draws))


def stated_seed(seed: Seed) -> int:
    """A number that gives the same probes again: the seed itself, or one that is drawn from it."""
    return int(seed) if isinstance(seed, int | np.integer) else integer(seed)
