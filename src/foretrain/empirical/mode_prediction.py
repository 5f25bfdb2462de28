"""Which modes of a target training learns within a budget of steps, told from the network as it is.

The target (see ``target_modes``) has modes m. If the output tangent kernel Theta stays as it is, a step of rate lr
takes the residual r = y - f to (1 - lr c Theta) r, c = 2 / counted entries for the mean of squares. Four forecasts of
the share <m, r> / <m, y> that is left hold while the kernel does, from exact to cheap:

- linearised: steps with the frozen kernel (with momentum: the two-term recursion), by Lanczos, so that Theta is never
  formed;
- flow: exp(-lr c Theta steps) r_0, the same in small steps. Above the largest rate for which the former is stable,
  real networks leave the steepest directions for flatter ones instead of diverging, and flow is the better guess;
- rayleigh: each mode by itself, by flow at the rate <m_i, Theta m_i> = |(V* (x) I) adj|^2 (Cor. 2), one backward
  pass. A mode mixes fast and slow directions: were it all the residual, the flow would leave no less of it (Jensen);
- proxy: the flow with V V* (x) R R*, R the readout, beside the readout's own weights: forward pass only.

The kernel moves, mostly towards the target, so that these are too slow for long trainings. A fifth forecast is
``rehearsal``: a private copy is trained with few gradients, by longer steps where that is stable (see
``foretrain.empirical.rehearsal``), and each mode's rate is carried on from there as it has grown. It decides the
verdict, up to a horizon of five times what was rehearsed, which was set on Memory-Pro, student and teacher, and
Gaussian sequences. Adam has no frozen kernel: its forecast is the rehearsal alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.global_ntk import global_ntk
from foretrain.empirical.global_ntk.readout import find_readout
from foretrain.empirical.kernel_analysis.matrix_functions import krylov_of
from foretrain.empirical.kernel_operator import ntk_operator
from foretrain.empirical.rehearsal import Descent, OptimizerName, Rehearsal, rehearse
from foretrain.empirical.target_modes import Components, TargetModes, mask_weights, target_modes
from foretrain.support.answers import Answer, Figure, Result, Table, labelled, log, picked
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import available_bytes
from foretrain.support.progress import Progress
from foretrain.support.threads import on_free_cores
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]
Product = Callable[[Array], Array]  # of a kernel with columns (size, many)
Loss = Literal["mse", "squared_error"]
PREDICTORS = ("linearised", "flow", "rayleigh", "proxy", "rehearsal")

_ROUNDING = 1e3  # shares are not known better than this many units of the products' rounding
_MOST_PRODUCTS = 1000
_SHARE = 0.3  # of the available memory, for Lanczos vectors
_BETWEEN = 4  # products between two looks at the change
_LADDER = 0.5 ** np.arange(40)  # shorter times, as parts of the longest
_REHEARSED = 0.25  # gradients for every step
_LEAST_REHEARSED, _MOST_REHEARSED = 20, 1000  # gradients
_TRUSTED = 5.0  # times what was rehearsed
_PARTED = 0.1  # of a mode: the frozen kernel holds until it is off by so much


@dataclass(frozen=True, repr=False, eq=False)
class ModePrediction(Result):
    """For every mode of the target and every budget of steps: the share of the mode that is left.

    ``residual[predictor]`` is (modes, budgets), negative where a mode is overshot; nan where a forecast does not
    apply ("proxy" without states that have a linear readout, all frozen kernels under Adam). ``verdict`` (modes,
    budgets) is "learned", "not learned", or "undecided" beyond the ``horizon``. ``half_time``: steps in which a mode
    halves at its own Rayleigh quotient. ``by_parameter``: what each parameter adds to those quotients.
    ``rehearsed`` of the steps were seen with so many ``gradients``; ``kernel_holds``: up to this step descent or flow
    under the kernel of the start stays within a tenth of every mode of what was seen.
    """

    modes: tuple[str, ...]
    steps: tuple[int, ...]
    threshold: float
    singular_values: Array
    initial: Array
    residual: Mapping[str, Array]
    verdict: NDArray[np.str_]
    by_parameter: Mapping[str, Array]
    half_time: Array
    largest_rate: float  # above it, linearised descent diverges
    lr: float
    optimizer: str
    products: int
    gradients: int
    rehearsed: float
    horizon: float
    kernel_holds: float

    @property
    def rayleigh(self) -> Array:
        """<m, Theta m> of every mode."""
        return _summed(self.by_parameter)

    @property
    def learned(self) -> Mapping[str, NDArray[np.bool_]]:
        """By predictor: whether less than the threshold is left, (modes, budgets)."""
        return {name: np.abs(left) < self.threshold for name, left in self.residual.items()}

    def answer(self) -> Answer:
        """What is left of every mode after the last budget, by every predictor, and the verdict."""
        last = f"left after {self.steps[-1]} steps"
        verdict = self.verdict[:, -1]
        counts = {word: int(np.sum(verdict == word)) for word in ("not learned", "undecided")}
        others = "".join(f", {count} {word}" for word, count in counts.items() if count)
        statement = (
            f"{np.sum(verdict == 'learned')} of {len(verdict)} modes are learned in {self.steps[-1]} steps of "
            f"{self.optimizer} (less than {self.threshold:.0%} left){others}."
        )
        if self.gradients:
            statement += (
                f" {self.rehearsed:g} steps were rehearsed with {self.gradients} gradients; the forecast is trusted "
                f"up to step {self.horizon:g}"
            )
            holds = np.isfinite(self.residual["flow"]).any()
            statement += f", the kernel of the start up to step {self.kernel_holds:g}." if holds else "."
        if self.lr > self.largest_rate:
            statement += f" lr {self.lr:.3g} is above {self.largest_rate:.3g}: linearised descent diverges."
        applying = {name: left for name, left in self.residual.items() if not np.isnan(left).all()}
        columns = {
            "mode": list(self.modes),
            "singular value": self.singular_values,
            **{f"{last}: {name}": np.abs(left[:, -1]) for name, left in applying.items()},
            "half-time in steps": self.half_time,
            "verdict": verdict.tolist(),
        }
        variables = {
            "residual": ("predictor mode steps", np.stack([*self.residual.values()])),
            "verdict": ("mode steps", self.verdict),
            "initial": ("mode", self.initial),
            "singular_value": ("mode", self.singular_values),
            "half_time": ("mode", self.half_time),
            "rayleigh": ("parameter mode", np.stack([*self.by_parameter.values()])),
        }
        data = labelled(
            variables,
            picked(self, "threshold lr optimizer largest_rate gradients rehearsed horizon kernel_holds"),
            mode=np.array(self.modes, dtype=str),
            predictor=list(self.residual),
            steps=list(self.steps),
            parameter=list(self.by_parameter),
        )
        return Answer(statement, [Table.of(columns), self._figure], data)

    def _figure(self) -> Figure:
        figure = Figure("What is left of the target's modes", legend="below")
        for mode, name in enumerate(self.modes[:6]):
            panel = figure.panel(name, log("steps"), log("share left"))
            panel.level(y=self.threshold, dash=":")
            for predictor, left in self.residual.items():
                shown = np.where(np.isfinite(left[mode]), np.abs(left[mode]), np.nan)
                panel.curve(self.steps, np.where(shown > 0, shown, np.nan), "o-", predictor)
        return figure


@on_free_cores()
def predict_modes(
    model: nn.Module,
    x: Any,
    y: Any,
    lr: float,
    steps: int | Sequence[int],
    loss: Loss = "mse",
    *,
    optimizer: OptimizerName = "sgd",
    momentum: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    components: Components = "trials",
    mask: Any = None,
    rehearsal: int | None = None,
    modes: int = 3,
    threshold: float = 0.5,
    accuracy: float = 1e-6,
) -> ModePrediction:
    """Which modes of ``y`` training with rate ``lr`` learns in so many steps, from the present parameters.

    ``y`` has the shape of the model's outputs, its last axis are outputs. ``loss`` is ``"mse"``, the mean over all
    counted entries of y as torch.nn.MSELoss, or ``"squared_error"``, half the SUM over them. ``threshold``: a mode is
    learned when less of it is left. All parameters with ``requires_grad`` count. ``accuracy`` is that of the frozen
    kernel's shares, as far as the model's precision allows: kernels of chaotic networks need double precision.

    Parameters
    ----------
    optimizer
        ``"sgd"``, with ``momentum``, or ``"adam"`` with ``betas``.
    components
        Whose modes: ``"trials"``, the mean over samples and the deviations from it; ``"target"``, the target as a
        whole; or arrays with the shape of y, as a dictionary by name: see ``target_modes``. ``modes`` of each.
    mask
        Weighs samples, steps or entries in the loss, as ``mask_weights`` says; others count nothing.
    rehearsal
        Gradients that a private copy may take; by default a quarter of the steps, at most 1000. 0: none; then only
        what the frozen kernel learns is certain, because kernels grow.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> torch.nn.init.zeros_(layer.weight).sum().item()
    0.0
    >>> x, y = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> found = predict_modes(layer, x, y, lr=0.5, steps=1, loss="squared_error", components="target")
    >>> found.residual["linearised"].round(3)
    array([[0.5],
           [0.5]])
    """
    if loss not in get_args(Loss):
        raise unknown_name("`loss`", str(loss), get_args(Loss))
    budgets, descent = _checked_steps(steps), Descent(lr, optimizer, momentum, betas)
    if not (0 < threshold < 1 and 0 < accuracy < 1):
        raise InputError(
            f"`threshold` is {threshold} and accuracy {accuracy}, but both must be between 0 and 1."
        )
    if rehearsal is None:
        longest = max(budgets)
        rehearsal = min(longest + 1, _MOST_REHEARSED, max(_LEAST_REHEARSED, round(_REHEARSED * longest)))
    rehearsal = whole_number("rehearsal", rehearsal, 0)
    # The target's modes and the misfit, both weighted by the roots of the mask.
    kernel = ntk_operator(model, x)
    outputs = kernel.model_outputs().double().cpu().numpy()
    values = _shaped(y, outputs.shape, mask)
    target = target_modes(values, modes, components, mask)
    weights, goal = target.weights.ravel(), values.reshape(outputs.shape)
    misfit = goal - outputs
    scale = 2 / float(np.square(weights).sum()) if loss == "mse" else 1.0
    tolerance = max(accuracy, _ROUNDING * float(torch.finfo(kernel.dtype).eps))
    task = _Task(weights * misfit.ravel(), target, np.array(budgets), descent, scale, tolerance)
    initial = target.shares(misfit)
    squares: dict[str, list[float]] = {}  # |J* m|^2 of every mode, parameter by parameter
    for vector in target.vectors:
        for name, gradient in kernel.gradient(weights * vector).items():
            squares.setdefault(name, []).append(float(gradient.double().square().sum()))
    by_parameter = {name: np.array(parts) for name, parts in squares.items()}
    rates = descent.flow_rate * scale * _summed(by_parameter)
    # Frozen kernels: the exact one, each mode by its own quotient, and the proxy of a forward pass.
    unknown = np.full((len(target.values), len(budgets)), np.nan)
    residual, largest_rate, course = dict.fromkeys(PREDICTORS, unknown), np.inf, None
    if descent.name == "sgd":
        course = _course(_weighted(kernel.multiply, weights), task)
        largest = float(course.eigenvalues[0])
        largest_rate = 2 / (scale * largest) if largest > 0 else np.inf
        residual["linearised"], residual["flow"] = course.left(task)
        residual["rayleigh"] = initial[:, None] * np.exp(-np.outer(rates, task.budgets))
        proxy = proxy_product(model, x, target.matrix.shape)
        if proxy is not None:  # there is a core V V* (x) R R*
            residual["proxy"] = _course(_weighted(proxy, weights), task).left(task)[1]
    # The kernel as it moves: some real steps of a private copy.
    seen = Rehearsal(np.zeros(1), initial[None], 0, False)
    if rehearsal:
        given = goal, np.square(weights).reshape(goal.shape) * scale / 2
        seen = rehearse(model, x, *given, target.shares, descent, max(budgets), rehearsal, largest_rate)
        residual["rehearsal"] = seen.at(task.budgets.astype(np.float64))
    holds = 0.0
    if course is not None and len(seen.steps):
        # The frozen kernel in steps of the same length as those of the rehearsal.
        pace = int(seen.steps[1]) if len(seen.steps) > 1 else 1
        frozen = course.left(replace(task, descent=descent.longer(pace), budgets=np.arange(len(seen.steps))))
        off = np.min([np.abs(each - seen.shares.T).max(0) for each in frozen], 0) > _PARTED
        holds = float(seen.steps[max(off.argmax() - 1, 0)] if off.any() else seen.steps[-1])
    with np.errstate(divide="ignore"):  # a mode that no parameter reaches never halves
        half_time = np.log(2) / rates if descent.name == "sgd" else np.full(len(rates), np.nan)
    return ModePrediction(
        modes=target.names,
        steps=budgets,
        threshold=threshold,
        singular_values=target.values,
        initial=initial,
        residual=residual,
        verdict=_verdict(residual, seen, task.budgets, threshold),
        by_parameter=by_parameter,
        half_time=half_time,
        largest_rate=largest_rate * (1 + momentum) if descent.name == "sgd" else np.inf,
        lr=lr,
        optimizer=optimizer + (f" with momentum {momentum:g}" if momentum else ""),
        products=0 if course is None else course.products,
        gradients=seen.gradients,
        rehearsed=float(seen.steps[-1]),
        horizon=_TRUSTED * seen.reach,
        kernel_holds=holds,
    )


def _verdict(
    residual: Mapping[str, Array], seen: Rehearsal, budgets: NDArray[np.int64], threshold: float
) -> NDArray[np.str_]:
    """By the rehearsal up to the horizon; beyond it what is learned stays so, and all else is undecided."""
    by = residual["rehearsal"] if seen.gradients else residual["flow"]
    learned = np.abs(by) < threshold
    known = budgets <= _TRUSTED * seen.reach
    settled = (np.abs(seen.shares[-1]) < threshold)[:, None] if seen.gradients else learned
    beyond = np.where(settled, "learned", "undecided")
    return np.where(known, np.where(learned, "learned", "not learned"), beyond)


def _weighted(product: Product, weights: Array) -> Product:
    """Of the kernel between weighted outputs."""
    return lambda columns: weights[:, None] * product(weights[:, None] * columns)


@dataclass(frozen=True, eq=False)
class _Task:
    """What has to shrink: the weighted misfit, seen in the modes, in so many steps with ``scale`` times a kernel."""

    misfit: Array
    target: TargetModes
    budgets: NDArray[np.int64]
    descent: Descent
    scale: float
    tolerance: float

    def factors(self, eigenvalues: Array) -> Array:
        """What is left along eigenvectors: by descent, by flow, and by flow at shorter times.

        Only the latter tell whether a Krylov space is large enough: at long times a small one, whose eigenvalues
        are all large, would say that nothing is left.
        """
        rates, momentum = self.scale * eigenvalues[:, None], self.descent.momentum
        if momentum:  # x(n+1) = (1 + momentum - lr rate) x(n) - momentum x(n-1), from x(-1) = x(0) = 1
            step = np.zeros((len(rates), 2, 2))
            step[:, 0, 0], step[:, 0, 1] = 1 + momentum - self.descent.lr * rates[:, 0], -momentum
            step[:, 1, 0] = 1
            powers = [np.linalg.matrix_power(step, int(count))[:, 0].sum(1) for count in self.budgets]
            left = np.stack(powers, 1)
        else:
            left = (1 - self.descent.lr * rates) ** self.budgets
        times = np.concatenate([self.budgets, self.budgets.max() * _LADDER])
        return np.hstack([left, np.exp(-np.maximum(self.descent.flow_rate * rates, 0.0) * times)])


@dataclass(frozen=True, eq=False)
class _Course:
    """A frozen kernel's eigenvalues in a Krylov space, and what every mode sees of the misfit in each eigenvector."""

    eigenvalues: Array
    seen: Array  # (modes, eigenvalues), as shares of the modes
    products: int

    def left(self, task: _Task) -> tuple[Array, Array]:
        """Shares left by steps of descent, and by the flow, (modes, budgets)."""
        with np.errstate(over="ignore", invalid="ignore"):
            left = np.nan_to_num(self.seen @ task.factors(self.eigenvalues), nan=np.inf, neginf=np.inf)
        descent, flow = np.hsplit(left[:, : 2 * len(task.budgets)], 2)
        return descent, flow


def _course(product: Product, task: _Task) -> _Course:
    """A Krylov space in which descent and flow of the misfit with a kernel change no more in two looks in a row."""
    size, length = len(task.misfit), float(np.linalg.norm(task.misfit))
    if length == 0:
        return _Course(np.zeros(1), np.zeros((len(task.target.values), 1)), 0)
    most = min(_MOST_PRODUCTS, size, max(_BETWEEN, int(_SHARE * available_bytes() / (8.0 * size))))
    krylov = krylov_of(product, task.misfit[:, None] / length, most)
    found, change, last = np.zeros((0, 0)), np.inf, np.inf
    with Progress("Lanczos", total=most) as bar, np.errstate(over="ignore", invalid="ignore"):
        while not krylov.exhausted and krylov.has_room and not max(last, change) < task.tolerance:
            krylov.extend()
            bar.advance()
            if krylov.count % _BETWEEN and not krylov.exhausted and krylov.has_room:
                continue
            values, vectors, _ = (part.numpy() for part in krylov.ritz())
            before, found = found, vectors @ (task.factors(values) * vectors[:1].T)
            last = change
            if len(before):  # relative to the misfit at the start, or to what it has grown to
                sizes = np.linalg.norm(found, axis=0)
                known = np.isfinite(sizes)  # what has overflown stays so
                moved = found - np.pad(before, ((0, len(found) - len(before)), (0, 0)))
                moved = np.linalg.norm(moved[:, known], axis=0) / np.maximum(sizes[known], 1.0)
                change = float(np.max(moved, initial=0.0))
        inside = task.target.vectors @ krylov.basis.numpy().T * (length * float(krylov.first[0, 0]))
    if not krylov.exhausted and change > 10 * task.tolerance:
        warn_user(
            f"Lanczos changed by {change:.2g} in its last products, of {krylov.products}, instead of "
            f"{task.tolerance:.2g}: ask for fewer steps or less `accuracy=`, or a smaller `lr`.",
        )
    return _Course(values, inside @ vectors * vectors[0] / task.target.values[:, None], krylov.products)


def _summed(parts: Mapping[str, Array]) -> Array:
    return np.asarray(np.sum(list(parts.values()), axis=0))


def proxy_product(model: nn.Module, x: Any, shape: tuple[int, int]) -> Product | None:
    """Products with V V* (x) R R* + (H H* + 1) (x) I on outputs (places, outputs), from one forward pass.

    V are the rows of all weight sites side by side, H the states, R the readout: the states' kernel with their
    propagation left out, and the exact one of the readout's weights. None where there is no core or no readout.
    """
    try:
        kernel = global_ntk(model, x)
        rows = kernel.site_rows()
    except NotSupportedError:
        return None
    readout = find_readout(model, x, kernel)
    if readout is None or not isinstance(kernel.states, Tensor) or len(rows) != kernel.states[..., 0].numel():
        return None
    places = kernel.states.shape[:-1]

    def at_outputs(values: Tensor) -> Array:
        per_place = values.reshape(*places, -1)
        kept = per_place[:, -1] if readout.last else per_place
        return kept.flatten(0, -2).double().cpu().numpy()

    sites, weight = at_outputs(rows), readout.weight.double().cpu().numpy()
    own = np.zeros((len(sites), 0))
    if readout.name:
        layer = model.get_submodule(readout.name)
        columns = [at_outputs(kernel.states)] if layer.weight.requires_grad else []
        if readout.bias is not None and layer.bias.requires_grad:
            columns.append(np.ones((len(sites), 1)))
        own = np.hstack([own, *columns])
    if (len(sites), len(weight)) != shape:
        return None
    mixing = weight @ weight.T

    def product(columns: Array) -> Array:
        tall = columns.T.reshape(-1, *shape)
        found = sites @ (sites.T @ tall) @ mixing + own @ (own.T @ tall)
        return np.asarray(found.reshape(len(tall), -1).T)

    return product


def _shaped(y: Any, shape: tuple[int, ...], mask: Any) -> Array:
    """The target with outputs along its last axis, zero where nothing is counted."""
    values = y.detach().double().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y, dtype=np.float64)
    if values.ndim == 0 or len(values) != shape[0] or values.size != np.prod(shape):
        raise InputError(
            f"y has shape {values.shape}, but the model's outputs are {shape[0]} samples of {shape[1]} numbers: give "
            "one target for each."
        )
    values = values if values.ndim > 1 else values[:, None]
    values = np.where(mask_weights(mask, values.shape) > 0, values, 0.0)
    if not np.isfinite(values).all():
        raise InputError("y has entries that are nan or infinite: remove or replace them first.")
    return values


def _checked_steps(steps: int | Sequence[int]) -> tuple[int, ...]:
    try:
        found = tuple(index(each) for each in (steps if isinstance(steps, Sequence) else [steps]))
    except TypeError:
        found = ()
    if not found or min(found) < 0:
        raise InputError(f"`steps` is {steps!r}, but it must be a whole number from 0 on, or several.")
    return found
