"""The tangent kernel after real training beside its prediction from initialisation, at several widths.

Three predictions, all made before training: the kernel stays as it is ("frozen"); it moves along the dNTK as in
(11.138) ("first"); it moves along dNTK and ddNTKs while gradient descent runs in sample space ("second"). A change
of the kernel is O(1/n). Of it, the dNTK gives what is odd in the residual y − z, the ddNTKs what is even, and both
are of the same order, so (11.138) is put to the test on the odd part: every network is trained towards y and towards
its mirror image 2z − y, and half the difference of both kernels is what (11.138) predicts, up to O(1/n²). With the
ddNTKs the whole change is predicted up to O(1/n²).
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
from foretrain.compare.joint_training import (
    MOST_STEPS,
    TOLERANCE,
    Learner,
    diverged,
    not_ended,
    train_together,
)
from foretrain.compare.slope import Slope
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


class Differentials(NamedTuple):
    """The kernel of a network and how it begins to move; pairs (sample, output) as rows, training rows first."""

    outputs: Array  # z, (rows,)
    kernel: Array  # Ĥ, (rows, rows)
    first: Array  # dH_{012}
    third: Array  # ddI_{0123}
    second: Array  # ddII_{1234}


@dataclass(frozen=True, eq=False, repr=False)
class EffectiveKernels:
    """What was found; ``data`` holds sizes relative to the kernel, by (width, draw), labelled.

    ``change``: of the kernel by training; ``left_first`` and ``left_second``: what the predictions leave of it;
    ``odd_change``, ``odd_left``: of the odd part and what (11.138) leaves of it; ``even_change``; ``steps``.
    """

    mlp: MLP
    data: xarray.Dataset

    def slope(self, name: str, over: str | None = None) -> Slope:
        """The power of n with which a size falls, or its share of another one, see :func:`slope_of`."""
        return slope_of(self.data[name], None if over is None else self.data[over])

    def typical(self) -> xarray.Dataset:
        """Root mean squares over networks, by width."""
        return self.data.map(lambda sizes: np.sqrt((sizes**2).mean(dim="draw")))

    @property
    def agrees(self) -> bool:
        """Whether the change falls as 1/n, and the share that predictions leave of it is one order smaller."""
        return all(self.slope(*names).agrees(-1.0) for names in EXPECTED)

    @property
    def verdict(self) -> str:
        """One sentence."""
        word = "agrees" if self.agrees else "does NOT agree"
        return (
            f"{self.mlp.activation.label}: the kernel after training {word} with its prediction to the next order "
            f"(the change falls as n^({self.slope('change')}); of its odd part (11.138) leaves a share "
            f"n^({self.slope('odd_left', 'odd_change')}), of all of it dNTK and ddNTKs leave "
            f"n^({self.slope('left_second', 'change')}))."
        )

    def __repr__(self) -> str:
        means = self.typical()
        lines = [f"EffectiveKernels of {self.data.sizes['draw']} networks per width, relative to the kernel"]
        lines.append("  width   change    left by (11.138)   by ddNTKs too   odd change   left by (11.138)")
        for width in means.width.values:
            row = means.sel(width=width)
            lines.append(
                f"  {int(width):5d}   {float(row.change):.2e}  {float(row.left_first):.2e}           "
                f"{float(row.left_second):.2e}        {float(row.odd_change):.2e}     {float(row.odd_left):.2e}"
            )
        return "\n".join([*lines, f"  {self.verdict}"])


EXPECTED = (("change",), ("odd_left", "odd_change"), ("left_second", "change"))  # all fall as 1/n


def root_mean_square(sizes: Array, over: Array | None = None) -> tuple[Array, Array]:
    """The logarithm of the root mean square over the last axis, or of a ratio of two, and its standard error.

    Sizes are sums of products of several Gaussian numbers, whose typical value is much slower to reach its power of
    1/n than its root mean square is.
    """
    squares = [sizes**2] if over is None else [sizes**2, over**2]
    means = [each.mean(axis=-1) for each in squares]
    signs = (0.5, -0.5)
    value = sum(sign * np.log(mean) for sign, mean in zip(signs, means))
    influence = sum(sign * each / mean[..., None] for sign, each, mean in zip(signs, squares, means))
    return np.asarray(value), np.std(influence, axis=-1, ddof=1) / np.sqrt(sizes.shape[-1])


def slope_of(sizes: xarray.DataArray, over: xarray.DataArray | None = None) -> Slope:
    """The power p of n in a root mean square, or in a ratio of two, fitted by a + p log n + b / n."""
    known = sizes.dropna("width")
    n = known.width.values.astype(float)
    both = [
        each.sel(width=known.width).transpose("width", "draw").values
        for each in (sizes, over)
        if each is not None
    ]
    values, errors = root_mean_square(*both)
    # One error for all widths: an own one is small where large sizes happened not to be drawn, and would pull there.
    error = max(float(np.sqrt(np.mean(errors**2))), 1e-12)
    design = np.stack([np.ones_like(n), np.log(n / n[0]), n[0] / n], axis=1)
    inverse = np.linalg.pinv(design)[1]
    return Slope(float(inverse @ values), error * float(np.linalg.norm(inverse)))


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
    if len(set(widths)) < 3 or min(widths) < 2:
        raise InputError(f"widths are {list(widths)}: give at least three different ones, each at least 2.")
    found = [
        measured_networks(
            mlp.replace(width=[width] * len(mlp.hidden_widths)),
            X,
            Y,
            X_test,
            draws=draws,
            step=step,
            seed=own,
        )
        for width, own in zip(widths, spawn(seed, len(widths)), strict=True)
    ]
    import xarray

    data = xarray.Dataset(
        {name: (("width", "draw"), np.stack([each[name] for each in found])) for name in found[0]},
        coords={"width": list(widths), "draw": np.arange(draws)},
        attrs={"activation": mlp.activation.label, "depth": mlp.depth, "step": step},
    )
    return EffectiveKernels(mlp, data)


def measured_networks(
    mlp: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    X_test: ArrayLike | None = None,
    *,
    draws: int,
    step: float = 1.0,
    seed: Seed = 0,
) -> dict[str, Array]:
    """The sizes of :class:`EffectiveKernels` for random networks of one width, (draws,) each."""
    inputs, wanted = _checked(mlp, X, Y, X_test)
    if draws < 2:
        raise InputError(f"draws is {draws}, but a standard error needs at least 2.")
    if not 0 < step < 2:
        raise InputError(f"step is {step}, but gradient descent converges only between 0 and 2.")
    whole, x, seeds = mlp.replace(n_in=inputs.shape[1]), torch.from_numpy(inputs), spawn(seed, draws)
    starts = [differentials(build(whole, seed=own), x) for own in track(seeds, "kernels before training")]
    rows = len(wanted)
    etas = [_rate(start.kernel[:rows, :rows], step) for start in starts]
    learners = [
        Learner(build(whole, seed=own), start.outputs[:rows] + sign * wanted, eta)
        for own, start, eta in zip(seeds, starts, etas, strict=True)
        for sign in (1.0, -1.0)
    ]
    steps = train_together(learners, x)
    pairs = zip(learners[::2], learners[1::2], strict=True)
    found = [_sizes(start, *pair, x) for start, pair in zip(starts, track(list(pairs), "kernels after"))]
    return {name: np.array([row[name] for row in found]) for name in found[0]} | {
        "steps": steps.reshape(-1, 2).mean(axis=1)
    }


def _rate(kernel: Array, step: float) -> float:
    """η = step / w_max, if descent then ends; the smallest eigenvalue says how long it takes."""
    values = np.linalg.eigvalsh(kernel)
    if step * values[0] * MOST_STEPS < -np.log(TOLERANCE) * values[-1]:
        raise not_ended()
    return step / float(values[-1])


def _sizes(start: Differentials, learner: Learner, mirror: Learner, x: Tensor) -> dict[str, float]:
    """Sizes of changes, and of what predictions leave of them, for one random network trained both ways."""
    change, mirrored = (kernel_of(each.network, x) - start.kernel for each in (learner, mirror))
    first = _predicted(start, learner.targets) - start.kernel
    second = descended_kernel(start, learner.targets, learner.eta) - start.kernel
    odd, even = (change - mirrored) / 2, (change + mirrored) / 2
    sizes = {
        "change": change,
        "left_first": change - first,
        "left_second": change - second,
        "odd_change": odd,
        "odd_left": odd - first,
        "even_change": even,
    }
    scale = float(np.linalg.norm(start.kernel))
    return {name: float(np.linalg.norm(value)) / scale for name, value in sizes.items()}


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
    found = solve(model, np.arange(rows), targets, "flow").effective_kernel(np.arange(len(start.kernel)))
    return np.asarray(found[0])


def descended_kernel(start: Differentials, targets: Array, eta: float) -> Array:
    """The kernel at the end of gradient descent in sample space, with frozen ddNTKs (∞.4)-(∞.6)."""
    A = slice(0, len(targets))
    z, H, dH = start.outputs, start.kernel, start.first
    ddI, ddII = start.third[..., A], start.second[..., A]
    moving = ddI + ddII + ddII.transpose(0, 2, 1, 3)
    bent = ddI[:, :, A] + ddI[:, :, A].transpose(1, 0, 2, 3) + 2 * ddII[:, :, A]
    goal = TOLERANCE * float(np.abs(targets - z[A]).max())
    for _ in range(MOST_STEPS):
        e = z[A] - targets
        if not np.isfinite(e).all():
            raise diverged()
        if np.abs(e).max() <= goal:
            return H
        along = dH[..., A] @ e
        z = z - eta * H[:, A] @ e + eta**2 / 2 * along[:, A] @ e - eta**3 / 6 * ddI[:, A, A] @ e @ e @ e
        H = H - eta * (along + along.T) + eta**2 / 2 * bent @ e @ e
        dH = dH - eta * moving @ e
    raise not_ended()


def _checked(mlp: MLP, X: ArrayLike, Y: ArrayLike, X_test: ArrayLike | None) -> tuple[Array, Array]:
    """All inputs, training ones first, and the wanted changes as rows."""
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
            f"X has shape {train.shape} and Y {wanted.shape}: give (N, n_in) and changes (N, {mlp.n_out}), not "
            "all zero."
        )
    tests = train[:0] if X_test is None else np.atleast_2d(np.asarray(X_test, dtype=np.float64))
    if tests.ndim != 2 or tests.shape[1] != train.shape[1]:
        raise InputError(f"X_test has shape {tests.shape}, but samples of X have {train.shape[1]} entries.")
    inputs = np.concatenate([train, tests])
    if not (np.isfinite(inputs).all() and np.isfinite(wanted).all()):
        raise InputError("X, Y or X_test has entries that are nan or infinite: remove or replace them first.")
    return inputs, wanted.reshape(-1)
