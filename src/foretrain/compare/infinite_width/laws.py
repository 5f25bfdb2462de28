"""The law a parameter was drawn from, and its learning rate (architectures, section 10).

``C_W`` is the variance of a weight times its fan-in, ``C_b`` the variance of a bias. A law is recognised where
the numbers of the module are consistent with it within their sampling error; else the variance that was
measured stands for it.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from foretrain.support.errors import InputError, unknown_name

Patterns = Mapping[str, tuple[float, float]]
_ROUND = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)  # standard deviations that people choose
_SURE = 4.0  # standard errors within which a variance is taken for that of a law


@dataclass(frozen=True)
class Law:
    """Variance of the entries times the fan-in, and how it was known."""

    C: float
    how: str


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


def weight_law(
    weight: Tensor,
    fan_in: int,
    fan_out: int,
    orthogonal_shape: tuple[int, int] | None = None,
    draws: Tensor | None = None,
) -> Law:
    """C_W of a weight: a law of torch.nn.init if the numbers are consistent with it, else the measured variance.

    ``draws``: the numbers of several networks, if more than this one was drawn.
    """
    values = _finite(weight if draws is None else draws, "weight")
    largest, square = float(values.abs().max()), float(values.square().mean())
    if largest == 0:
        return Law(0.0, "all zero")
    if values.numel() > 1 and bool((values == values[0]).all()):
        return Law(square * fan_in, "all equal: measured")
    if orthogonal_shape is not None and (gain := _orthogonal_gain(weight, orthogonal_shape)) is not None:
        rows, columns = orthogonal_shape
        return Law(gain**2 * (1.0 if rows <= columns else fan_in / rows), f"orthogonal, gain {gain:.3g}")
    error = math.sqrt(2 / values.numel())
    uniform = largest <= 1.0000001 * math.sqrt(3 * square) * (1 + _SURE * error) and _is_uniform(
        values, largest
    )
    best: tuple[bool, float, Law] | None = None  # laws that scale with the fan-in first, then the nearest
    for name, C, flat in _candidates(fan_in, fan_out):
        if flat is not None and flat is not uniform:
            continue
        if flat and largest > math.sqrt(3 * C / fan_in) * (1 + 1e-5):
            continue
        spread = error * (
            math.sqrt(0.4) if flat else 1.0
        )  # of the mean square, relative: uniform entries vary less
        distance = abs(square * fan_in / C - 1) / spread
        rank = name.startswith("normal"), distance
        if distance < _SURE and (best is None or rank < best[:2]):
            best = *rank, Law(C, name)
    return best[2] if best else Law(square * fan_in, f"measured, ±{100 * error:.1g} %")


def _is_uniform(values: Tensor, largest: float) -> bool:
    """Whether the fourth moment is nearer that of uniform entries (9/5) than that of Gaussian ones (3)."""
    square = values.square().mean()
    return bool(values.pow(4).mean() / square**2 < 2.4) and largest > 0


def _candidates(fan_in: int, fan_out: int) -> list[tuple[str, float, bool | None]]:
    """Names, C_W, and whether entries are uniform (True) or Gaussian (False)."""
    shared = 2 * fan_in / (fan_in + fan_out)
    ratio = fan_in / fan_out
    found: list[tuple[str, float, bool | None]] = [("torch's default, uniform", 1 / 3, True)]
    for flat, word in ((False, "normal"), (True, "uniform")):
        found += [
            (f"kaiming {word}", 2.0, flat),
            (f"kaiming {word}, fan_out", 2 * ratio, flat),
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
    """C_b of a bias: 0 in wide layers with torch's default, whose variance falls like 1/fan_in."""
    if bias is None:
        return Law(0.0, "none")
    values = _finite(bias, "bias")
    largest, square = float(values.abs().max()), float(values.square().mean())
    if largest == 0:
        return Law(0.0, "all zero")
    bound = 1 / math.sqrt(fan_in)
    error = math.sqrt(0.4 * 2 / len(values))
    if largest <= bound * (1 + 1e-5) and abs(3 * square / bound**2 - 1) < max(_SURE * error, 0.5):
        if wide:
            return Law(0.0, "torch's default, 1/(3 fan_in), which vanishes with the width")
        return Law(bound**2 / 3, "torch's default, 1/(3 fan_in)")
    relative = math.sqrt(2 / len(values))
    near = min(_ROUND, key=lambda std: abs(square / std**2 - 1))
    if len(values) >= 16 and abs(square / near**2 - 1) < 2 * relative and largest > math.sqrt(3) * near:
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
        if isinstance(self.rates, str) and self.rates not in ("ntk", "standard"):
            raise unknown_name("`rates`", self.rates, ("ntk", "standard"))
        for name in ("init", "rates"):
            if isinstance(value := getattr(self, name), Mapping):
                for pattern, pair in value.items():
                    _check_pair(name, pattern, pair)

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
        """C_W, C_b and the rates of an operation, from ``init`` where a pattern matches; a line of the reading."""
        if isinstance(self.init, Mapping) and (found := best_match(self.init, module)) is not None:
            weight, bias, note = Law(found[0], "given"), bias and Law(found[1], "given"), ""
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
