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
from numpy.typing import ArrayLike
from torch import Tensor

from foretrain.compare.build import Network, build, parameter_groups
from foretrain.compare.judging.powers import Slope, slope_of
from foretrain.compare.trained.networks import Networks, group_size, groups_of, stacked
from foretrain.compare.trained.training import MOST_STEPS, Training, train
from foretrain.empirical.differentials.kernel_differentials import ddntk, dntk
from foretrain.empirical.tangent_kernel.kernel import ntk
from foretrain.support.answers import Answer, Figure, Result, Table, log
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.support.threads import torch_over_cores
from foretrain.theory.architecture import MLP, FloatArray, check_network
from foretrain.theory.prediction.nearly_kernel import QuadraticModel, solve

if TYPE_CHECKING:
    import xarray


TOLERANCE = 1e-10  # of the residual at which training ends: changes of 1e-6 of the kernel are still resolved


class Differentials(NamedTuple):
    """The kernel of a network and how it begins to move; pairs (sample, output) as rows, training rows first."""

    outputs: FloatArray  # z, (rows,)
    kernel: FloatArray  # Ĥ, (rows, rows)
    first: FloatArray  # dH_{012}
    third: FloatArray  # ddI_{0123}
    second: FloatArray  # ddII_{1234}


@dataclass(frozen=True, eq=False, repr=False)
class EffectiveKernels(Result):
    """What was found; ``data`` holds sizes relative to the kernel, by (width, draw), labelled.

    ``change``: of the kernel by training; ``left_first`` and ``left_second``: what the predictions leave of it;
    ``odd_change``, ``odd_left``: of the odd part and what (11.138) leaves of it; ``even_change``; ``steps``.
    """

    mlp: MLP
    data: xarray.Dataset

    def slope(self, name: str, over: str | None = None) -> Slope:
        """The power of n with which a size falls, or its share of another one (``judging.powers.slope_of``)."""
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

    def answer(self) -> Answer:
        """The verdict, and sizes relative to the kernel by width."""
        means = self.typical()
        columns = {
            "change": "change",
            "left by (11.138)": "left_first",
            "left by ddNTKs too": "left_second",
            "odd change": "odd_change",
            "odd left by (11.138)": "odd_left",
        }
        rows = [
            (int(width), *(float(means[name].sel(width=width)) for name in columns.values()))
            for width in means.width.values
        ]
        caption = f"Sizes relative to the kernel, root mean square over {self.data.sizes['draw']} networks per width"
        table = Table(("width", *columns), rows, caption)
        return Answer(self.verdict, [table, self.figure], self.data, holds=self.agrees)

    def figure(self) -> Figure:
        """The change of the kernel, and what the predictions leave of it, against the width."""
        means = self.typical()
        n = means.width.values
        figure = Figure(f"Tangent kernels of {self.mlp.activation.label} after training", columns=2)
        axes = {"x": log("width n", ticks=n.tolist()), "y": log("size relative to the kernel")}
        whole = figure.panel("all of the change", **axes)
        odd = figure.panel("its part that is odd in the residual", **axes)
        for panel, name, label in (
            (whole, "change", "change by training"),
            (whole, "left_first", "left by (11.138)"),
            (whole, "left_second", "left by dNTK and ddNTKs"),
            (odd, "odd_change", "change by training"),
            (odd, "odd_left", "left by (11.138)"),
        ):
            panel.curve(n, means[name].values, "o-", label)
        return figure


EXPECTED = (("change",), ("odd_left", "odd_change"), ("left_second", "change"))  # all fall as 1/n


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
        raise InputError(f"`widths` are {list(widths)}: give at least three different ones, each at least 2.")
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
) -> dict[str, FloatArray]:
    """The sizes of :class:`EffectiveKernels` for random networks of one width, (draws,) each."""
    inputs, wanted = _checked(mlp, X, Y, X_test)
    draws = whole_number("draws", draws, least=2)  # for a standard error
    if not 0 < step < 2:
        raise InputError(f"step is {step}, but gradient descent converges only between 0 and 2.")
    whole, x, seeds = mlp.replace(n_in=inputs.shape[1]), torch.from_numpy(inputs), spawn(seed, draws)
    starts = [differentials(build(whole, seed=own), x) for own in track(seeds, "kernels before training")]
    rows = len(wanted)
    ends = np.array([np.linalg.eigvalsh(start.kernel[:rows, :rows])[[0, -1]] for start in starts])
    # The smallest eigenvalue says how long descent takes.
    if (step * ends[:, 0] * MOST_STEPS < -np.log(TOLERANCE) * ends[:, 1]).any():
        raise _not_ended()
    etas = step / ends[:, 1]
    # Every network learns twice: towards y, and towards its mirror image.
    targets = np.stack([start.outputs[:rows] + sign * wanted for start in starts for sign in (1.0, -1.0)])

    def trained(numbers: range) -> tuple[FloatArray, FloatArray]:
        networks = stacked([build(whole, seed=seeds[number // 2]) for number in numbers])
        own = slice(numbers.start, numbers.stop)
        return trained_kernels(networks, inputs, targets[own], np.repeat(etas, 2)[own])

    groups = groups_of(range(2 * draws), group_size(whole))
    parts = torch_over_cores(trained, groups, "training", uses_blas=True)
    kernels, steps = (np.concatenate(column) for column in zip(*parts, strict=True))
    found = [
        _sizes(start, targets[2 * place], etas[place], *kernels[2 * place : 2 * place + 2])
        for place, start in enumerate(starts)
    ]
    return {name: np.array([row[name] for row in found]) for name in found[0]} | {
        "steps": steps.reshape(-1, 2).mean(axis=1)
    }


def trained_kernels(
    networks: Networks, X: FloatArray, targets: FloatArray, etas: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Kernels on X after training each network to its own targets at its own rate, and how many steps it took.

    Training inputs come first in X; targets are (networks, training rows), kernels (networks, rows, rows), and rows
    are pairs (sample, output).
    """
    count, outputs = len(networks), networks.mlp.n_out
    wanted = torch.from_numpy(targets.reshape(count, -1, outputs)).mT.contiguous()
    how = Training(np.zeros((wanted.shape[2], outputs)), eta=1.0, tolerance=TOLERANCE)
    with torch.no_grad():
        course = train(networks, X[: wanted.shape[2]], how, offsets=-wanted, rates=etas)
        if course.diverged.any():
            raise _diverged()
        if not course.ended.all():
            raise _not_ended()
        kernel = networks.kernel(X).permute(0, 3, 1, 4, 2)  # (networks, sample, output, sample, output)
    rows = len(X) * outputs
    return kernel.reshape(count, rows, rows).numpy(), course.steps


def _sizes(
    start: Differentials, targets: FloatArray, eta: float, end: FloatArray, mirror: FloatArray
) -> dict[str, float]:
    """Sizes of changes, and of what predictions leave of them, for one random network trained both ways."""
    change, mirrored = end - start.kernel, mirror - start.kernel
    # (11.138), with wiring: rows are samples of a model with one output.
    rows = np.arange(len(targets))
    model = QuadraticModel.from_arrays(start.kernel, start.first[:, :, : len(rows)], start.outputs)
    predicted = solve(model, rows, targets, "flow").effective_kernel(np.arange(len(start.kernel)))
    first = np.asarray(predicted[0]) - start.kernel
    second = descended_kernel(start, targets, eta) - start.kernel
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


def kernel_of(network: Network, x: Tensor) -> FloatArray:
    """The NTK with the theory's learning rates, pairs (sample, output) as rows."""
    found = np.asarray(ntk(network, x, rates=parameter_groups(network, network.mlp, eta=1.0)))
    rows = found.shape[0] * found.shape[2]
    return np.asarray(found.transpose(0, 2, 1, 3).reshape(rows, rows))


def descended_kernel(start: Differentials, targets: FloatArray, eta: float) -> FloatArray:
    """The kernel at the end of gradient descent in sample space, with frozen ddNTKs (∞.4), (∞.6), (∞.9)."""
    A = slice(0, len(targets))
    z, H, dH = start.outputs, start.kernel, start.first
    ddI, ddII = start.third[..., A], start.second[..., A]
    moving = ddI + ddII + ddII.transpose(0, 2, 1, 3)
    bent = ddI[:, :, A] + ddI[:, :, A].transpose(1, 0, 2, 3) + 2 * ddII[:, :, A]
    goal = TOLERANCE * float(np.abs(targets - z[A]).max())
    for _ in range(MOST_STEPS):
        e = z[A] - targets
        if not np.isfinite(e).all():
            raise _diverged()
        if np.abs(e).max() <= goal:
            return H
        along = dH[..., A] @ e
        z = z - eta * H[:, A] @ e + eta**2 / 2 * along[:, A] @ e - eta**3 / 6 * ddI[:, A, A] @ e @ e @ e
        H = H - eta * (along + along.T) + eta**2 / 2 * bent @ e @ e
        dH = dH - eta * moving @ e
    raise _not_ended()


def _checked(mlp: MLP, X: ArrayLike, Y: ArrayLike, X_test: ArrayLike | None) -> tuple[FloatArray, FloatArray]:
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


def _diverged() -> InputError:
    return InputError("gradient descent diverges: give a smaller step, or smaller Y.")


def _not_ended() -> InputError:
    return InputError(
        f"gradient descent did not end in {MOST_STEPS} steps: give fewer or more different samples, or smaller Y."
    )
