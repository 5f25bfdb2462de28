"""The tangent kernel after real training beside its prediction from initialisation, at several widths.

Three predictions, all made before training: the kernel stays as it is ("frozen"); it moves along the dNTK as in
(11.138) ("first"); it moves along dNTK and ddNTKs while gradient descent runs in sample space ("second"). A change of
the kernel is O(1/n). Of it, the dNTK gives what is odd in the residual y − z, the ddNTKs what is even, and both are of
the same order, so (11.138) is put to the test on the odd part: every network is trained towards y and towards its
mirror image 2z − y, and half the difference of both kernels is what (11.138) predicts, up to O(1/n²). With the ddNTKs
the whole change is predicted up to O(1/n²).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from foretrain.compare.build import Network, build, parameter_groups
from foretrain.empirical.differentials.entry import ddntk, dntk
from foretrain.empirical.tangent_kernel.entry import ntk
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.flow.entry import check_network
from foretrain.theory.prediction.nearly_kernel import QuadraticModel, solve

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

PREDICTIONS = ("frozen", "first", "second")
_TOLERANCE = 1e-10  # of the residual at which training ends: changes of 1e-6 of the kernel are still resolved
_MOST_STEPS = 200_000
_ALLOWED = 3.0  # standard errors
_CURVATURE = 0.15  # of a slope: what the next power of 1/n adds at widths of a few ten times the depth


class Differentials(NamedTuple):
    """The kernel of a network and how it begins to move; pairs (sample, output) as rows, training rows first."""

    outputs: Array  # z, (rows,)
    kernel: Array  # Ĥ, (rows, rows)
    first: Array  # dH_{012}
    third: Array  # ddI_{0123}
    second: Array  # ddII_{1234}


@dataclass(frozen=True)
class Slope:
    """A power of the width with its standard error."""

    value: float
    standard_error: float

    def agrees(self, expected: float) -> bool:
        """Whether it is the expected power, within three standard errors and the next power's share."""
        return abs(self.value - expected) <= _ALLOWED * self.standard_error + _CURVATURE

    def __repr__(self) -> str:
        return f"{self.value:.2f} ± {self.standard_error:.2f}"


@dataclass(frozen=True, eq=False, repr=False)
class EffectiveKernels:
    """What was found; ``data`` holds sizes relative to the kernel, by (width, draw), labelled.

    ``change``: of the kernel by training; ``left_first`` and ``left_second``: what the predictions leave of it;
    ``odd_change``, ``odd_left``: of the odd part and what (11.138) leaves of it; ``even_change``; ``steps``.
    """

    mlp: MLP
    data: xarray.Dataset

    def slope(self, name: str) -> Slope:
        """The power of n with which a size falls, from the means of its logarithm at every width."""
        return slope_of(self.data[name])

    @property
    def agrees(self) -> bool:
        """Whether changes fall as 1/n, and what is left by (11.138) of the odd part, and by all, as 1/n²."""
        return all(self.slope(name).agrees(power) for name, power in _EXPECTED.items())

    @property
    def verdict(self) -> str:
        """One sentence."""
        word = "agrees" if self.agrees else "does NOT agree"
        return (
            f"{self.mlp.activation.label}: the kernel after training {word} with its prediction to the next order (change "
            f"n^{self.slope('change')}; left of the odd part by (11.138) n^{self.slope('odd_left')}, of all by dNTK and "
            f"ddNTKs n^{self.slope('left_second')})."
        )

    def __repr__(self) -> str:
        means = np.exp(np.log(self.data).mean("draw"))
        lines = [f"EffectiveKernels of {self.data.sizes['draw']} networks per width, relative to the kernel"]
        lines.append("  width   change    left by (11.138)   by ddNTKs too   odd change   left by (11.138)")
        for width in means.width.values:
            row = means.sel(width=width)
            lines.append(
                f"  {int(width):5d}   {float(row.change):.2e}  {float(row.left_first):.2e}           "
                f"{float(row.left_second):.2e}        {float(row.odd_change):.2e}     {float(row.odd_left):.2e}"
            )
        return "\n".join([*lines, f"  {self.verdict}"])


_EXPECTED = {"change": -1.0, "odd_change": -1.0, "odd_left": -2.0, "left_second": -2.0}


def slope_of(sizes: xarray.DataArray) -> Slope:
    """The slope of the mean logarithm against log width, weighted by standard errors over draws."""
    logs = np.log(sizes.transpose("width", "draw").values)
    x = np.log(sizes.width.values.astype(float))
    error = logs.std(axis=1, ddof=1) / np.sqrt(logs.shape[1])
    weight = 1 / np.maximum(error, 1e-12) ** 2
    centre = x - np.average(x, weights=weight)
    value = float((weight * centre) @ logs.mean(axis=1) / ((weight * centre) @ centre))
    return Slope(value, float(((weight * centre) @ centre) ** -0.5))


def compare_effective_kernels(
    mlp: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    X_test: ArrayLike | None = None,
    *,
    widths: Sequence[int] = (32, 64, 128, 256),
    draws: int = 12,
    step: float = 1.0,
    seed: Seed = 0,
) -> EffectiveKernels:
    """Train random networks of several widths on (X, Y), and look at their kernel on X and X_test before and after.

    Parameters
    ----------
    mlp
        Activation, depth and hyperparameters; all hidden layers get the widths that are asked for.
    Y
        Changes of the outputs that are to be learned, (N,) or (N, n_out): targets are the outputs at initialisation
        plus Y, and minus Y for the mirror image.
    step
        Learning rate of plain gradient descent times the largest eigenvalue of the training kernel, below 2.
    """
    inputs, wanted, train_rows = _checked(mlp, X, Y, X_test)
    if len(set(widths)) < 2 or min(widths) < 2 or draws < 2:
        raise InputError(f"widths are {list(widths)} and draws {draws}: give at least two of each.")
    if not 0 < step < 2:
        raise InputError(f"step is {step}, but gradient descent converges only between 0 and 2.")
    found = []
    for width, source in zip(widths, spawn(seed, len(widths)), strict=True):
        network = mlp.replace(n_in=inputs.shape[1], width=[width] * len(mlp.hidden_widths))
        rows = [
            one_network(network, inputs, wanted, train_rows, step, own)
            for own in track(spawn(source, draws), f"width {width}")
        ]
        found.append({name: [row[name] for row in rows] for name in rows[0]})
    import xarray

    data = xarray.Dataset(
        {name: (("width", "draw"), np.array([each[name] for each in found])) for name in found[0]},
        coords={"width": list(widths), "draw": np.arange(draws)},
        attrs={"activation": mlp.activation.label, "depth": mlp.depth, "step": step},
    )
    return EffectiveKernels(mlp, data)


def one_network(
    mlp: MLP, X: Array, wanted: Array, train_rows: int, step: float, seed: Seed
) -> dict[str, float]:
    """Sizes of changes and of what predictions leave, for one random network."""
    x = torch.from_numpy(X)
    start = differentials(build(mlp, seed=seed), x)
    eta = step / float(np.linalg.eigvalsh(start.kernel[:train_rows, :train_rows])[-1])
    moved, steps = [], []
    for sign in (1.0, -1.0):
        targets = start.outputs[:train_rows] + sign * wanted
        network = build(mlp, seed=seed)
        steps.append(_train(network, x, targets, eta))
        first = _predicted(start, targets) - start.kernel
        second = descended_kernel(start, targets, eta) - start.kernel
        moved.append((kernel_of(network, x) - start.kernel, first, second))
    (change, first, second), (mirrored, _, _) = moved
    scale = float(np.linalg.norm(start.kernel))
    sizes = {
        "change": change,
        "left_first": change - first,
        "left_second": change - second,
        "odd_change": (change - mirrored) / 2,
        "odd_left": (change - mirrored) / 2 - first,
        "even_change": (change + mirrored) / 2,
    }
    return {name: float(np.linalg.norm(value)) / scale for name, value in sizes.items()} | {
        "steps": float(np.mean(steps))
    }


def differentials(network: Network, x: Tensor) -> Differentials:
    """Kernel, dNTK and ddNTKs of a network with the theory's learning rates."""
    options: dict[str, Any] = {"rates": parameter_groups(network, network.mlp, eta=1.0)}
    second = ddntk(network, x, **options)
    return Differentials(
        network(x).detach().numpy().reshape(-1),
        kernel_of(network, x),
        *(each.joint().numpy() for each in (dntk(network, x, **options), second.dd_I, second.dd_II)),
    )


def kernel_of(network: Network, x: Tensor) -> Array:
    """The NTK with the theory's learning rates, pairs (sample, output) as rows."""
    found = np.asarray(ntk(network, x, rates=parameter_groups(network, network.mlp, eta=1.0)))
    rows = found.shape[0] * found.shape[2]
    return np.asarray(found.transpose(0, 2, 1, 3).reshape(rows, rows))


def _predicted(start: Differentials, targets: Array) -> Array:
    """(11.138), with wiring: rows are samples of a model with one output."""
    rows = len(targets)
    model = QuadraticModel.from_arrays(start.kernel, start.first[:, :, :rows], start.outputs)
    return solve(model, np.arange(rows), targets, "flow").effective_kernel(np.arange(len(start.kernel)))[0]


def descended_kernel(start: Differentials, targets: Array, eta: float) -> Array:
    """The kernel at the end of gradient descent in sample space, with frozen ddNTKs (∞.4)-(∞.6)."""
    A = slice(0, len(targets))
    z, H, dH = start.outputs, start.kernel, start.first
    ddI, ddII = start.third[..., A], start.second[..., A]
    moving = ddI + ddII + ddII.transpose(0, 2, 1, 3)
    bent = ddI[:, :, A] + ddI[:, :, A].transpose(1, 0, 2, 3) + 2 * ddII[:, :, A]
    goal = _TOLERANCE * float(np.abs(targets - z[A]).max())
    for _ in range(_MOST_STEPS):
        e = z[A] - targets
        if np.abs(e).max() <= goal:
            return H
        along = dH[..., A] @ e
        z = z - eta * H[:, A] @ e + eta**2 / 2 * along[:, A] @ e - eta**3 / 6 * ddI[:, A, A] @ e @ e @ e
        H = H - eta * (along + along.T) + eta**2 / 2 * bent @ e @ e
        dH = dH - eta * moving @ e
    raise _not_ended()


def _train(network: Network, x: Tensor, targets: Array, eta: float) -> int:
    """Full-batch gradient descent by torch on half the sum of squares, to the end; how many steps it took."""
    optimizer = torch.optim.SGD(parameter_groups(network, network.mlp, eta=eta))
    y = torch.from_numpy(targets).reshape(-1, network.mlp.n_out)
    goal = 0.0
    for step in range(_MOST_STEPS):
        optimizer.zero_grad()
        error = network(x[: len(y)]) - y
        largest = float(error.detach().abs().max())
        goal = goal or _TOLERANCE * largest
        if largest <= goal:
            return step
        (0.5 * (error**2).sum()).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    raise _not_ended()


def _not_ended() -> InputError:
    return InputError(
        f"gradient descent did not end in {_MOST_STEPS} steps: give fewer or more different samples, or smaller Y."
    )


def _checked(mlp: MLP, X: ArrayLike, Y: ArrayLike, X_test: ArrayLike | None) -> tuple[Array, Array, int]:
    """All inputs, training ones first; the wanted changes as rows; the number of training rows."""
    check_network(mlp)
    if not mlp.activation.is_smooth:
        raise NotSupportedError(
            f"{mlp.activation.label} has kinks, at which the differentials of a network miss what training does: "
            "choose a smooth activation."
        )
    if not mlp.hidden_widths:
        raise InputError("depth 1 has no hidden layer, so its kernel does not move: give depth 2 or more.")
    train = np.atleast_2d(np.asarray(X, dtype=np.float64))
    wanted = np.asarray(Y, dtype=np.float64)
    wanted = wanted[:, None] if wanted.ndim == 1 else wanted
    if train.ndim != 2 or wanted.shape != (len(train), mlp.n_out) or not wanted.any():
        raise InputError(
            f"X has shape {train.shape} and Y {wanted.shape}: give (N, n_in) and changes (N, {mlp.n_out}), not all zero."
        )
    inputs = train if X_test is None else np.concatenate([train, np.atleast_2d(np.asarray(X_test, float))])
    return inputs, wanted.reshape(-1), wanted.size
