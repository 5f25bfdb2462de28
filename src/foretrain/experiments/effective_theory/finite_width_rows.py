"""The rows of ``finite_width_training``: trained networks of finite width beside theory."""

from __future__ import annotations

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.compare.judging.ladder import extrapolation_weights
from foretrain.experiments.judgements import agreement_rows, computed_row, limit_row, measured_row, rows_of
from foretrain.experiments.registry import Row
from foretrain.theory.architecture import FloatArray
from foretrain.theory.prediction.algorithms import Clock, course_of

INTERACTION = "interaction of output 0 at 0"
_NEAR = 2.0  # standard errors
_POWER_KNOWN = 0.35  # largest standard error of a power of n that tells 1/n from no fall, or from 1/n^2
_SIN, _TANH = "sin, L = 2, descent at 1.2", "tanh, L = 2, descent at 1.2"
_DEEP = "sin, L = 3, descent at 1.2"
_PAIRS = (
    ("sin, L = 2, two-step", _SIN),
    ("sin, L = 2, descent at 0.2", _SIN),
    ("tanh, L = 2, two-step", _TANH),
    ("sin, L = 3, two-step", _DEEP),
)
_MISPRINTS = {
    "interaction": "(∞.163) has 2 Z_B where both orders of its indices belong, (∞.165) has T and U interchanged",
    "ntk_variance": "(∞.162) has the opposite sign of the expansion of (∞.141)",
}


def table(data: xarray.Dataset) -> tuple[Row, ...]:
    """Limits, largest widths, verdicts of all entries, differences between algorithms, and the printed formulas."""
    entries = _entries(data, "interaction")
    bound = largest_score_allowed(len(entries))
    rows = [limit_row(f"{title}, times n, limit", at, bound) for title, at in entries]
    rows += _widest_rows(data)
    for case in data["case"].values.tolist():
        own = data.sel(case=case)
        note = f"largest |z| {own['largest_z'].item():.2f} of at most {own['bound'].item():.2f}"
        title, most = f"{case}: rms z of all entries, limit", f"at most {own['rms_bound'].item():.2f}"
        rows.append(Row(title, most, own["rms_z"].item(), agrees=bool(own["agrees"].item()), note=note))
    scores = np.concatenate([each.values.ravel() for each in variance_scores(data).values()])
    rows += rows_of("NTK-variance part at every width", agreement_rows(scores))
    rows += [_difference_row(data, first, second) for first, second in _PAIRS]
    rows.append(_power_row(data, _TANH, "mean"))
    rows += [_power_row(data, case, "ntk_change") for case in (_SIN, _TANH, _DEEP)]
    for name, note in _MISPRINTS.items():
        at = case_of(data, _SIN).sel(entry=f"{name} of output 0 at 0")
        at = at.assign(printed=data[f"printed_{name}"])
        title = f"{_SIN}: {name} as printed, times n, beside the limit of networks"
        rows.append(limit_row(title, at, 3, ("printed", "limit", "standard_error"), note, disputed=True))
    # One sample, whose projectors have closed forms: gradient flow (∞.168), and descent at a rate (∞.169).
    H, eta = 1.7, 0.4
    flow, descent = (course_of(Clock(rate), np.array([H])).projectors for rate in (0.0, eta))
    third, sixth = -1 / (2 * H**3), -1 / (6 * H**3)
    closed = {"A": 1 / (2 * H**2), "B": 1 / (2 * H**2), "IA": sixth, "IB": sixth, "IIA": sixth, "IIB": third}
    for name, value in closed.items():
        title = f"one sample, gradient flow: projector Z_{name}"
        rows.append(computed_row(title, value, getattr(flow, name).item(), 1e-12))
    value = (1 - eta * H) / (H**2 * (2 - eta * H))
    return (*rows, computed_row("one sample, descent: projector Z_A", value, descent.A.item(), 1e-12))


def case_of(data: xarray.Dataset, case: str) -> xarray.Dataset:
    """One case, without the widths and entries that it does not have."""
    return data.sel(case=case).dropna("width", subset=["steps"]).dropna("entry", subset=["theory"])


def entries_of(data: xarray.Dataset, observable: str) -> list[str]:
    """Names of the entries of one observable that a case has."""
    return [name for name in data["entry"].values.tolist() if name.startswith(f"{observable} ")]


def _entries(data: xarray.Dataset, observable: str) -> list[tuple[str, xarray.Dataset]]:
    """Every entry of an observable in all cases, with its title; one of several says which output and test it is."""
    found = []
    for case in data["case"].values.tolist():
        own = case_of(data, case)
        names = entries_of(own, observable)
        for name in names:
            output, _, test = name.removeprefix(f"{observable} of output ").partition(" at ")
            place = f" (output {output}, test {test})" if len(names) > 1 else ""
            found.append((f"{case}: {observable}{place}", own.sel(entry=name)))
    return found


def _widest_rows(data: xarray.Dataset) -> list[Row]:
    """n (mean − infinite width) at the largest width: tested where higher orders are below the noise, for L = 2."""
    from scipy.stats import binom, norm

    entries = [(title, at.isel(width=-1)) for title, at in _entries(data, "mean")]
    shallow = sum("L = 2" in title for title, _ in entries)
    bound = largest_score_allowed(shallow)
    rows, inside = [], 0
    for title, at in entries:
        theory, value, error = (at[key].item() for key in ("theory", "measured", "measured_error"))
        title += f" less infinite width, times n, at n = {at['width'].item():.0f}"
        near = abs(value - theory) <= _NEAR * error
        if "L = 2" in title:
            inside += near
            note = "" if near else "orders beyond 1/n or chance; the limit is tested above"
            rows.append(measured_row(title, theory, value, error, bound, note))
        else:
            note = "L = 3 at this width: orders beyond 1/n are as large as the noise; the limit is what is tested"
            rows.append(Row(title, theory, value, error, note=note))
    # Fewer than these are within two standard errors in one of a hundred runs.
    fewest = int(binom.ppf(0.01, shallow, 1 - 2 * norm.sf(_NEAR)))
    title = "means of networks with L = 2 at their largest width within 2 standard errors"
    expected, here = f"at least {fewest} of {shallow}", f"{inside} of {shallow}"
    return [*rows, Row(title, expected, here, agrees=inside >= fewest)]


def variance_scores(data: xarray.Dataset) -> dict[str, xarray.DataArray]:
    """z-scores (width, entry) of the part from the variance of the kernel, once for the same networks."""
    cases = [case for case in data["case"].values.tolist() if "two-step" not in case]
    found = {case: case_of(data, case) for case in cases}
    return {case: own["score"].sel(entry=entries_of(own, "ntk_variance")) for case, own in found.items()}


def _difference_row(data: xarray.Dataset, first: str, second: str) -> Row:
    """How much further one algorithm's interaction goes than another's, in the limit."""
    one, other = (case_of(data, case).sel(entry=INTERACTION) for case in (first, second))
    inverse = 1 / one["width"].values.astype(float)
    theory, limit = (one[key].item() - other[key].item() for key in ("theory", "limit"))
    if (one["draws"].values == other["draws"].values).all():  # the same networks: their noise is shared
        values = (one["batch_value"] - other["batch_value"]).transpose("width", "batch").values
        error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
        weights = extrapolation_weights(inverse / inverse.max(), error[:, None])[:, 0]
        limit, spread = float(weights @ values.mean(axis=1)), float(np.linalg.norm(weights * error))
    else:
        spread = float(np.hypot(one["standard_error"].item(), other["standard_error"].item()))
    bound = largest_score_allowed(len(_PAIRS))
    seen = "resolved" if abs(limit) > 3 * spread else "not resolved from zero"
    note = f"{seen} ({abs(limit) / spread:.1f} standard errors from no dependence on the algorithm)"
    title = f"{first} less {second}: interaction, times n"
    return measured_row(title, theory, limit, spread, bound, note)


def _power_row(data: xarray.Dataset, case: str, observable: str) -> Row:
    """With which power of n all entries of an observable come to their coefficients of 1/n."""
    from foretrain.compare.judging.powers import power_of, sizes_of

    own = case_of(data, case)
    own = own.sel(entry=entries_of(own, observable)).transpose("width", "batch", "entry", ...)
    batches = own["batch_value"].values
    covariances = [np.atleast_2d(np.cov(each, rowvar=False)) / len(each) for each in batches]
    deviations = (own["measured"] - own["theory"]).values
    power = power_of(own["width"].values.astype(float), sizes_of(deviations, covariances))
    what = {"mean": "n (mean less infinite width)", "ntk_change": "n (mean change of the NTK)"}[observable]
    title = f"{case}: power of n by which {what} comes to the theory"
    if power is None:
        return Row(title, -1.0, "hidden by noise", note="more networks resolve it")
    known = power.standard_error <= _POWER_KNOWN
    notes = [] if known else ["too noisy here for a verdict: the size 'paper' has more networks"]
    if observable == "ntk_change":
        far = zip(kernel_deviation(own)[0], own["width"].values)
        notes.append("relative distance " + ", ".join(f"{size:.1%} at {n:.0f}" for size, n in far))
    agrees = power.agrees(-1.0) if known else None
    return Row(title, -1.0, power.value, power.standard_error, agrees=agrees, note="; ".join(notes))


def kernel_deviation(own: xarray.Dataset) -> tuple[FloatArray, FloatArray]:
    """Distance of the change of the kernel from theory over its size, by width, noise taken out; and its noise."""
    chosen = own.sel(entry=entries_of(own, "ntk_change"))
    square = ((chosen["measured"] - chosen["theory"]) ** 2).sum("entry").values
    noise = (chosen["measured_error"] ** 2).sum("entry").values
    whole = float(np.linalg.norm(chosen["theory"].values))
    return np.sqrt(np.maximum(square - noise, 0.0)) / whole, np.sqrt(noise) / whole
