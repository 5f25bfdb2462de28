"""Which modes of a target plain gradient descent learns within a budget of steps, told from the initial network.

The target as a matrix (batch * time, outputs) has singular modes m_i = u_i (x) v_i. If the output tangent kernel
Theta stays as it is, a step of rate lr takes the residual r = y - f to (1 - lr c Theta) r, c = 2 / entries for the
mean of squares. Four forecasts of the share <m_i, r> / sigma_i that is left, from exact to cheap:

- linearised: (1 - lr c Theta)^steps r_0, by Lanczos, so that Theta is never formed;
- flow: exp(-lr c Theta steps) r_0, the same in small steps. Above the largest rate for which the former is stable,
  real networks leave the steepest directions for flatter ones instead of diverging, and flow is the better guess;
- rayleigh: each mode by itself, by flow at the rate <m_i, Theta m_i> = |(V* (x) I) adj|^2 (Cor. 2), one backward
  pass. A mode mixes fast and slow directions: were it all the residual, the flow would leave no less of it (Jensen);
- proxy: the flow with V V* (x) R R*, R the readout, beside the readout's own weights: forward pass only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from foretrain.empirical.target_modes import TargetModes, target_modes
from foretrain.support.answers import Answer, Figure, Result, Table, labelled, log, picked
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import available_bytes
from foretrain.support.progress import Progress
from foretrain.support.threads import on_free_cores
from foretrain.support.user_warnings import warn_user

Array = NDArray[np.float64]
Product = Callable[[Array], Array]  # of a kernel with columns (size, many)
Loss = Literal["mse", "squared_error"]
PREDICTORS = ("linearised", "flow", "rayleigh", "proxy")

_ROUNDING = 1e3  # shares are not known better than this many units of the products' rounding
_MOST_PRODUCTS = 1000
_SHARE = 0.3  # of the available memory, for Lanczos vectors
_BETWEEN = 4  # products between two looks at the change
_LADDER = 0.5 ** np.arange(40)  # shorter times, as parts of the longest


@dataclass(frozen=True, repr=False, eq=False)
class ModePrediction(Result):
    """For every mode of the target and every budget of steps: the share of the mode that is left.

    ``residual[predictor]`` is (modes, budgets), negative where a mode is overshot; nan for "proxy" where the model
    has no states with a linear readout. ``half_time``: steps in which a mode halves at its own Rayleigh quotient.
    ``by_parameter``: what each parameter adds to those quotients.
    """

    steps: tuple[int, ...]
    threshold: float
    singular_values: Array
    initial: Array
    residual: Mapping[str, Array]
    by_parameter: Mapping[str, Array]
    half_time: Array
    largest_rate: float  # above it, linearised descent diverges
    lr: float
    products: int

    @property
    def rayleigh(self) -> Array:
        """<m, Theta m> of every mode."""
        return _summed(self.by_parameter)

    @property
    def learned(self) -> Mapping[str, NDArray[np.bool_]]:
        """By predictor: whether less than the threshold is left, (modes, budgets)."""
        return {name: np.abs(left) < self.threshold for name, left in self.residual.items()}

    def answer(self) -> Answer:
        """What is left of every mode after the last budget, by every predictor."""
        modes, last = np.arange(1, len(self.initial) + 1), f"left after {self.steps[-1]} steps"
        learned = self.learned["linearised"][:, -1]
        statement = (
            f"{learned.sum()} of {len(modes)} modes are learned in {self.steps[-1]} steps (less than "
            f"{self.threshold:.0%} left, linearised), told from the initial NTK."
        )
        if self.lr > self.largest_rate:
            statement += f" lr {self.lr:.3g} is above {self.largest_rate:.3g}: linearised descent diverges."
        columns = {
            "mode": [f"mode {number}" for number in modes],
            "singular value": self.singular_values,
            **{f"{last}: {name}": np.abs(left[:, -1]) for name, left in self.residual.items()},
            "half-time in steps": self.half_time,
            "verdict": ["learned" if one else "not learned" for one in learned],
        }
        variables = {
            "residual": ("predictor mode steps", np.stack([*self.residual.values()])),
            "initial": ("mode", self.initial),
            "singular_value": ("mode", self.singular_values),
            "half_time": ("mode", self.half_time),
            "rayleigh": ("parameter mode", np.stack([*self.by_parameter.values()])),
        }
        data = labelled(
            variables,
            picked(self, "threshold lr largest_rate"),
            ["mode"],
            predictor=list(self.residual),
            steps=list(self.steps),
            parameter=list(self.by_parameter),
        )
        return Answer(statement, [Table.of(columns), self._figure], data)

    def _figure(self) -> Figure:
        figure = Figure("What is left of the target's modes", legend="below")
        for mode in range(min(len(self.initial), 6)):
            panel = figure.panel(f"mode {mode + 1}", log("steps"), log("share left"))
            panel.level(y=self.threshold, dash=":")
            for name, left in self.residual.items():
                shown = np.where(np.isfinite(left[mode]), np.abs(left[mode]), np.nan)
                panel.curve(self.steps, np.where(shown > 0, shown, np.nan), "o-", name)
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
    modes: int = 3,
    threshold: float = 0.5,
    accuracy: float = 1e-6,
) -> ModePrediction:
    """Which modes of ``y`` gradient descent with rate ``lr`` learns in so many steps, from the present parameters.

    ``y`` has the shape of the model's outputs, its last axis are outputs. ``loss`` is ``"mse"``, the mean over all
    entries of y as torch.nn.MSELoss, or ``"squared_error"``, half the SUM over them. ``threshold``: a mode is learned
    when less of it is left. All parameters with ``requires_grad`` count. ``accuracy`` is that of the shares, as far
    as the model's precision allows: kernels of chaotic networks need double precision.

    Examples
    --------
    >>> import torch
    >>> layer = torch.nn.Linear(2, 2, bias=False)
    >>> torch.nn.init.zeros_(layer.weight).sum().item()
    0.0
    >>> x, y = torch.eye(2), torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> predict_modes(layer, x, y, lr=0.5, steps=1, loss="squared_error").residual["linearised"].round(3)
    array([[0.5],
           [0.5]])
    """
    if loss not in get_args(Loss):
        raise unknown_name("`loss`", str(loss), get_args(Loss))
    budgets = _checked_steps(steps)
    if not (np.isfinite(lr) and lr > 0):
        raise InputError(f"`lr` is {lr}, but it must be positive and finite.")
    if not (0 < threshold < 1 and 0 < accuracy < 1):
        raise InputError(
            f"`threshold` is {threshold} and accuracy {accuracy}, but both must be between 0 and 1."
        )
    kernel = ntk_operator(model, x)
    outputs = kernel.model_outputs().double().cpu().numpy()
    target = target_modes(_as_places(y, outputs.shape), modes)
    misfit = (target.matrix.reshape(outputs.shape) - outputs).ravel()
    shrink = lr * (2 / misfit.size if loss == "mse" else 1.0)
    tolerance = max(accuracy, _ROUNDING * float(torch.finfo(kernel.dtype).eps))
    task = _Task(misfit, target, np.array(budgets), shrink, tolerance)
    descent, flow, largest, products = _course(kernel.multiply, task)
    initial = target.shares(misfit)
    squares: dict[str, list[float]] = {}  # |J* m|^2 of every mode, parameter by parameter
    for vector in target.vectors:
        for name, gradient in kernel.gradient(vector).items():
            squares.setdefault(name, []).append(float(gradient.double().square().sum()))
    by_parameter = {name: np.array(parts) for name, parts in squares.items()}
    rates = shrink * _summed(by_parameter)
    proxy = proxy_product(model, x, target.matrix.shape)
    unknown = np.full((len(target.values), len(budgets)), np.nan)  # where the model has no core V V* (x) R R*
    proxy_flow = unknown if proxy is None else _course(proxy, task)[1]
    with np.errstate(divide="ignore"):  # a mode that no parameter reaches never halves
        half_time = np.log(2) / rates
    return ModePrediction(
        steps=budgets,
        threshold=threshold,
        singular_values=target.values,
        initial=initial,
        residual={
            "linearised": descent,
            "flow": flow,
            "rayleigh": initial[:, None] * np.exp(-np.outer(rates, task.budgets)),
            "proxy": proxy_flow,
        },
        by_parameter=by_parameter,
        half_time=half_time,
        largest_rate=2 * lr / (shrink * largest) if largest > 0 else np.inf,
        lr=lr,
        products=products,
    )


@dataclass(frozen=True, eq=False)
class _Task:
    """What has to shrink: the misfit, seen in the modes, after so many steps of rate ``shrink`` times the kernel."""

    misfit: Array
    target: TargetModes
    budgets: NDArray[np.int64]
    shrink: float
    tolerance: float

    def factors(self, eigenvalues: Array) -> Array:
        """What is left along eigenvectors: by descent, by flow, and by flow at shorter times.

        Only the latter tell whether a Krylov space is large enough: at long times a small one, whose eigenvalues
        are all large, would say that nothing is left.
        """
        rates = self.shrink * eigenvalues[:, None]
        times = np.concatenate([self.budgets, self.budgets.max() * _LADDER])
        return np.hstack([(1 - rates) ** self.budgets, np.exp(-np.maximum(rates, 0.0) * times)])


def _course(product: Product, task: _Task) -> tuple[Array, Array, float, int]:
    """(1 - shrink A)^steps and exp(-shrink A steps) of the misfit, until two looks in a row see no change.

    Given are the shares left of the modes by either, (modes, budgets), A's largest eigenvalue and how many products
    that took.
    """
    size, budgets = len(task.misfit), len(task.budgets)
    length = float(np.linalg.norm(task.misfit))
    if length == 0:
        nothing = np.zeros((len(task.target.values), budgets))
        return nothing, nothing, 0.0, 0
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
            if len(
                before
            ):  # the largest change, relative to the misfit at the start, or to what it has grown to
                sizes = np.linalg.norm(found, axis=0)
                known = np.isfinite(sizes)  # what has overflown stays so
                moved = found - np.pad(before, ((0, len(found) - len(before)), (0, 0)))
                moved = np.linalg.norm(moved[:, known], axis=0) / np.maximum(sizes[known], 1.0)
                change = float(np.max(moved, initial=0.0))
        inside = task.target.vectors @ krylov.basis.numpy().T * (length * float(krylov.first[0, 0]))
        left = np.nan_to_num(inside @ found, nan=np.inf, neginf=np.inf) / task.target.values[:, None]
    if not krylov.exhausted and change > 10 * task.tolerance:
        warn_user(
            f"Lanczos changed by {change:.2g} in its last products, of {krylov.products}, instead of "
            f"{task.tolerance:.2g}: ask for fewer steps or less `accuracy=`, or a smaller `lr`.",
        )
    descent, flow = np.hsplit(left[:, : 2 * budgets], 2)
    return descent, flow, float(values[0]), krylov.products


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


def _as_places(y: Any, shape: tuple[int, ...]) -> Array:
    """The target as (places, outputs)."""
    values = y.detach().double().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y, dtype=np.float64)
    if values.ndim == 0 or len(values) != shape[0] or values.size != np.prod(shape):
        raise InputError(
            f"y has shape {values.shape}, but the model's outputs are {shape[0]} samples of {shape[1]} numbers: give "
            "one target for each."
        )
    if not np.isfinite(values).all():
        raise InputError("y has entries that are nan or infinite: remove or replace them first.")
    return values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)


def _checked_steps(steps: int | Sequence[int]) -> tuple[int, ...]:
    try:
        found = tuple(index(each) for each in (steps if isinstance(steps, Sequence) else [steps]))
    except TypeError:
        found = ()
    if not found or min(found) < 0:
        raise InputError(f"`steps` is {steps!r}, but it must be a whole number from 0 on, or several.")
    return found
