"""Statistics of networks that were drawn again and again: means and variances with their errors, and their limit.

The draw is the unit: what one network says about its many outputs is averaged first, and standard errors are those of
independent networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.compare.judging.ladder import extrapolation_weights
from foretrain.support.answers import Answer, Figure, Part, Result, dataset_figure, dataset_table
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray

FloatArray = NDArray[np.float64]

KERNELS = {"nngp": "NNGP", "ntk": "NTK"}
_ENTRIES_DRAWN = 6  # curves in a panel


class Moments:
    """Mean and variance of arrays that come one by one, with standard errors; no array is kept.

    Powers are summed relative to the first array, so that what is the same in all has exactly no variance.
    """

    def __init__(self) -> None:
        self.count = 0
        self._first: FloatArray = np.zeros(())
        self._sums: list[FloatArray] = []  # of the powers 1 to 4

    def add(self, values: ArrayLike) -> None:
        """Count one more draw."""
        array = np.asarray(values, dtype=np.float64)
        if not self.count:
            self._first, self._sums = array.copy(), [np.zeros_like(array) for _ in range(4)]
        self.count += 1
        away = array - self._first
        power = np.ones_like(away)
        for total in self._sums:
            power *= away
            total += power

    @property
    def mean(self) -> FloatArray:
        """Over draws."""
        return self._first + self._sums[0] / self.count

    @property
    def mean_error(self) -> FloatArray:
        """Standard error of the mean."""
        return np.sqrt(self.variance / self.count)

    @property
    def variance(self) -> FloatArray:
        """Of one draw, without bias."""
        one, two = self._sums[:2]
        return np.maximum(two - one**2 / self.count, 0.0) / (self.count - 1)

    @property
    def variance_error(self) -> FloatArray:
        """Standard error of the variance: its square is (μ₄ − (n−3)/(n−1) σ⁴) / n."""
        n = self.count
        one, two, three, four = (total / n for total in self._sums)
        fourth = four - 4 * one * three + 6 * one**2 * two - 3 * one**4
        return np.sqrt(np.maximum(fourth - (n - 3) / (n - 1) * self.variance**2, 0.0) / n)

    def record(self, mean: str, variance: str = "") -> dict[str, FloatArray]:
        """All four by name; an error has the name of what it belongs to, with ``_error`` behind it."""
        variance = variance or f"{mean}_variance"
        return {
            mean: self.mean,
            f"{mean}_error": self.mean_error,
            variance: self.variance,
            f"{variance}_error": self.variance_error,
        }


def infinite_width_limit(
    widths: ArrayLike, values: FloatArray, errors: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Values (widths, ...) at 1/width = 0 and their standard errors.

    A quadratic in 1/width through three widths, fitted by weighted least squares to more; a line through two.
    """
    inverse = np.min(widths) / np.asarray(widths, dtype=np.float64)
    weights = extrapolation_weights(inverse, errors.reshape(len(inverse), -1)).reshape(errors.shape)
    return (weights * values).sum(axis=0), np.sqrt(((weights * errors) ** 2).sum(axis=0))


def growth_exponent(data: xarray.Dataset, kernel: str) -> tuple[float, float]:
    """The power of the width by which a kernel grows between its two widest networks, and its standard error."""
    last = slice(-2, None)
    scales, errors = data[f"{kernel}_scale"].values[last], data[f"{kernel}_scale_error"].values[last]
    if not np.all(scales > 0):
        return 0.0, np.inf  # a mean over pairs that may cancel tells nothing
    step = np.log(data.width.values[-1] / data.width.values[-2])
    return float(np.diff(np.log(scales)).item() / step), float(np.hypot(*(errors / scales)) / step)


def with_limits(data: xarray.Dataset) -> xarray.Dataset:
    """The same dataset with ``x_limit`` and ``x_limit_error`` of every ``x`` that has an ``x_error``.

    A kernel that clearly grows with the width has no limit; the attributes ``x_growth`` and ``x_growth_error`` then
    hold its power of the width. What has a limit changes by 1/width, and is far from half a power.
    """
    limits: dict[str, Any] = {}
    growths: dict[str, float] = {}
    for kernel in (name for name in KERNELS if name in data):
        power, error = growth_exponent(data, kernel)
        if power - 3 * error > 0.5:
            growths |= {f"{kernel}_growth": power, f"{kernel}_growth_error": error}
    for name in [str(key) for key in data.data_vars if f"{key}_error" in data]:
        if f"{name.split('_')[0]}_growth" in growths:
            continue
        values, errors = data[name], data[f"{name}_error"]
        limit, error_of_limit = infinite_width_limit(data.width.values, values.values, errors.values)
        limits |= {f"{name}_limit": (values.dims[1:], limit)}
        limits |= {f"{name}_limit_error": (values.dims[1:], error_of_limit)}
    return data.assign(limits).assign_attrs(growths)


@dataclass(frozen=True, eq=False, repr=False)
class EnsembleStatistics(Result):
    """What networks drawn again and again have in common, and how they differ, by width and pairs of inputs.

    ``data`` holds every number: ``x`` with ``x_error`` and, of several widths, ``x_limit`` with ``x_limit_error``,
    where x is ``outputs_mean``, ``outputs_variance``, ``outputs_covariance``, ``nngp``, ``nngp_variance``, ``ntk``,
    ``ntk_variance``; ``nngp_scale`` and ``ntk_scale`` are means of the diagonal (of all entries if there is an x2).
    ``route`` says how it was computed.
    """

    data: xarray.Dataset
    draws: int  # of each width
    seed: str
    route: str

    @property
    def widths(self) -> list[int]:
        """Those that were asked for, increasing; none if the networks have one width of their own."""
        return list(self.data.width.values.tolist()) if "width" in self.data.coords else []

    @property
    def outputs_mean(self) -> xarray.DataArray:
        """Mean output over draws: (width, input_1, output), outputs flattened."""
        return self._variable("outputs_mean")

    @property
    def outputs_covariance(self) -> xarray.DataArray:
        """Covariance over draws of one output on two inputs, averaged over channels: (width, input_1, input_2)."""
        return self._variable("outputs_covariance")

    @property
    def nngp(self) -> xarray.DataArray:
        """E[f_c(a) f_c(b)], averaged over channels c: (width, input_1, input_2)."""
        return self._variable("nngp")

    @property
    def ntk(self) -> xarray.DataArray:
        """E[Θ_cc(a, b)], averaged over channels c: (width, input_1, input_2)."""
        return self._variable("ntk")

    @property
    def standard_error(self) -> xarray.Dataset:
        """Standard errors by the names of what they belong to: ``standard_error["ntk"]``."""
        return self._companions("_error")

    @property
    def variance(self) -> xarray.Dataset:
        """Variances from draw to draw, of "outputs", "nngp" and "ntk": ``variance["ntk"]``."""
        return self._companions("_variance")

    def extrapolated(self, name: str) -> xarray.Dataset:
        """Value and standard error at infinite width, as ``.value`` and ``.standard_error``.

        Two widths give a line in 1/width, more a quadratic; the error is that of the draws, not that of this form.
        """
        if len(self.widths) < 2:
            raise InputError("one width has no limit: give ensemble two or more, `widths=[64, 128, 256]`.")
        self._variable(name)
        if f"{name}_limit" not in self.data:
            kernel = name.split("_")[0]
            raise InputError(
                f"the {KERNELS[kernel]} has no limit, it {self._growth(kernel)}: give rates that fall as it grows, "
                "such as `rates=lambda name, weight: 1 / weight.shape[-1]`."
            )
        return self.data[[f"{name}_limit", f"{name}_limit_error"]].rename(
            {f"{name}_limit": "value", f"{name}_limit_error": "standard_error"}
        )

    def answer(self) -> Answer:
        """What was drawn and the size of its kernels, a table by width, and the kernels as a picture."""
        word = "width" if len(self.widths) == 1 else "each width"
        of_width = f" of {word} {', '.join(map(str, self.widths))}" if self.widths else ""
        kernels = [name for name in KERNELS if name in self.data]
        texts = []
        for name in kernels:
            if self._growth(name):
                texts.append(f"{KERNELS[name]} {self._growth(name)}, so that it has no limit at these rates")
                continue
            limit, where = ("_limit", " at infinite width") if len(self.widths) > 1 else ("", "")
            value, error = (
                self.data[f"{name}_scale{limit}{part}"].values.item(-1) for part in ("", "_error")
            )
            texts.append(f"{KERNELS[name]} {value:.4g} ± {error:.2g}{where}")
        scales = f": {', '.join(texts)}" if texts else ""
        inputs = self.data.sizes["input_1"]
        statement = f"{self.draws} networks{of_width}, drawn anew, on {inputs} inputs{scales}."
        parts: list[Part] = [f"How: {self.route}."]
        if kernels:
            headings = {f"{name}_scale": KERNELS[name] for name in kernels}
            headings |= {f"{name}_scale_variance": f"variance of the {KERNELS[name]}" for name in kernels}
            of = "all entries" if self.data.attrs["two_sets"] else "the diagonal"
            caption = f"Mean of {of}, and its variance from network to network"
            table = dataset_table(self.data, "width", headings, caption)
            parts.insert(0, table if self.widths else table.select(range(1, len(table.columns))))
        return Answer(statement, [*parts, self.figure], self.data)

    def figure(self) -> Figure:
        """Some entries of the kernels against 1/width, and their limit; of one width the kernels in colours."""
        kernels = [name for name in KERNELS if name in self.data]
        title = f"{self.draws} networks" + (" of each width" if len(self.widths) > 1 else "")
        if len(self.widths) < 2 or not kernels:
            return dataset_figure(self.data[kernels or ["outputs_covariance"]].isel(width=-1), title)
        figure = Figure(title, columns=2)
        for name in kernels:
            panel = figure.panel(x="1 / width", y=KERNELS[name])
            across = 1 / self.data.width.values
            values, errors = (self.data[f"{name}{part}"].values for part in ("", "_error"))
            if not self._growth(name):
                limits = [self.data[f"{name}_limit{part}"].values[None] for part in ("", "_error")]
                across = np.append(across, 0.0)
                values, errors = np.concatenate([values, limits[0]]), np.concatenate([errors, limits[1]])
                panel.level(x=0.0, label="infinite width, extrapolated")
            symmetric = not self.data.attrs["two_sets"]
            pairs = [(a, b) for a, b in np.ndindex(values.shape[1:3]) if a <= b or not symmetric]
            for a, b in pairs[:_ENTRIES_DRAWN]:
                place = (slice(None), a, b, *[0] * (values.ndim - 3))  # of the first position
                panel.curve(across, values[place], "o:", f"inputs {a}, {b}", error=errors[place])
        return figure

    def _growth(self, kernel: str) -> str:
        """In words by which power of the width a kernel grows; empty if it has a limit."""
        known = self.data.attrs
        if f"{kernel}_growth" not in known:
            return ""
        return f"grows as width^{known[f'{kernel}_growth']:.2f} ± {known[f'{kernel}_growth_error']:.2f}"

    def _variable(self, name: str) -> xarray.DataArray:
        known = [str(key)[:-6] for key in self.data.data_vars if str(key).endswith("_error")]
        known = [key for key in known if not key.endswith("_limit")]
        if name in known:
            return self.data[name]
        if name.startswith(("outputs_", *KERNELS)):
            raise InputError(f"{name} was not measured: add it to the `quantities` of ensemble.")
        raise unknown_name("quantity", name, known)

    def _companions(self, ending: str) -> xarray.Dataset:
        """All variables whose names have an ending, under their names without it."""
        found: Mapping[str, str] = {
            str(key): str(key).removesuffix(ending)
            for key in self.data.data_vars
            if str(key).endswith(ending)
        }
        return self.data[list(found)].rename(found)
