"""The law a parameter was drawn from, and its learning rate (architectures, section 10).

``C_W`` is the variance of a weight times its fan-in, ``C_b`` the variance of a bias. A law is recognised where
the numbers of the module are consistent with it within their sampling error; else the variance that was
measured stands for it.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from foretrain.support.errors import InputError, NotSupportedError, unknown_name

Patterns = Mapping[str, tuple[float, float]]
_ROUND = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # standard deviations that people choose
_SURE = 3.5  # standard errors within which a variance is taken for that of a law
_NEAR = 2.0  # standard errors within which a common law is preferred to one that fits better
_NOT_ZERO = 6.0  # standard errors beyond which a mean is none of independent draws around zero
_FEW = 16  # numbers, inputs or outputs: fewer say nothing about how they are distributed
_FADES = 1e-3  # what C_W may at least keep, from the widths that were looked at to infinity
_OVERRULED = "(`init={{{name!r}: (C_W, C_b)}}` would overrule it)"


class Fans(NamedTuple):
    """Fan-in and fan-out of a weight at some width."""

    fan_in: float
    fan_out: float


@dataclass(frozen=True)
class Drawn:
    """The numbers of a weight, and its fans; of a factory at two widths, with the fans far beyond them."""

    numbers: tuple[Tensor, ...]  # the wider first
    fans: tuple[Fans, ...]
    limit: Fans


@dataclass(frozen=True)
class Law:
    """Variance of the entries times the fan-in, how it was known, and the mean that all entries have."""

    C: float
    how: str
    mean: float = 0.0


@dataclass(frozen=True)
class Row:
    """One line of the reading: what an operation with parameters was taken for."""

    module: str
    taken_for: str
    fan_in: float
    C_W: float
    C_b: float
    lambda_W: float
    lambda_b: float
    known: str


def table_law(name: str, rows: Tensor) -> Law:
    """The variance of the entries of an embedding or of a table of numbers at positions."""
    return weight_law(name, rows, Drawn((rows,), (Fans(1, 1),), Fans(1, 1)))


def weight_law(name: str, weight: Tensor, drawn: Drawn, matrix: tuple[int, int] | None = None) -> Law:
    """C_W of a weight: a law of torch.nn.init if the numbers are consistent with it, else the measured variance.

    ``weight`` is one draw, (outputs, fan-in) when seen as ``matrix``. Of a factory the law must hold at both widths,
    and C_W is that of the limit.
    """
    numbers = [_finite(one, "weight") for one in drawn.numbers]
    squares = [float(one.square().mean()) for one in numbers]
    if squares[0] == 0:
        return Law(0.0, "all zero")
    _require_independent(name, weight, numbers[0], drawn.fans[0].fan_in, matrix)
    if matrix is not None and (gain := _orthogonal_gain(weight, matrix)) is not None:
        shares = [min(1.0, fan_in / rows) for fan_in, rows in _rows_of(drawn, matrix)]
        return _of_limit(name, Law(gain**2 * shares[-1], f"orthogonal, gain {gain:.3g}"), gain**2 * shares[0])

    # 1. How far each law is from the mean squares, in standard errors; the worse of two widths counts.
    fits: list[tuple[tuple[bool, bool, bool, float], Law, float]] = []
    own, limit = [_candidates(*fans) for fans in drawn.fans], _candidates(*drawn.limit)
    for number, (word, C, flat) in enumerate(limit):
        distance = max(
            _distance(one, square * fans.fan_in, laws[number][1], fans.fan_in, flat)
            for one, square, fans, laws in zip(numbers, squares, drawn.fans, own, strict=True)
        )
        if distance < _SURE:
            # 2. Laws that scale with the fan-in come first; of several that are near, one without a gain of its own.
            near = distance <= _NEAR
            rank = word.startswith("normal"), not near, near and "," in word, distance
            fits.append((rank, Law(C, word), own[0][number][1]))
    error = math.sqrt(2 / numbers[0].numel())
    measured = squares[0] * drawn.fans[0].fan_in
    if fits:
        rank, law, here = min(fits, key=lambda fit: fit[0])
        if rank[-1] > _NEAR:
            law = replace(law, how=f"{law.how} ({measured:.4g} ± {measured * error:.1g} measured)")
        return _of_limit(name, law, here)

    # 3. No law: what was measured, if it is the same at both widths.
    if len(numbers) > 1:
        narrow = squares[1] * drawn.fans[1].fan_in
        kurtosis = float(numbers[0].pow(4).mean()) / squares[0] ** 2
        spread = math.sqrt(max(kurtosis - 1, 0.0) * sum(1 / one.numel() for one in numbers))
        if abs(narrow / measured - 1) > max(_NOT_ZERO * spread, 1e-6):
            raise NotSupportedError(
                f"C_W is {narrow:.3g} at the narrower of two widths and {measured:.3g} at the wider, by no known law "
                + _OVERRULED.format(name=name)
            )
    return Law(measured, f"measured, ±{100 * error:.1g} %")


def _of_limit(name: str, law: Law, here: float) -> Law:
    """The law, if its C_W neither vanishes nor grows for ever from where it is ``here``."""
    change = law.C / here
    if not _FADES < change < 1 / _FADES:
        goes = "vanishes" if change < 1 else "grows without bound"
        raise NotSupportedError(
            f"C_W ({law.how}) {goes} with the width, which leaves no limit (a module of the width you mean, "
            f"make(width), has its own fan-ins; `init={{{name!r}: (C_W, C_b)}}` would overrule them)"
        )
    return law


def _rows_of(drawn: Drawn, matrix: tuple[int, int]) -> list[tuple[float, float]]:
    """Fan-in and rows of a matrix as it is, and in the limit."""
    own = drawn.fans[0]
    grown = drawn.limit.fan_in / own.fan_in, drawn.limit.fan_out / own.fan_out
    return [(matrix[1], matrix[0]), (matrix[1] * grown[0], matrix[0] * grown[1])]


def _distance(values: Tensor, measured: float, C: float, fan_in: float, flat: bool) -> float:
    """Standard errors between the mean square of some numbers and a law; infinite if their shape is another."""
    largest, square = float(values.abs().max()), measured / fan_in
    error = math.sqrt(2 / values.numel())
    uniform = largest <= 1.0000001 * math.sqrt(3 * square) * (1 + 4 * error) and _is_uniform(values, largest)
    if flat is not uniform or (flat and largest > math.sqrt(3 * C / fan_in) * (1 + 1e-5)):
        return math.inf
    # Of the mean square, relative: uniform entries vary less.
    return abs(measured / C - 1) / (error * (math.sqrt(0.4) if flat else 1.0))


def _is_uniform(values: Tensor, largest: float) -> bool:
    """Whether the fourth moment is nearer that of uniform entries (9/5) than that of Gaussian ones (3)."""
    square = values.square().mean()
    return bool(values.pow(4).mean() / square**2 < 2.4) and largest > 0


def _require_independent(
    name: str, weight: Tensor, values: Tensor, fan_in: float, matrix: tuple[int, int] | None
) -> None:
    """Weights must look like independent draws around zero: others have no such limit, whatever their variance."""
    reason, count, mean = "", values.numel(), float(values.mean())
    if count > 1 and bool((values == values[0]).all()):
        reason = "are all equal"
    elif count >= _FEW:
        scatter = float(values.var())
        sure = abs(mean) > _NOT_ZERO * math.sqrt(scatter / count)
        if sure and fan_in * mean**2 > 0.1 * scatter:  # all inputs of a unit push together
            reason = f"are around {mean:.3g}, not zero"
    if not reason and matrix is not None and min(matrix) >= _FEW:
        rows = weight.detach().reshape(matrix)[:256].double()
        squares = rows.square().sum(1)
        some = squares > 0
        # A unit that listens to one or two inputs adds nothing up that could become Gaussian.
        alone = rows[some].pow(4).sum(1) / squares[some] ** 2
        gram = rows @ rows.T
        # sum of s^4 / (sum of s^2)^2 over singular values: 1/rows + 1/columns for independent entries.
        shared = float(gram.square().sum() / gram.diagonal().sum() ** 2)
        if float(alone.median()) > 0.45:
            reason = "are large at one or two places of each row only"
        elif shared > 3 * (1 / len(rows) + 1 / matrix[1]):
            reason = "are of low rank, or of rows that differ in size"
    if reason:
        raise NotSupportedError(
            f"its weights {reason}, which independent draws would not be " + _OVERRULED.format(name=name)
        )


def _candidates(fan_in: float, fan_out: float) -> list[tuple[str, float, bool]]:
    """Names, C_W, and whether entries are uniform (True) or Gaussian (False)."""
    shared = 2 * fan_in / (fan_in + fan_out)
    ratio = fan_in / fan_out
    found: list[tuple[str, float, bool]] = [("torch's default, uniform", 1 / 3, True)]
    for flat, word in ((False, "normal"), (True, "uniform")):
        found += [
            (f"kaiming {word}", 2.0, flat),
            (f"kaiming {word}, fan_out", 2 * ratio, flat),
            (f"kaiming {word}, slope 0.2", 2 / (1 + 0.2**2), flat),
            (f"kaiming {word}, gain of tanh", 25 / 9, flat),
            (f"kaiming {word}, gain of selu", 9 / 16, flat),
            (f"xavier {word}", shared, flat),
            (f"xavier {word}, gain of tanh", 25 / 9 * shared, flat),
            (f"xavier {word}, gain of relu", 2 * shared, flat),
            (f"lecun {word}", 1.0, flat),
        ]
    found += [(f"normal, std {std:g}", std**2 * fan_in, False) for std in _ROUND]
    return found


def _orthogonal_gain(weight: Tensor, shape: tuple[int, int]) -> float | None:
    """The gain of an orthogonal matrix, None if it is none."""
    matrix = weight.detach().reshape(shape)
    matrix = matrix if shape[0] <= shape[1] else matrix.T
    scale = 0.0
    for some in (matrix[:2].double(), matrix.double()):  # two rows tell most other matrices
        small = some @ some.T
        scale = float(small.diagonal().mean())
        off = small - scale * torch.eye(len(small), dtype=small.dtype, device=small.device)
        if len(small) < 2 or scale <= 0 or float(off.abs().max()) >= 1e-4 * scale:
            return None
    return math.sqrt(scale)


def _finite(parameter: Tensor, word: str) -> Tensor:
    """The numbers of a parameter."""
    values = parameter.detach().double().flatten()
    if not bool(torch.isfinite(values).all()):
        raise InputError(f"a {word} is not finite: initialise the model again.")
    return values


def bias_law(bias: Tensor | None, fan_in: int, wide: bool) -> Law:
    """C_b of a bias, the variance around its mean; 0 in wide layers with torch's default, 1/(3 fan_in)."""
    if bias is None:
        return Law(0.0, "none")
    values = _finite(bias, "bias")
    largest, count = float(values.abs().max()), len(values)
    if largest == 0:
        return Law(0.0, "all zero")
    if count > 1 and bool((values == values[0]).all()):
        return Law(0.0, f"all {float(values[0]):.4g}, a shift", float(values[0]))

    # 1. A mean that is not zero shifts all units alike.
    mean = float(values.mean()) if count >= _FEW else 0.0
    if mean and abs(mean) <= _NOT_ZERO * float(values.std()) / math.sqrt(count):
        mean = 0.0
    if mean:
        C_b = float(values.var())
        return Law(C_b, f"measured, ±{100 * math.sqrt(2 / count):.2g} %, with the mean {mean:.4g}", mean)

    # 2. torch's default, uniform within 1/sqrt(fan_in).
    square, bound = float(values.square().mean()), 1 / math.sqrt(fan_in)
    error = math.sqrt(0.4 * 2 / count)
    if largest <= bound * (1 + 1e-5) and abs(3 * square / bound**2 - 1) < 4 * error:
        if wide:
            return Law(0.0, "torch's default, 1/(3 fan_in), which vanishes with the width")
        return Law(bound**2 / 3, "torch's default, 1/(3 fan_in)")

    # 3. A deviation that people choose, or the measured one.
    relative = math.sqrt(2 / count)
    near = min(_ROUND, key=lambda std: abs(square / std**2 - 1))
    if count >= _FEW and abs(square / near**2 - 1) < 2 * relative and largest > math.sqrt(3) * near:
        return Law(near**2, f"normal, std {near:g}")
    return Law(square, f"measured, ±{100 * relative:.2g} %")


@dataclass
class Hyperparameters:
    """``init`` and ``rates`` as the user gave them, and the table of what was read."""

    init: Any
    rates: Any
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.init, str) and self.init != "module":
            raise unknown_name("`init`", self.init, ("module",))
        if not isinstance(self.init, str | Mapping):
            raise InputError(f'`init` must be "module" or {{pattern: (C_W, C_b)}}, not {self.init!r}.')
        if isinstance(self.rates, str) and self.rates not in ("ntk", "standard"):
            raise unknown_name("`rates`", self.rates, ("ntk", "standard"))
        if not isinstance(self.rates, str | Mapping):
            is_number = isinstance(self.rates, Real) and not isinstance(self.rates, bool)
            if not is_number or not 0 <= float(self.rates) < math.inf:
                raise InputError(
                    f'`rates` must be "ntk", "standard", one finite rate of 0 or more, or '
                    f"{{pattern: (lambda_W, lambda_b)}}, not {self.rates!r}."
                )
        for name in ("init", "rates"):
            if isinstance(value := getattr(self, name), Mapping):
                for pattern, pair in value.items():
                    _check_pair(name, pattern, pair)

    def laws(
        self, module: str, weight: Callable[[], Law], bias: Callable[[], Law] | None = None
    ) -> tuple[Law, Law | None]:
        """The laws that ``init`` gives to a module; where no pattern matches, those that its numbers show."""
        found = best_match(self.init, module) if isinstance(self.init, Mapping) else None
        if found is None:
            return weight(), bias and bias()
        return Law(found[0], "given"), bias and Law(found[1], "given")

    def read(
        self,
        module: str,
        taken_for: str,
        fan_in: int,
        weight: Law,
        bias: Law | None = None,
        trained: tuple[bool, bool] = (False, False),
        note: str = "",
    ) -> dict[str, float]:
        """C_W, C_b and the rates of an operation, and a line of the reading."""
        C_W, C_b = weight.C, 0.0 if bias is None else bias.C
        rates = self.learning_rates(module, fan_in, C_W, C_b, trained)
        known = f"weight: {weight.how}" + ("" if bias is None else f"; bias: {bias.how}") + note
        self.rows.append(Row(module, taken_for, fan_in, C_W, C_b, *rates, known))
        return {"C_W": C_W, "C_b": C_b, "lambda_W": rates[0], "lambda_b": rates[1]}

    def learning_rates(
        self, module: str, fan_in: float, C_W: float, C_b: float, trained: tuple[bool, bool]
    ) -> tuple[float, float]:
        """lambda_W and lambda_b of a module; 0 for what does not train."""
        pair = (C_W, C_b)
        if isinstance(self.rates, Mapping):
            pair = best_match(self.rates, module) or pair
        elif self.rates == "standard":
            pair = (fan_in, 1.0)
        elif not isinstance(self.rates, str):
            pair = (float(self.rates) * fan_in, float(self.rates))
        return pair[0] if trained[0] else 0.0, pair[1] if trained[1] else 0.0

    def unused(self) -> list[str]:
        """Patterns that match no module."""
        names = [row.module for row in self.rows]
        given = [value for value in (self.init, self.rates) if isinstance(value, Mapping)]
        return [
            p for patterns in given for p in patterns if not any(fnmatch.fnmatchcase(n, p) for n in names)
        ]


def _check_pair(name: str, pattern: str, pair: Any) -> None:
    try:
        first, second = (float(value) for value in pair)
    except (TypeError, ValueError):
        raise InputError(
            f"`{name}` gives two numbers for each pattern, not {pair!r} for {pattern!r}."
        ) from None
    if not (math.isfinite(first) and math.isfinite(second) and min(first, second) >= 0):
        raise InputError(f"`{name}` of {pattern!r} must be two finite numbers, 0 or more, not {pair!r}.")


def best_match(patterns: Patterns, name: str) -> tuple[float, float] | None:
    """The value of the most specific pattern that matches a name: the one with most letters that are no wildcards."""
    matching = [p for p in patterns if fnmatch.fnmatchcase(name, p)]
    if not matching:
        return None
    best = max(matching, key=lambda p: (p == name, sum(letter not in "*?[]" for letter in p)))
    first, second = patterns[best]
    return float(first), float(second)
