"""The tangent kernel by brute force, one sample and one output at a time, and how a model is compared with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretrain.empirical.tangent_kernel import TangentKernel, ntk, planning

DOUBLE = torch.float64


def jacobian(parameters: Iterable[Tensor], outputs_of: Sequence[Callable[[], Tensor]]) -> Tensor:
    """(samples, outputs, entries of all parameters) in double precision: one backward pass for each number."""
    parameters, samples = list(parameters), []
    for outputs in outputs_of:
        rows = []
        for value in outputs().reshape(-1):
            found = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True)
            dense = [p.new_zeros(p.shape) if g is None else g.to_dense() for p, g in zip(parameters, found)]
            rows.append(torch.cat([gradient.reshape(-1) for gradient in dense]).double())
        samples.append(torch.stack(rows))
    return torch.stack(samples)


def kernel_of(first: Tensor, second: Tensor) -> Tensor:
    """(N, N2, C, C) from two Jacobians."""
    return torch.einsum("nap,mbp->nmab", first, second)


def lone(x: Any, sample: int, axis: int = 0) -> Any:
    """The arguments of a single sample, as a batch of one; what is not a tensor stays as it is."""
    if isinstance(x, Mapping):
        return {key: lone(value, sample, axis) for key, value in x.items()}
    if isinstance(x, tuple):
        return tuple(lone(value, sample, axis) for value in x)
    return x.narrow(axis, sample, 1) if isinstance(x, Tensor) and x.ndim > axis else x


def count_of(x: Any, axis: int = 0) -> int:
    """The number of samples."""
    while not isinstance(x, Tensor):
        x = next(iter(x.values())) if isinstance(x, Mapping) else x[0]
    return x.shape[axis]


def called(model: Callable[..., Any], x: Any) -> Any:
    """The model with a tuple as arguments, a dict as keywords, or a tensor."""
    if isinstance(x, tuple):
        return model(*x)
    return model(**x) if isinstance(x, Mapping) else model(x)


def itself(result: Any) -> Any:
    return result


def jacobian_of(
    model: nn.Module,
    x: Any,
    axis: int = 0,
    pick: Callable[[Any], Tensor] = itself,
    parameters: Iterable[Tensor] | None = None,
) -> Tensor:
    """The Jacobian of a module with respect to all parameters that learn, or those given."""
    learning = [p for p in model.parameters() if p.requires_grad] if parameters is None else list(parameters)
    samples = [lone(x, n, axis) for n in range(count_of(x, axis))]
    return jacobian(learning, [lambda s=s: pick(called(model, s)) for s in samples])


def brute_force(model: nn.Module, x: Any, **options: Any) -> Tensor:
    """The kernel of x with itself."""
    found = jacobian_of(model, x, **options)
    return kernel_of(found, found)


def assert_equal(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    """Equal relative to the largest entry, which is not zero."""
    assert found.shape == expected.shape, f"{tuple(found.shape)} is not {tuple(expected.shape)}"
    scale = float(expected.abs().max())
    assert scale > 0, "the expected kernel is zero, so that nothing is compared"
    error = float((found.detach().double() - expected).abs().max()) / scale
    assert error < tolerance, f"the largest error is {error:.2e} of the largest entry"


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))


def tokens(*shape: int, below: int = 7, seed: int = 0) -> Tensor:
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


def ready(make: Callable[[], nn.Module], shaken: bool = True, seed: int = 1) -> nn.Module:
    """A model in double precision and evaluation mode, always the same.

    ``shaken`` moves all parameters, since ones and zeros, which norms and biases start with, hide errors.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = make().double().eval()
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters() if shaken else ():
            parameter.add_(0.2 * torch.randn(parameter.shape, dtype=DOUBLE, generator=source))
    return model


@dataclass(frozen=True)
class Case:
    """A model, its samples, and which parameters may go sample by sample (the slow way)."""

    make: Callable[[], nn.Module]
    x: Any
    axis: int = 0
    output: Any = None
    pick: Callable[[Any], Tensor] = itself
    slow: tuple[str, ...] = ()
    shaken: bool = True

    def model(self) -> nn.Module:
        return ready(self.make, self.shaken)

    def jacobian(self, model: nn.Module) -> Tensor:
        return jacobian_of(model, self.x, self.axis, self.pick)


def force_way(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every weight takes this way wherever it is possible, whatever it costs."""
    costs = planning.costs

    def only(job: planning.Job, site: planning.Site) -> dict[Any, float]:
        found = costs(job, site)
        return {way: found[way]} if way in found else found

    monkeypatch.setattr(planning, "costs", only)


def slow_parameters(kernel: TangentKernel) -> dict[str, str]:
    """Parameters whose gradients are formed sample by sample, and why."""
    return {name: str(route) for name, route in kernel.routes.items() if route.way == "per sample"}


def check(case: Case) -> TangentKernel:
    """The whole kernel, and its trace in small chunks against some of the samples, are those of brute force."""
    model = case.model()
    expected = case.jacobian(model)
    options = {"batch_axis": case.axis, "output": case.output}
    kernel = ntk(model, case.x, **options)
    assert_equal(kernel.values, kernel_of(expected, expected))
    assert set(slow_parameters(kernel)) <= set(case.slow), slow_parameters(kernel)
    in_chunks = ntk(model, case.x, _first(case, 3), "trace", batch_size=2, **options)
    traced = torch.einsum("nap,map->nm", expected, expected[:3])
    assert_equal(in_chunks.values, traced)
    assert set(slow_parameters(in_chunks)) <= set(case.slow), slow_parameters(in_chunks)
    return kernel


def _first(case: Case, count: int) -> Any:
    def cut(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: cut(part) for key, part in value.items()}
        if isinstance(value, tuple):
            return tuple(map(cut, value))
        return value.narrow(case.axis, 0, count) if isinstance(value, Tensor) else value

    return cut(case.x)
