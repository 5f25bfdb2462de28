"""How many directions states use, and how much a step stretches: participation ratio and spectral radius."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from foretrain.support.answers import Answer, Axis, Figure, Part, Result, Table, labelled, log
from foretrain.support.arguments import real_array, whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, torch_generator
from foretrain.training.dynamics.recurrence import States, is_plain, read_run

Array = NDArray[np.float64]
Centre = Literal["mean", "trials", "time", "none"]

_CENTRES = {
    "mean": "about the mean over trials and time",
    "trials": "about the mean over trials at every time",
    "time": "about the mean over time of every trial",
    "none": "about zero",
}
_GATES = {3: "rzn", 4: "ifgo"}  # of torch's GRU and LSTM, in their order


@dataclass(frozen=True, eq=False, repr=False)
class ParticipationRatio(Result):
    """(sum of variances)^2 / sum of squared variances along the principal axes of the states: from 1 to ``units``."""

    value: float
    standard_error: float  # from leaving out one trial after the other; nan for a single one
    variances: Array  # along the principal axes, largest first
    centre: Centre
    states: int  # how many states there were

    def __float__(self) -> float:
        return self.value

    def answer(self) -> Answer:
        """The number with its error, and the share of every principal axis."""
        error = f" ± {self.standard_error:.2g}" if np.isfinite(self.standard_error) else ""
        statement = (
            f"Participation ratio {self.value:.4g}{error} of {len(self.variances)} directions: {self.states} states, "
            f"{_CENTRES[self.centre]}."
        )
        data = labelled(
            {
                "participation_ratio": self.value,
                "participation_ratio_error": self.standard_error,
                "variance": ("axis", self.variances),
            },
            {"centre": self.centre, "states": self.states},
            ["axis"],
        )
        return Answer(statement, [self.figure], data)

    def figure(self) -> Figure:
        """The variances, of which the ratio counts how many are large."""
        figure = Figure("Variances of the states")
        panel = figure.panel(x=Axis("principal axis", whole=True), y=log("share of the variance"))
        shares = self.variances / (self.variances.sum() or 1.0)
        kept = shares > 1e-16
        panel.curve(np.arange(1, len(shares) + 1)[kept], shares[kept], ".-")
        panel.level(x=self.value, label="participation ratio", dash="--")
        return figure


def participation_ratio(
    states: Any, x: Any = None, *, centre: Centre = "mean", named: States = None
) -> ParticipationRatio:
    """How many directions states spread over: tr(C)^2 / tr(C^2) of their covariance C over trials and time.

    Parameters
    ----------
    states
        States (trials, time, units) or (trials, units) as a tensor or array; or a recurrent model, whose hidden
        states for the inputs ``x`` are taken (``named``: the modules whose results are the states, as ``states=`` of
        ``ft.lyapunov``).
    centre
        What is subtracted first: "mean", that over trials and time; "trials", at every time the mean over trials, so
        that only differences between trials are left; "time", the mean over time of every trial; or "none".

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> cloud = torch.randn(4000, 5) * torch.tensor([1.0, 1.0, 0.0, 0.0, 0.0])
    >>> round(float(ft.participation_ratio(cloud)))
    2
    """
    if not isinstance(centre, str) or centre not in _CENTRES:
        raise unknown_name("centre", str(centre), _CENTRES, "centre")
    if isinstance(states, nn.Module):
        run = read_run(states, x, states=named)
        values: Any = run.states[..., run.hidden][:, 1:]  # without the first, which is given
    else:
        if x is not None:
            raise InputError("`x` belongs to a model: states come alone.")
        values = states.detach().double().cpu() if is_plain(states) else states
    given = real_array("states", values)
    if given.ndim not in (2, 3) or given.size == 0:
        raise InputError(f"`states` has shape {given.shape}: give (trials, time, units) or (trials, units).")
    if given.ndim == 2 and centre in ("trials", "time"):
        raise InputError(f"`centre={centre!r}` needs states (trials, time, units): give both axes.")
    trials = given if given.ndim == 3 else given[:, None]
    value, variances = _ratio(trials, centre)
    # The ratio without each trial in turn: the jackknife, over at most twenty groups of trials.
    groups = np.array_split(np.arange(len(trials)), min(20, len(trials)))
    error = np.nan
    if len(groups) > 1 and np.isfinite(value):
        left = np.array([_ratio(np.delete(trials, group, axis=0), centre)[0] for group in groups])
        error = float(np.sqrt((len(left) - 1) * left.var()))
    return ParticipationRatio(value, error, variances, centre, trials.shape[0] * trials.shape[1])


def _ratio(trials: Array, centre: Centre) -> tuple[float, Array]:
    """The ratio, and the variances; nan if nothing varies."""
    over = {"mean": (0, 1), "trials": (0,), "time": (1,)}.get(centre)
    rows = (trials if over is None else trials - trials.mean(over, keepdims=True)).reshape(
        -1, trials.shape[2]
    )
    variances = np.linalg.svd(rows, compute_uv=False) ** 2 / len(rows)
    variances = np.pad(variances, (0, trials.shape[2] - len(variances)))
    rounding = np.finfo(float).eps * np.abs(trials).max()
    if np.sqrt(variances[0]) <= rounding * np.sqrt(trials.shape[2]):
        return np.nan, variances
    return float(variances.sum() ** 2 / (variances**2).sum()), variances


@dataclass(frozen=True, eq=False, repr=False)
class SpectralRadius(Result):
    """Largest eigenvalue moduli: of recurrent weights by name, and of Jacobians of steps drawn from a trajectory."""

    weights: dict[str, float]
    jacobians: Array  # (drawn,)
    steps: Array  # (drawn,): after how many steps each was taken

    def answer(self) -> Answer:
        """The weights one by one, and the mean and range of the Jacobians."""
        said = [f"recurrent weights {', '.join(f'{value:.4g}' for value in self.weights.values())}"][
            : len(self.weights)
        ]
        if len(self.jacobians):
            spread = f", between {self.jacobians.min():.4g} and {self.jacobians.max():.4g}"
            said.append(
                f"{len(self.jacobians)} Jacobians {self.jacobian:.4g} ± {self.jacobian_error:.2g}{spread}"
            )
        table = Table.of(
            {"recurrent weight": list(self.weights), "spectral radius": list(self.weights.values())}
        )
        parts: list[Part] = [table] if self.weights else []
        if len(self.jacobians):
            parts.append(self.figure)
        variables = {
            "weight_radius": ("weight", [*self.weights.values()]) if self.weights else None,
            "jacobian_radius": ("draw", self.jacobians) if len(self.jacobians) else None,
            "step": ("draw", self.steps) if len(self.jacobians) else None,
        }
        names: dict[str, Any] = {"weight": [*self.weights]} if self.weights else {}
        return Answer(f"Spectral radius: {'; '.join(said)}.", parts, labelled(variables, **names))

    @property
    def weight(self) -> float:
        """The largest of the recurrent weights; nan without any."""
        return max(self.weights.values(), default=np.nan)

    @property
    def jacobian(self) -> float:
        """The mean over the Jacobians; nan without any."""
        return float(self.jacobians.mean()) if len(self.jacobians) else np.nan

    @property
    def jacobian_error(self) -> float:
        """Of that mean, from the spread of the draws."""
        count = len(self.jacobians)
        return float(self.jacobians.std(ddof=1) / np.sqrt(count)) if count > 1 else np.nan

    def figure(self) -> Figure:
        """Every Jacobian by the step it was taken at."""
        figure = Figure("Spectral radius of a step")
        panel = figure.panel(x=Axis("step", whole=True), y="spectral radius")
        panel.level(y=1, dash="--")
        panel.curve(self.steps, self.jacobians, "o", "Jacobian")
        return figure


def spectral_radius(
    model: Any,
    x: Any = None,
    *,
    states: States = None,
    start: Any = None,
    steps: int | None = None,
    draws: int = 32,
    seed: Seed = 0,
) -> SpectralRadius:
    """Largest eigenvalue moduli of a recurrent model: of W_hh, by gate, and of the Jacobian of its steps.

    ``model``, ``x``, ``states``, ``start`` and ``steps`` are those of ``ft.lyapunov``; without ``x`` and ``steps``
    only weights are looked at. ``draws`` Jacobians are taken, at random trials and times. A square matrix will do,
    too.

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> round(ft.spectral_radius(torch.tensor([[0.0, 2.0], [-2.0, 0.0]])).weight, 6)
    2.0
    """
    draws = whole_number("draws", draws)
    weights: dict[str, float] = {}
    if isinstance(model, nn.Module):
        kinds = nn.RNNBase, nn.RNNCellBase
        for path, module in model.named_modules():
            if isinstance(module, kinds):
                weights |= _weight_radii(module, f"{path}." if path else "")
    elif not callable(model):
        weights["matrix"] = _radius(model.detach().cpu() if is_plain(model) else model)
    if x is None and steps is None:
        if not weights:
            raise InputError(
                "the model has no recurrent weight of torch: give `x`, for the Jacobians of its steps."
            )
        return SpectralRadius(weights, np.zeros(0), np.zeros(0, dtype=int))
    run = read_run(model, x, states=states, start=start, steps=steps, seed=seed)
    # Pairs of trial and time, without repetition.
    everything = run.samples * run.steps
    drawn = torch.randperm(everything, generator=torch_generator(seed))[:draws].sort().values
    trials, times = drawn % run.samples, drawn // run.samples
    radii = [
        torch.linalg.eigvals(run.jacobian(int(time), trials[times == time]).double()).abs().amax(1).cpu()
        for time in torch.unique(times)
    ]
    return SpectralRadius(weights, torch.cat(radii).numpy(), times.numpy() + 1)


def _weight_radii(module: nn.Module, prefix: str) -> dict[str, float]:
    """Of every block of a recurrent weight that acts on the states, by gate where there are several."""
    endings = [""]
    if isinstance(module, nn.RNNBase):
        ways = ("", "_reverse") if module.bidirectional else ("",)
        endings = [f"_l{layer}{way}" for layer in range(module.num_layers) for way in ways]
    found = {}
    for name in (f"weight_hh{ending}" for ending in endings):
        weight = getattr(module, name, None)
        if not isinstance(weight, Tensor) or len(weight) % weight.shape[1]:  # a projection makes them oblong
            continue
        blocks = torch.split(weight.detach().double().cpu(), weight.shape[1])
        letters = _GATES.get(len(blocks), "")
        for place, block in enumerate(blocks):
            found[f"{prefix}{name}" + (f"[{letters[place]}]" if letters else "")] = _radius(block)
    return found


def _radius(matrix: ArrayLike | Tensor) -> float:
    values = real_array("model", matrix)
    if values.ndim != 2 or values.shape[0] != values.shape[1] or not len(values):
        raise InputError(f"`model` has shape {values.shape}: give a square matrix, or a recurrent model.")
    return float(np.abs(np.linalg.eigvals(values)).max())
