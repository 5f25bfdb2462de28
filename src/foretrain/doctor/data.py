"""Features of inputs, and findings about targets.

Which axis the features lie along, their offsets and sizes, and inputs on one scale. How much an uneven scale costs at
least is told by the simplest learner, a linear readout of the inputs: with second moments that have eigenvalues
between a and b, its slowest direction takes b/a steps where the fastest takes one.

Of targets: their offset and scale, how often classes occur, equal inputs with unequal targets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.doctor.finding import Finding, Severity, Treatment
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.proof import try_cure
from foretrain.doctor.setup import Case
from foretrain.doctor.trials import is_regression

Array = NDArray[np.float64]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
SOURCE = (
    "LeCun et al. (1998), section 4.3: the condition of the inputs' second moments sets the speed of descent"
)
UNEVEN = 5.0  # ratio of deviations, or offset against variation, that is named as the cause
CONSTANT = 1e-6  # a feature that varies by less than this part of its mean is constant
_SAMPLES = 512  # for the eigenvalues of the second moments
_LEARNED = 0.9  # of what a linear readout can learn
_REACHED = 1e-10  # of the largest eigenvalue: smaller ones are rounding
_MOST_DUPLICATES = 0.01  # share of samples that stand beside an equal input with another target
_FEW_COUNT = 5.0  # targets: a score of so few says nothing
_RARE = 1 / 50  # of the commonest class


@dataclass(frozen=True, eq=False)
class Features:
    """Mean and standard deviation of every feature, over samples and all other axes."""

    axis: int
    mean: Array
    deviation: Array
    steps: float  # in which a linear readout learns nine tenths of what it can
    standard_steps: float  # the same for standardised features

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Which features do not vary."""
        return self.deviation <= CONSTANT * np.abs(self.mean)

    @property
    def spread(self) -> float:
        """Largest over smallest standard deviation, of features that vary; 1 if none does."""
        varying = self.deviation[~self.constant]
        return float(varying.max() / varying.min()) if len(varying) else 1.0

    @property
    def offset(self) -> float:
        """Size of the mean input against the size of its variation; inf if nothing varies."""
        total = float(np.sum(self.deviation**2))
        return float(np.sqrt(np.sum(self.mean**2) / total)) if total > 0 else float("inf")

    @property
    def size(self) -> float:
        """Root mean square of an entry."""
        return float(np.sqrt(np.mean(self.mean**2 + self.deviation**2)))


def feature_axis(model: nn.Module, x: Tensor) -> int:
    """Channels for convolutions, else the last axis: a feature is the same quantity along all other axes."""
    convolves = any(isinstance(module, _CONVOLUTIONS) for module in model.modules())
    return 1 if x.ndim == 2 or (convolves and x.ndim > 2) else x.ndim - 1


def measure(x: Tensor, targets: Tensor, axis: int) -> Features:
    """Means over all samples; the steps of a linear readout from some. ``targets``: (samples, any)."""
    rows = x.detach().double().movedim(axis, -1).reshape(-1, x.shape[axis] if x.ndim > 1 else 1)
    mean, deviation = rows.mean(0).cpu().numpy(), rows.std(0, correction=0).cpu().numpy()
    some = x.detach().double()[:_SAMPLES]
    wanted = targets.double()[:_SAMPLES]
    steps, standard = (linear_steps(values, wanted) for values in (some, standardised(some, axis)))
    return Features(axis, mean, deviation, steps, standard)


def linear_steps(x: Tensor, targets: Tensor) -> float:
    """Steps at half the largest stable rate in which a linear readout with a bias learns nine tenths.

    Of the part of the centred targets that it can learn at all: by the eigenvalues of X X^T, the kernel of readouts.
    """
    rows = x.reshape(len(x), -1)
    values, vectors = torch.linalg.eigh(rows @ rows.T + 1)
    energy = (vectors.T @ (targets - targets.mean(0))).square().sum(1)
    reached = values > _REACHED * values[-1]
    speeds, energy = (values / values[-1])[reached].cpu().numpy(), energy[reached].cpu().numpy()
    if not energy.sum() > 0:
        return 1.0
    times = np.logspace(-1, 11, 600)
    left = np.exp(-2 * np.outer(times, speeds)) @ (energy / energy.sum())
    return float(times[np.argmax(left <= 1 - _LEARNED)])


def other_axes(x: Tensor, axis: int) -> tuple[int, ...]:
    """All axes but that of the features."""
    return tuple(number for number in range(x.ndim) if number != axis or x.ndim == 1)


def standardised(x: Tensor, axis: int) -> Tensor:
    """Every feature with mean 0 and standard deviation 1; what is constant becomes 0."""
    axes = other_axes(x, axis)
    mean, deviation = x.mean(axes, keepdim=True), x.std(axes, keepdim=True, correction=0)
    return (x - mean) / torch.where(deviation > CONSTANT * mean.abs(), deviation, torch.ones_like(deviation))


def standardising_code(x: Tensor, axis: int, name: str = "x") -> str:
    """The same as :func:`standardised`, in torch."""
    axes = other_axes(x, axis)
    return (
        f"mean = {name}.mean({axes}, keepdim=True)  # keep both for data that come later\n"
        f"deviation = {name}.std({axes}, keepdim=True, correction=0)\n"
        f"deviation = torch.where(deviation > {CONSTANT:g} * mean.abs(), deviation, torch.ones_like(deviation))\n"
        f"{name} = ({name} - mean) / deviation"
    )


def target_findings(case: Case) -> list[Finding]:
    """Offset and scale of the targets of mean squares."""
    if not is_regression(case) or not case.setup.fresh:
        return []
    y = case.task.y.double()
    mean, deviation = y.mean(0), float((y - y.mean(0)).square().mean().sqrt())
    if deviation == 0:
        return [
            Finding(
                Severity.NOTE,
                "All targets are the same: a constant output solves the task.",
                "The standard deviation of y is zero.",
                "measured",
                "Look whether y is what it should be.",
            )
        ]
    squares = (y - mean).square().reshape(len(y), -1).sum(1)
    counting = float(squares.sum() ** 2 / squares.square().sum())
    if counting < _FEW_COUNT < 0.1 * len(y):
        return [
            Finding(
                Severity.WARNING,
                f"About {max(1, round(counting))} of {len(y)} targets make up nearly all that a squared error sees.",
                f"The largest target is {float(squares.max().sqrt()) / deviation:.3g} standard deviations from the "
                "mean, so that what is learned and what is scored hangs on a few samples.",
                "measured",
                "Learn the logarithm of the targets, take a loss that grows slower (nn.HuberLoss), or look whether "
                "the largest targets are mistakes.",
                numbers={"targets_that_count": counting},
            )
        ]
    offset = float(mean.square().mean().sqrt()) / deviation
    if offset > UNEVEN / 2:
        return _offset(case, offset, deviation)
    if not 1 / UNEVEN < deviation < UNEVEN:
        return _scale(case, deviation)
    return []


def _offset(case: Case, offset: float, deviation: float) -> list[Finding]:
    """Learned by the bias of the readout alone if it is set; else all layers are bent to make a constant."""
    name = output_bias(case)
    if name is None:
        return _scale(case, deviation)
    task = case.chosen(1024)
    with torch.no_grad():
        away = (task.y - case.model(task.x)).mean(0).flatten()

    def shift(model: nn.Module) -> None:
        model.get_parameter(name).add_(away.reshape(model.get_parameter(name).shape))

    cure = Treatment("output bias at the mean target", lambda setup: setup.with_weights(shift))
    if not _worth(case, cure):
        return []
    numbers = ", ".join(f"{value:.6g}" for value in away.tolist())
    return [
        Finding(
            Severity.WARNING,
            f"The mean of the targets is {offset:,.3g} times their variation, which the network has to learn first.",
            f"The mean of the outputs is {float(away.double().square().mean().sqrt()):.3g} away from that "
            "of the targets, "
            f"which vary by {deviation:.3g}.",
            SOURCE,
            f"Set the bias of the readout ({name}) so that the mean output is the mean target.",
            f"with torch.no_grad():\n    model.get_parameter({name!r}).add_(torch.tensor([{numbers}]))",
            cure,
            {"target_offset": offset, "target_deviation": deviation},
            (name,),
        )
    ]


def _worth(case: Case, cure: Treatment) -> bool:
    """Whether a network that does not learn is tried with the cure, or one that does gains much by it."""
    proof = try_cure(case, cure)
    return not outcome_of(case).learns or proof.worth


def output_bias(case: Case) -> str | None:
    """The parameter that adds to the outputs and does nothing else, if there is one; measured, not guessed."""
    model, x = case.model, case.task.x[:4]
    with torch.no_grad():
        outputs = model(x)
        for name, parameter in reversed(list(model.named_parameters())):
            if (
                parameter.numel() != outputs[0].numel()
                or not parameter.requires_grad
                or name not in case.recipe.rates
            ):
                continue
            change = torch.linspace(0.5, 1.0, parameter.numel()).to(parameter).reshape(parameter.shape)
            parameter.add_(change)
            moved = model(x) - outputs
            parameter.sub_(change)
            if torch.allclose(
                moved, change.reshape(outputs[:1].shape).expand_as(moved), rtol=1e-3, atol=1e-4
            ):
                return name
    return None


def _scale(case: Case, deviation: float) -> list[Finding]:
    """Standardised targets change the units of the loss, but not what is explained of their variance."""
    axis = max(0, case.task.y.ndim - 1)
    cure = Treatment("standardise y", lambda setup: setup.with_targets(standardised(setup.task.y, axis)))
    if not _worth(case, cure):
        return []
    return [
        Finding(
            Severity.WARNING,
            f"Targets vary by {deviation:.3g} instead of about 1, which holds learning back.",
            f"The standard deviation of y is {deviation:.3g}.",
            SOURCE,
            "Standardise the targets for training and undo it on the outputs; the loss is then in other units.",
            standardising_code(case.task.y, axis, "y"),
            cure,
            {"target_deviation": deviation},
        )
    ]


def label_findings(case: Case) -> list[Finding]:
    """How often every class occurs."""
    y = case.task.y
    if y is None or y.is_floating_point() or "cross" not in case.task.loss_name.lower().replace("-", "_"):
        return []
    counts = torch.bincount(y[y >= 0].flatten(), minlength=2).double()
    present = counts[counts > 0]
    if len(present) > 1 and float(present.min()) >= _RARE * float(present.max()):
        return []
    title = f"The rarest class is {float(present.max() / present.min()):,.3g} times rarer than the commonest."
    if len(present) < 2:
        title = "All labels are the same: a constant output solves the task."
    return [
        Finding(
            Severity.NOTE,
            title,
            f"Counts run from {int(present.min())} to {int(present.max())} over {len(present)} classes.",
            "measured",
            "Judge by balanced accuracy, or weigh the classes in the loss.",
        )
    ]


def conflict_findings(case: Case) -> list[Finding]:
    """Equal inputs with unequal targets, which no network can fit."""
    x, y = case.task.x, case.task.y
    if y is None:
        return []
    _, groups = torch.unique(x.reshape(len(x), -1), dim=0, return_inverse=True)
    order = torch.argsort(groups, stable=True)
    same = groups[order][1:] == groups[order][:-1]
    rows = y.reshape(len(y), -1)[order.to(y.device)]
    differ = (rows[1:] != rows[:-1]).any(dim=1).cpu()
    share = float((same.cpu() & differ).double().mean())
    if share <= _MOST_DUPLICATES:
        return []
    return [
        Finding(
            Severity.NOTE,
            f"{share:.0%} of the samples repeat an input with another target, which no network can fit.",
            f"Equal rows of x with unequal rows of y among {len(x)} samples.",
            "measured",
            "Expect a loss above zero, or look whether y belongs to x.",
        )
    ]
