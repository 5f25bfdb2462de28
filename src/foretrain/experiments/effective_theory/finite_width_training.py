"""Really trained networks beside the prediction of chapter ∞: what finite width does to them, times n."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.compare.judging.ladder import extrapolation_weights
from foretrain.experiments.judgements import (
    agreeing,
    agreement_rows,
    computed_row,
    limit_row,
    measured_row,
    rows_of,
)
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, PALETTE, RED, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.algorithms import Clock, course_of

if TYPE_CHECKING:
    from foretrain.compare.trained.finite import FiniteComparison
    from foretrain.compare.trained.finite_goals import FiniteAlgorithm

PLANS: dict[str, Any] = {}

_RATE = 1.2
_ANGLES = np.pi / 3 * np.arange(6) + 0.3
_RADII = 1.6 * np.array([1.0, 1.15, 0.85, 1.1, 0.9, 1.2])


class Data(NamedTuple):
    """What is learned, and where it is asked."""

    X_train: FloatArray
    Y_train: FloatArray
    X_test: FloatArray


TWO_POINTS = Data(np.array([(-0.1, -0.7), (2.1, 0.25)]), np.array([[-0.3], [1.6]]), np.array([(-1.2, -0.95)]))
TWO_OUTPUTS = Data(TWO_POINTS.X_train, np.array([(-0.3, 0.8), (1.6, -0.5)]), TWO_POINTS.X_test)
SIX_POINTS = Data(
    np.stack([_RADII * np.cos(_ANGLES), _RADII * np.sin(_ANGLES)], axis=1),
    np.array([0.8, -0.6, 0.3, -0.9, 0.5, -0.2])[:, None],
    np.array([(0.5, 0.5), (-1.0, 0.4)]),
)


@dataclass(frozen=True, eq=False)
class Case:
    """Networks, data and an algorithm; ``rate`` is eta times the largest eigenvalue of Theta."""

    activation: str
    depth: int
    data: Data
    algorithm: FiniteAlgorithm
    rate: float | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """For example ``sin, L = 2, descent at 1.2``."""
        how = "two-step" if self.algorithm == "two_step" else f"descent at {self.rate:g}"
        return f"{self.activation}, L = {self.depth}{self.note}, {how}"

    @property
    def networks(self) -> str:
        """Cases that share it train the same networks."""
        small = "" if self.rate in (None, _RATE) else f" {self.rate:g}"
        return f"{self.activation} {self.depth}{self.note}{small}"

    def mlp(self, width: int) -> MLP:
        """The network of table E of the reference."""
        outputs = self.data.Y_train.shape[1]
        sizes: dict[str, Any] = {"depth": self.depth, "width": width, "n_in": 2, "n_out": outputs}
        return MLP(self.activation, C_b=0.1, C_W=1.3, lambda_b=0.5, lambda_W=1.0, **sizes)


SIN = Case("sin", 2, TWO_POINTS, "gradient_descent", _RATE)
SMALL_STEPS = Case("sin", 2, TWO_POINTS, "gradient_descent", 0.2)
SIN_LEAP = Case("sin", 2, TWO_POINTS, "two_step")
TANH = Case("tanh", 2, TWO_POINTS, "gradient_descent", _RATE)
TANH_LEAP = Case("tanh", 2, TWO_POINTS, "two_step")
TWO = Case("sin", 2, TWO_OUTPUTS, "gradient_descent", _RATE, ", two outputs")
SIX = Case("sin", 2, SIX_POINTS, "gradient_descent", _RATE, ", six points")
DEEP_SIN = Case("sin", 3, TWO_POINTS, "gradient_descent", _RATE)
DEEP_LEAP = Case("sin", 3, TWO_POINTS, "two_step")
DEEP_TANH = Case("tanh", 3, TWO_POINTS, "gradient_descent", _RATE)
CASES = (SIN, SMALL_STEPS, SIN_LEAP, TANH, TANH_LEAP, TWO, SIX, DEEP_SIN, DEEP_LEAP, DEEP_TANH)

Draws = dict[int, int]  # networks by width


@dataclass(frozen=True)
class Plan:
    """Networks by width: of sin and of tanh with one hidden layer, at small steps, on six points, and deeper ones.

    The narrowest are those from which on a quadratic in 1/n reaches the limit: tanh bends more than sin.
    """

    sin: Draws
    tanh: Draws
    small_steps: Draws
    six: Draws
    deep: Draws
    deep_tanh: Draws

    def draws(self, case: Case) -> Draws:
        """How many networks of which widths."""
        if case.depth > 2:
            return self.deep_tanh if case.activation == "tanh" else self.deep
        special = {SMALL_STEPS.label: self.small_steps, SIX.label: self.six}
        return special.get(case.label, self.tanh if case.activation == "tanh" else self.sin)


PLANS["finite_width_training"] = plans(
    quick=Plan(
        sin={64: 12_000, 128: 12_000, 256: 10_000, 1024: 8_000},
        tanh={128: 8_000, 256: 6_000, 512: 5_000, 1024: 6_000},
        small_steps={64: 4_000, 128: 4_000, 256: 3_000, 1024: 1_200},
        six={64: 5_000, 128: 5_000, 256: 4_000, 512: 2_400},
        deep={64: 8_000, 128: 6_000, 256: 2_400},
        deep_tanh={64: 6_000, 128: 4_000, 256: 2_400},
    ),
    paper=Plan(
        sin=dict.fromkeys((64, 128, 256, 1024), 60_000),
        tanh=dict.fromkeys((128, 256, 512, 1024), 60_000),
        small_steps={64: 30_000, 128: 30_000, 256: 30_000, 1024: 12_000},
        six={64: 40_000, 128: 40_000, 256: 40_000, 512: 20_000},
        deep={64: 60_000, 128: 60_000, 256: 24_000, 512: 8_000},
        deep_tanh={128: 60_000, 256: 24_000, 512: 8_000, 768: 4_000},
    ),
)


def finite_width_training(plan: Plan, seed: int, parts: Parts) -> Result:
    """Really trained networks beside the prediction of chapter ∞: what finite width does to them, times n.

    Networks of several widths are trained to the end, by gradient descent at two rates and by the two-step
    algorithm. The part of their mean output that comes from the fluctuations of the tangent kernel, the part that
    comes from its change while they learn, and that change itself must extrapolate to the coefficients of 1/n. At
    order 1/n the end of training depends on the algorithm: the same networks end elsewhere, by as much as predicted.
    """
    seeds = dict(with_seeds(dict.fromkeys(case.networks for case in CASES), seed))
    comparisons = {
        case.label: compared(case, plan.draws(case), seeds[case.networks], parts)
        for case in track(CASES, "cases")
    }
    data = _dataset(comparisons)
    rows = table(data)
    printed = [row for row in rows if "as printed" in row.quantity]
    near = next(row for row in rows if row.quantity.startswith("means of networks with L = 2"))
    refused = sum(row.agrees is False for row in printed)
    verdict = (
        f"Trained networks against chapter ∞: {agreeing([row for row in rows if row not in printed])} checks of "
        f"the order 1/n agree, {near.here} means at the largest width are within 2 standard errors; "
        f"{refused} of {len(printed)} formulas as printed are refuted."
    )
    return Result(verdict, rows, data, _figure)


def compared(case: Case, draws: Draws, seed: Seed, parts: Parts) -> FiniteComparison:
    """The comparison of one case, whose widths are kept one by one."""
    from foretrain.compare.trained.finite import compare_trained_finite

    mlp = case.mlp(min(draws))
    return compare_trained_finite(
        mlp,
        *case.data,
        algorithm=case.algorithm,
        eta=_eta(case, mlp),
        widths=tuple(draws),
        draws=tuple(draws.values()),
        seed=seed,
        keeper=lambda name, compute: parts.get(f"{case.label} {name}", compute),
    )


def _eta(case: Case, mlp: MLP) -> float | None:
    if case.rate is None:
        return None
    from foretrain.theory.prediction.infinite_width import output_kernels

    return case.rate / float(np.linalg.eigvalsh(output_kernels(mlp, case.data.X_train).Theta_train)[-1])


def _dataset(comparisons: dict[str, FiniteComparison]) -> xr.Dataset:
    """All comparisons along ``case``; widths and entries that a case does not have are nan."""
    from foretrain.theory.prediction.algorithms import named_algorithm
    from foretrain.theory.prediction.finite_width import FiniteWidth, terms_as_printed

    numbers = ("theory", "limit", "standard_error", "z", "measured", "measured_error", "score", "batch_value")
    parts = []
    for comparison in comparisons.values():
        own = comparison.to_dataset()
        kept = {name: own[name].reset_coords(drop=True) for name in (*numbers, "steps")}
        kept["draws"] = xr.DataArray(own["draws"].values.astype(float), dims="width")
        judged = {name: own.attrs[name] for name in ("rms_z", "largest_z", "bound", "agrees")}
        judged["rms_bound"] = comparison.judgement.rms_bound
        parts.append(xr.Dataset(kept).assign(judged))
    together = xr.concat(parts, xr.Variable("case", list(comparisons)), join="outer", combine_attrs="drop")
    # n times two parts for ``SIN`` by the formulas as they are printed.
    mlp = SIN.mlp(1024)
    ensemble = FiniteWidth.of(mlp, *SIN.data, spread="none")
    terms = terms_as_printed(ensemble, named_algorithm(SIN.algorithm, _eta(SIN, mlp)))
    n = {name: 1024 * float(term.values[0, 0]) for name, term in terms.items()}
    changed = n["dntk"] + n["ddntk_1"] + n["ddntk_2"]
    printed = {"printed_interaction": changed, "printed_ntk_variance": n["ntk_variance"]}
    return together.assign(printed).sortby("width")


_SHOWN = {  # panels of the interaction
    "sin, L = 2: the end depends on the algorithm": (SMALL_STEPS, SIN, SIN_LEAP),
    "tanh, L = 2: higher orders fall as 1/n": (TANH, TANH_LEAP),
    "L = 3": (DEEP_SIN, DEEP_LEAP, DEEP_TANH),
}
_COLORS = dict(zip((case.label for cases in _SHOWN.values() for case in cases), (*PALETTE, INK, FAINT)))


def _figure(data: xr.Dataset) -> Figure:
    """Interaction by algorithm and depth; all coefficients against theory; the kernel's part; its change."""
    title = "Trained networks of finite width: n × (mean output − infinite width) against theory of order 1/n"
    figure = Figure(title, columns=3, size=(16.5, 9.6))
    present = {case: case_of(data, case) for case in data["case"].values.tolist()}
    for title, cases in _SHOWN.items():
        _add_interaction(figure, title, [present[case.label] for case in cases if case.label in present])
    printed, color = data["printed_interaction"].item(), _COLORS[SIN.label]
    figure.panels[0].level(y=printed, color=color, dash="--")
    widest = 1 / data["width"].values.min()
    figure.panels[0].note(widest, printed, "descent at 1.2 as printed", color, align="right", above=True)
    # Every part of every case, extrapolated, over the theory.
    title, ends = "n × every part of the mean, all cases", list[float]()
    panel = figure.panel(title, "theory", "networks, extrapolated to 1/n = 0", legend="upper left")
    for observable, label, style, color in (
        ("ntk_variance", "kernel's variance", "s", GREEN),
        ("interaction", "kernel's change (interaction)", "o", BLUE),
        ("mean", "whole mean", "D", RED),
    ):
        theory, limit, error = (
            np.concatenate([own[key].sel(entry=entries_of(own, observable)) for own in present.values()])
            for key in ("theory", "limit", "standard_error")
        )
        panel.curve(theory, limit, style, label, color, error=error, size=4.5, alpha=0.85)
        ends += [theory.min(), theory.max()]
    ends = [min(ends), max(ends)]
    panel.curve(ends, ends, "-", "", FAINT, width=1)
    # z-scores of the kernel's variance part at every width: no extrapolation, no fit.
    title = "kernel's variance part, at each width (band: 2 s.e.)"
    x = log("n", ticks=data["width"].values)
    y = Axis("(measured − theory) / standard error", low=-4.0, high=5.6)
    panel = figure.panel(title, x, y, legend="upper center", legend_columns=2)
    panel.region(low=-2, high=2)
    panel.level(y=0, width=0.8)
    scores = variance_scores(data)
    for place, ((case, score), color) in enumerate(zip(scores.items(), (*PALETTE, INK))):
        places = score["width"] * (1.0 + 0.035 * (place - len(scores) / 2))
        for column, name in enumerate(score["entry"].values):
            label = "" if column else case.removesuffix(", descent at 1.2")
            panel.curve(places, score.sel(entry=name), "o", label, color, hollow=column > 0)
    # The last panel has the distance of the mean change of the kernel from theory, over the size of the change.
    n = data["width"].values
    title = "mean change of the tangent kernel by training"
    x, y = log("n", ticks=n), log("|n ΔNTK − theory| / |theory|", 0.004, 1.6)
    panel = figure.panel(title, x, y, legend="upper center", legend_columns=2)
    for (case, color), marker in zip(_COLORS.items(), "oosoosos"):
        if case not in present:
            continue
        size, noise = kernel_deviation(present[case])
        seen = size > noise  # less is noise alone, which has no place on this axis
        widths = present[case]["width"].values[seen]
        panel.curve(widths, size[seen], f"{marker}-", case, color, error=noise[seen], width=1, size=4.5)
    panel.curve(n, 12.0 / n, "--", "", INK, width=1.2)
    panel.note(n[-2], 12.0 / n[-2], "1/n", align="right", above=False)
    return figure


def _add_interaction(figure: Figure, title: str, cases: Sequence[xr.Dataset]) -> None:
    """Measured at every width, the quadratic through them, and the theory at 1/n = 0."""
    widths = sorted({int(n) for own in cases for n in own["width"].values})
    ticks = {0: "0", **{1 / n: f"1/{n}" for n in widths}}
    x = Axis("1/n", low=-0.0006, high=1.04 / widths[0], ticks=ticks)
    y = Axis("n × interaction,  n E[z(T) − z^F]", room=0.3)
    panel = figure.panel(title, x, y, legend="upper center", legend_columns=2)
    for every in cases:
        own, label = every.sel(entry=INTERACTION), every["case"].item()
        color = _COLORS[label]
        inverse, limit = 1 / own["width"].values.astype(float), own["limit"].item()
        value, error = own["measured"].values, own["measured_error"].values
        panel.curve(inverse, value, "o", label, color, error=error)
        # The quadratic in 1/n that was fitted, which has the limit at 0.
        design = np.stack([inverse, inverse**2], axis=1) / error[:, None]
        slope, bend = np.linalg.lstsq(design, (value - limit) / error, rcond=None)[0]
        fine = np.linspace(0, inverse.max(), 60)
        panel.curve(fine, limit + slope * fine + bend * fine**2, "-", "", color, width=1, alpha=0.6)
        panel.curve(0, own["theory"], "*", "", color, size=13)
        panel.curve(0, limit, "_", "", color, error=own["standard_error"], size=9)
    panel.curve([], [], "*", "theory, 1/n → 0", INK, hollow=True, size=11)
    panel.level(x=0, width=0.8)


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


def table(data: xr.Dataset) -> tuple[Row, ...]:
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


def case_of(data: xr.Dataset, case: str) -> xr.Dataset:
    """One case, without the widths and entries that it does not have."""
    return data.sel(case=case).dropna("width", subset=["steps"]).dropna("entry", subset=["theory"])


def entries_of(data: xr.Dataset, observable: str) -> list[str]:
    """Names of the entries of one observable that a case has."""
    return [name for name in data["entry"].values.tolist() if name.startswith(f"{observable} ")]


def _entries(data: xr.Dataset, observable: str) -> list[tuple[str, xr.Dataset]]:
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


def _widest_rows(data: xr.Dataset) -> list[Row]:
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


def variance_scores(data: xr.Dataset) -> dict[str, xr.DataArray]:
    """z-scores (width, entry) of the part from the variance of the kernel, once for the same networks."""
    cases = [case for case in data["case"].values.tolist() if "two-step" not in case]
    found = {case: case_of(data, case) for case in cases}
    return {case: own["score"].sel(entry=entries_of(own, "ntk_variance")) for case, own in found.items()}


def _difference_row(data: xr.Dataset, first: str, second: str) -> Row:
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


def _power_row(data: xr.Dataset, case: str, observable: str) -> Row:
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


def kernel_deviation(own: xr.Dataset) -> tuple[FloatArray, FloatArray]:
    """Distance of the change of the kernel from theory over its size, by width, noise taken out; and its noise."""
    chosen = own.sel(entry=entries_of(own, "ntk_change"))
    square = ((chosen["measured"] - chosen["theory"]) ** 2).sum("entry").values
    noise = (chosen["measured_error"] ** 2).sum("entry").values
    whole = float(np.linalg.norm(chosen["theory"].values))
    return np.sqrt(np.maximum(square - noise, 0.0)) / whole, np.sqrt(noise) / whole
