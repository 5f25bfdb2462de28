"""`ft.global_ntk` of a GRU in float32: products, alone, in batches and factored, then what is asked of them.

At the size of the paper's figures with 30 samples, and with 200, where the peer's eigenpairs would take minutes and
are left out. The authors' own library kpflow is on no package index: the variable KPFLOW names a folder that has it.
What is known of it, on one core of another machine, stands in the rows' texts besides. Its mean over the units sums
over all pairs of them, which is another matrix than the partial trace: the errors of that row say so.

The peer is torch.func (vjp, then jvp; batches one by one and by vmap) in its own process, on the same weights and
inputs. Where an aim is the time of products, those products of ours are the peer. The limit of a product counts

- four passes of 2 * states * 3 n flops, where states = batch * time * n: the sweep back (P*), the gradient of W_hh,
  the products with its change, the sweep forward (P); and the two products with the inputs for W_ih;
- bytes: vectors in and out, and the slopes of the cells (four for each state, and one that carries it on) in each
  sweep, once for all vectors. What a batch writes and reads again in between is not counted.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp

import foretrain as ft
from bench.harness.jobs import Arrays, Job, PeerCall
from bench.harness.rates import Work
from foretrain.empirical.global_ntk import GlobalNTK

TORCH_FUNC, BY_VMAP, OWN_PRODUCT = "torch.func", "torch.func, vmap", "one product of ours"
KPFLOW = "kpflow"
MOST_TOGETHER = 8  # vectors in one vmap: more take memory and no less time each
BYTES = 4
TOLERANCE = 1e-5
RESIDUAL, EIGENPAIRS = 1e-4, 5
ACCURACY, ROUGH = 0.01, 0.05  # standard errors of traces and ranks
SHARE_AIM = 0.7
FASTER, LEANER = {KPFLOW: 2.0}, {KPFLOW: 5.0}
REFERENCE_PRODUCTS = 128  # in float64, for the trace and the rank: good to some 0.5 %
MOST_PRODUCTS = 100  # in whose time the effective rank is aimed at
BATCHES = (1, 8, 32)


@dataclass(frozen=True)
class Sizes:
    """The GRU and its batch."""

    units: int = 256
    samples: int = 30
    steps: int = 90
    features: int = 3

    @property
    def states(self) -> int:
        return self.samples * self.steps * self.units


class Setting:
    """Model, inputs and vectors of seed 0, and the kernel; each is made when a job first needs it."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    @cached_property
    def drawn(self) -> tuple[nn.GRU, Tensor]:
        sizes = self.sizes
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = nn.GRU(sizes.features, sizes.units, batch_first=True)
            return model, torch.randn(sizes.samples, sizes.steps, sizes.features)

    @cached_property
    def kernel(self) -> GlobalNTK:
        return ft.global_ntk(*self.drawn)

    @cached_property
    def _vectors(self) -> Tensor:
        generator = torch.Generator().manual_seed(1)
        return torch.randn(max(BATCHES), self.sizes.states, generator=generator)

    def vectors(self, count: int) -> Tensor:
        """The first of them."""
        return self._vectors[:count]

    def arrays(self, **more: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """What a peer is given."""
        model, x = self.drawn
        weights = {name: value.detach().numpy() for name, value in model.named_parameters()}
        return {"X": x.numpy(), **weights, **more}

    @cached_property
    def reference(self) -> Tensor:
        """The product with the first vector, in float64 by torch alone."""
        model, x = deepcopy(self.drawn[0]).double(), self.drawn[1].double()
        weights = {name: value.detach() for name, value in model.named_parameters()}

        def states(given: dict[str, Tensor]) -> Tensor:
            return functional_call(model, given, (x,))[0].flatten()

        (gradient,) = vjp(states, weights)[1](self.vectors(1)[0].double())
        return jvp(states, (weights,), (gradient,))[1].detach()

    def error(self, arrays: Arrays) -> float:
        """Of the first product, relative in norm."""
        found = torch.as_tensor(np.asarray(arrays["products"][0], np.float64))
        return float(torch.linalg.norm(found - self.reference) / torch.linalg.norm(self.reference))

    @cached_property
    def double(self) -> GlobalNTK:
        """The kernel in float64."""
        return ft.global_ntk(deepcopy(self.drawn[0]).double(), self.drawn[1].double())

    @cached_property
    def true_trace(self) -> float:
        return float(self.double.trace(products=REFERENCE_PRODUCTS, seed=1))

    @cached_property
    def true_rank(self) -> float:
        return float(self.double.effective_rank(products=REFERENCE_PRODUCTS, seed=1))

    @cached_property
    def true_temporal(self) -> npt.NDArray[np.float64]:
        """The largest eigenvalues of the mean of many directions in float64."""
        return self.double.temporal(accuracy=0.004, seed=1).top_modes(EIGENPAIRS).values.numpy()

    def missed_trace(self, arrays: Arrays) -> float:
        return abs(float(arrays["estimate"][0]) / self.true_trace - 1)

    def missed_rank(self, arrays: Arrays) -> float:
        return abs(float(arrays["estimate"][0]) / self.true_rank - 1)

    def missed_temporal(self, arrays: Arrays) -> float:
        """The largest distance of the largest eigenvalues, over the first."""
        misses = np.abs(np.asarray(arrays["values"]) - self.true_temporal)
        return float(misses.max() / self.true_temporal[0])

    def residual(self, arrays: Arrays) -> float:
        """The largest |A v - value v| over value."""
        values = torch.as_tensor(np.asarray(arrays["values"], np.float32))
        vectors = torch.as_tensor(np.asarray(arrays["vectors"], np.float32)).reshape(len(values), -1)
        misses = (self.kernel.apply(vectors) - values[:, None] * vectors).norm(dim=1)
        return float((misses / values).max())


def jobs(sizes: Sizes | None = None, large: Sizes | None = None) -> list[Job]:
    """All rows."""
    setting, other = Setting(sizes or Sizes()), Setting(large or Sizes(samples=200))
    return [
        _linearised(setting),
        *(_products(setting, count) for count in BATCHES),
        _loop_products(setting, 8),
        _factored(setting),
        _trace(setting),
        _rank(setting),
        _rough_rank(setting),
        _eigenpairs(setting),
        _temporal(setting),
        _spatial(setting),
        _products(other, 8),
        _trace(other),
        _rank(other),
        _rough_rank(other),
        _eigenpairs(other, peers=False),
        _temporal(other),
        _spatial(other),
    ]


def product_work(sizes: Sizes, count: int) -> Work:
    """Of products with a batch of vectors."""
    rows, units = sizes.samples * sizes.steps, sizes.units
    each = 4 * 2.0 * rows * 3 * units * units + 2 * 2.0 * rows * 3 * units * sizes.features
    moved = 2 * count * sizes.states + 2 * 5 * sizes.states
    return Work("float32", flops=count * each, moved=BYTES * float(moved))


def _name(setting: Setting, what: str) -> str:
    sizes = setting.sizes
    return f"GRU {sizes.units}, {sizes.samples} x {sizes.steps} steps: {what}"


def _job(setting: Setting, what: str, **more: Any) -> Job:
    """With the labels that all rows share."""
    sizes = {"states": setting.sizes.states, "units": setting.sizes.units, "samples": setting.sizes.samples}
    return Job(name=_name(setting, what), sizes=sizes, precision="float32", **more)


def _linearised(setting: Setting) -> Job:
    def ours() -> Arrays:
        return {"states": ft.global_ntk(*setting.drawn).dynamics.values.numpy()}

    return _job(setting, "set up", how="states and slopes of all steps", ours=ours)


def _products(setting: Setting, count: int) -> Job:
    vectors = setting.vectors(count)

    def ours() -> Arrays:
        return {"products": setting.kernel.apply(vectors).numpy()}

    peers = {TORCH_FUNC: _call(setting, "global-state products", {"together": 1}, vectors=vectors.numpy())}
    if count > 1:
        options = {"together": MOST_TOGETHER}
        peers[BY_VMAP] = _call(setting, "global-state products", options, vectors=vectors.numpy())
    return _job(
        setting,
        "one product" if count == 1 else f"{count} products",
        how="vectors of seed 1; the peer keeps the graph of its vjp",
        ours=ours,
        work=product_work(setting.sizes, count),
        peer=peers,
        share_aim=SHARE_AIM if count > 1 else None,
        tolerance=TOLERANCE,
        error=setting.error,
        peer_error=setting.error,
    )


class Loop(nn.Module):
    """A cell with a GRU layer's weights, called step by step."""

    def __init__(self, layer: nn.GRU) -> None:
        super().__init__()
        self.cell = nn.GRUCell(layer.input_size, layer.hidden_size)
        self.cell.load_state_dict({name.removesuffix("_l0"): v for name, v in layer.state_dict().items()})

    def forward(self, x: Tensor) -> Tensor:
        """The last state."""
        h: Tensor | None = None
        for step in x.unbind(1):
            h = self.cell(step, h)
        assert h is not None
        return h


def _loop_products(setting: Setting, count: int) -> Job:
    vectors = setting.vectors(count)
    kernels: list[GlobalNTK] = []

    def ours() -> Arrays:
        if not kernels:
            kernels.append(ft.global_ntk(Loop(setting.drawn[0]), setting.drawn[1], "cell"))
        return {"products": kernels[0].apply(vectors).numpy()}

    def layer() -> Arrays:
        return {"products": setting.kernel.apply(vectors).numpy()}

    return _job(
        setting,
        f"{count} products, a loop over nn.GRUCell",
        how="the same weights, called step by step in a module of one's own; beside it the layer",
        ours=ours,
        work=product_work(setting.sizes, count),
        peer={"the layer": layer},
        share_aim=SHARE_AIM,
        tolerance=TOLERANCE,
        error=setting.error,
    )


def _factored(setting: Setting) -> Job:
    vectors = setting.vectors(1)

    def ours() -> Arrays:
        kernel = setting.kernel
        found = kernel.P.apply(kernel.K.apply(kernel.P.apply_adjoint(vectors)))
        return {"products": found.numpy()}

    def plain() -> Arrays:
        return {"products": setting.kernel.apply(vectors).numpy()}

    peer = _call(setting, "global-state products", {"together": 1}, vectors=vectors.numpy())
    return _job(
        setting,
        "one product P K P*",
        how="the three operators one after the other, without Jacobians",
        ours=ours,
        work=product_work(setting.sizes, 1),
        peer={OWN_PRODUCT: plain, TORCH_FUNC: peer},
        aim={OWN_PRODUCT: 1.0, TORCH_FUNC: 1.0},
        tolerance=TOLERANCE,
        error=setting.error,
        peer_error=setting.error,
    )


def _trace(setting: Setting) -> Job:
    return _job(
        setting,
        "trace to 1 %",
        how="from random directions of the parameters; the error is the distance from a reference in float64",
        ours=_estimated(lambda: setting.kernel.trace(accuracy=ACCURACY)),
        peer=_call(setting, "global-state trace", peer=KPFLOW),
        aim=FASTER,
        memory_aims=LEANER,
        tolerance=3 * ACCURACY,
        error=setting.missed_trace,
        peer_error=setting.missed_trace,
    )


def _rank(setting: Setting) -> Job:
    def hundred() -> Arrays:
        batches = [
            min(max(BATCHES), MOST_PRODUCTS - start) for start in range(0, MOST_PRODUCTS, max(BATCHES))
        ]
        found = [setting.kernel.apply(setting.vectors(count))[:1] for count in batches]
        return {"products": found[0].numpy()}

    return _job(
        setting,
        "effective rank to 1 %",
        how=f"the error is the stated standard error, relative / {MOST_PRODUCTS} products of ours in batches"
        + _known(setting, "7.7 s"),
        ours=_estimated(lambda: setting.kernel.effective_rank(accuracy=ACCURACY)),
        peer={f"{MOST_PRODUCTS} products of ours": hundred},
        aim=1.0,
        tolerance=ACCURACY,
        error=_stated,
    )


def _rough_rank(setting: Setting) -> Job:
    return _job(
        setting,
        "effective rank to 5 %",
        how="what is asked for bounds the work; the error is the distance from a reference in float64"
        + _known(setting, "7.7 s"),
        ours=_estimated(lambda: setting.kernel.effective_rank(accuracy=ROUGH)),
        peer=_call(setting, "global-state rank", peer=KPFLOW),
        aim=FASTER,
        memory_aims=LEANER,
        tolerance=3 * ROUGH,
        error=setting.missed_rank,
        peer_error=setting.missed_rank,
    )


def _eigenpairs(setting: Setting, *, peers: bool = True) -> Job:
    def ours() -> Arrays:
        found = setting.kernel.top_modes(EIGENPAIRS, tolerance=RESIDUAL)
        return {"values": found.values.numpy(), "vectors": found.vectors.numpy()}

    options = {"count": EIGENPAIRS, "tolerance": RESIDUAL}
    return _job(
        setting,
        f"top {EIGENPAIRS} eigenpairs",
        how="to a relative residual of 1e-4, which is the error / scipy's eigsh on products of torch.func"
        + _known(setting, "15.2 s"),
        ours=ours,
        peer={
            each: _call(setting, "global-state eigenpairs", options, peer=each)
            for each in (TORCH_FUNC, KPFLOW)
        }
        if peers
        else None,
        aim={TORCH_FUNC: 3.0, **FASTER} if peers else None,
        memory_aims=LEANER if peers else {},
        tolerance=RESIDUAL,
        error=setting.residual,
        peer_error=setting.residual,
    )


def _temporal(setting: Setting) -> Job:
    def ours() -> Arrays:
        kernel = setting.kernel.temporal(accuracy=ACCURACY)
        modes = kernel.top_modes(EIGENPAIRS)
        return {"values": modes.values.numpy(), "rank": np.array([kernel.rank.value])}

    return _job(
        setting,
        f"temporal partial trace, its effective rank to 1 % and its top {EIGENPAIRS} modes",
        how="from random directions of the parameters; the error is the largest of the eigenvalues, over the first"
        + _known(setting, "3.7 s"),
        ours=ours,
        peer=_call(
            setting, "global-state temporal", {"count": EIGENPAIRS, "tolerance": RESIDUAL}, peer=KPFLOW
        ),
        aim=FASTER,
        memory_aims=LEANER,
        error=setting.missed_temporal,
        peer_error=setting.missed_temporal,
    )


def _spatial(setting: Setting) -> Job:
    return _job(
        setting,
        "effective rank of the spatial partial trace to 1 %",
        how="from random directions of the parameters, other ones for every sample; the error is the stated standard "
        "error, relative",
        ours=_estimated(lambda: setting.kernel.spatial(accuracy=ACCURACY).rank),
        tolerance=ACCURACY,
        error=_stated,
    )


def _known(setting: Setting, figure: str) -> str:
    """What kpflow is known to take, at the size where that was measured."""
    return f"; kpflow is known to take {figure} on one core" if setting.sizes == Sizes() else ""


def _estimated(call: Callable[[], Any]) -> Callable[[], Arrays]:
    def run() -> Arrays:
        found = call()
        return {"estimate": np.array([found.value, found.standard_error])}

    return run


def _stated(arrays: Arrays) -> float:
    value, error = arrays["estimate"]
    return float(error / value)


def _call(
    setting: Setting,
    call: str,
    options: dict[str, Any] | None = None,
    *,
    peer: str = TORCH_FUNC,
    **more: npt.NDArray[Any],
) -> PeerCall:
    return PeerCall(peer, call, setting.arrays(**more), options or {})
