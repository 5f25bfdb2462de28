"""How unequal are the directions that are learned?

The exact tangent kernel of the outputs, over some samples and all outputs, with the rates inside: descent learns each
of its eigenmodes at the speed of its eigenvalue. How unequal these are is judged by what it costs: the steps at the
recommended rate until half, and nine tenths, of the error's energy are gone, if the kernel stays as it is.

Measurements: by ``mode`` (all eigenmodes, from the largest on) ``eigenvalue`` (1/step) and ``energy`` (share of the
present |dL/df|^2); by ``step`` (at the recommended rate) ``left`` (share of that energy) and ``predicted_loss``; and
``condition_number``, ``effective_rank`` (participation ratio of the eigenvalues: trace^2 over the sum of squares),
``entropy_rank`` (exponential of the entropy of their shares of the trace), ``top_share`` (of the trace in the largest
eigenvalue), ``half_steps`` and ``ninety_steps``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.doctor.finding import Examination, Finding, Severity, counted
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.output_kernel import Forecast, OutputKernel, output_kernel, reference
from foretrain.doctor.setup import Case
from foretrain.doctor.stability import edge
from foretrain.empirical.fields.spectra import effective_rank, entropy_rank
from foretrain.support.errors import NotSupportedError

if TYPE_CHECKING:
    import xarray

_SOURCE = "Roberts & Yaida (10.35): with a fixed kernel every eigenmode decays at the speed of its eigenvalue"
_MANY = 1e4  # steps at the recommended rate
_HALF_FAR = 0.5  # of the energy left after so many: worth knowing
_STUCK = 0.95  # of the energy left after so many, and no real progress: hardly learns
_NO_PROGRESS = 0.01  # of the loss, in a short real training
_ALL = 0.995
_ONE_DIRECTION = 0.9  # of the trace


def check(case: Case) -> Examination:
    """Eigenvalues, how the error lies in them, and what that costs."""
    standard = reference(case)
    kernel = output_kernel(standard)
    values = kernel.decomposed[0]
    if not values[0] > 0:
        raise NotSupportedError("the kernel of the outputs is zero: no parameter moves any output.")
    speed = standard.recipe.rate / edge(standard).recommended  # steps at the recommended rate, per given step
    try:
        forecast = kernel.forecast
        left = float(np.interp(_MANY / speed, forecast.steps, forecast.left))
        times = [forecast.steps_until(share) * speed for share in (0.5, 0.1)]
    except NotSupportedError:  # a loss without curvature: the spectrum is known, its times are not
        forecast, left, times = None, np.nan, [np.nan, np.nan]
    rounding = len(values) * np.finfo(np.float32).eps * values[0]
    numbers = {
        "condition_number": float(values[0] / values[-1]) if values[-1] > rounding else float("inf"),
        "effective_rank": effective_rank(values),
        "entropy_rank": entropy_rank(values),
        "top_share": float(values[0] / values.sum()),
        "half_steps": times[0],
        "ninety_steps": times[1],
    }
    return Examination((_judged(case, kernel, numbers, left),), _data(kernel, numbers, forecast, speed))


def _judged(case: Case, kernel: OutputKernel, numbers: dict[str, float], left: float) -> Finding:
    top, rank = numbers["top_share"], numbers["effective_rank"]
    best = edge(reference(case)).best[1]
    evidence = (
        f"Over {len(kernel.task.x)} samples the largest of {len(kernel.matrix)} eigenvalues has {top:.0%} of the "
        f"trace and the effective rank is {rank:.3g}; {kernel.energies[0]:.1%} of the error lies along the "
        f"largest. If the kernel stayed, half of the error would be gone after {_steps(numbers['half_steps'])} at "
        f"the recommended rate, and nine tenths after {_steps(numbers['ninety_steps'])}."
    )
    severity, advice = Severity.GOOD, ""
    share = f"{left:.0%}" if left < _ALL else "all"  # slopes of other losses than mean squares may even grow
    title = f"About {rank:.2g} directions share the learning, and the error is within their reach."
    stays = left > _STUCK and best.drop < _NO_PROGRESS * abs(best.start)
    if stays and not outcome_of(case).learns:  # what was seen says more than a forecast
        severity = Severity.WARNING
        title = (
            f"The error lies where the network hardly learns: {share} would be left after 10,000 good steps."
        )
        advice = (
            "Treat inputs and initialisation first; if this stays, give each sample more that tells it apart."
        )
    elif left > _HALF_FAR:
        severity = Severity.NOTE
        title = (
            f"The kernel at hand learns slowly: {share} of the error would be left after 10,000 good steps."
        )
        advice = "Count on the kernel to grow; momentum or Adam shorten the way along flat directions."
    elif top > _ONE_DIRECTION:
        title = f"One direction has {top:.0%} of the kernel, but the error is within reach of the others."
    return Finding(severity, title, evidence, _SOURCE, advice, numbers=numbers | {"left": left})


def _steps(count: float) -> str:
    if not np.isfinite(count):
        return "more than a million steps" if count > 0 else "an unknown number of steps"
    return f"{counted(max(count, 1))} steps"


def _data(
    kernel: OutputKernel, numbers: dict[str, float], forecast: Forecast | None, speed: float
) -> xarray.Dataset:
    import xarray

    data = xarray.Dataset(
        {
            "eigenvalue": ("mode", kernel.decomposed[0], {"units": "1/step"}),
            "energy": ("mode", kernel.energies, {"units": "share"}),
            **numbers,
        },
        {"mode": np.arange(1, len(kernel.matrix) + 1)},
        {"samples": len(kernel.task.x)},
    )
    if forecast is None:
        return data
    data["left"] = ("step", forecast.left, {"units": "share"})
    data["predicted_loss"] = ("step", forecast.losses)
    return data.assign_coords(step=forecast.steps * speed)
