"""What an activation is: its value, its derivatives, and what is known about it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Answer, Figure, Result, Table, labelled
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    import xarray

Array: TypeAlias = NDArray[np.floating[Any]]
Rule: TypeAlias = Callable[[Array, int], Array]
Parity: TypeAlias = Literal["odd", "even"]
Pieces: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
"""Ascending coefficients of the polynomials for z < 0 and for z >= 0."""

MAX_ORDER = 10
"""Highest derivative of a catalogue member, and the highest jump a kink records."""
_TAYLOR_ORDER = 5  # of what is shown


@dataclass(frozen=True)
class Kink:
    """A point where sigma or one of its derivatives jumps.

    ``jumps[k]`` is sigma^(k)(c+) - sigma^(k)(c-); the n-th distributional derivative carries
    ``jumps[k] * delta^(n-1-k)(z - c)`` besides the pointwise one. A jump that could not be measured is nan.
    """

    location: float
    jumps: tuple[float, ...]

    def jump(self, order: int) -> float:
        """The jump of the derivative of this order."""
        if order < 0 or order >= len(self.jumps) or math.isnan(self.jumps[order]):
            raise NotSupportedError(
                f"the jump of derivative {order} at z = {self.location:g} is not known: "
                "give the derivatives of the callable with derivatives=[...]."
            )
        return self.jumps[order]


@dataclass(frozen=True, eq=False, repr=False)
class Activation(Result):
    """A nonlinearity sigma, applied element by element. Make one with ``foretrain.activation``.

    ``rule(z, order)`` gives the pointwise derivatives of a float array; everything else is what the rest of
    the library needs to know about sigma to choose its formulas. Two activations are equal when ``identity``
    is: name and parameters for the catalogue, the function itself for a callable.

    ``strip`` is the distance of the nearest complex singularity from the real line (between kinks), infinite for
    entire functions and piecewise polynomials. For a callable nobody knows it: ``strip_is_measured``, and it is
    the length that its narrowest feature on [-20, 20] takes to resolve, kinks apart, at most 1.25.
    """

    name: str
    formula: str
    rule: Rule
    identity: tuple[object, ...]
    parameter_items: tuple[tuple[str, float], ...] = ()
    kinks: tuple[Kink, ...] = ()
    parity: Parity | None = None
    degree: float | None = None
    pieces: Pieces | None = None
    closed_form: str | None = None
    strip: float = math.inf
    strip_is_measured: bool = False
    max_order: int = MAX_ORDER
    method: str = "by closed formulas"
    notes: tuple[str, ...] = ()

    @property
    def parameters(self) -> Mapping[str, float]:
        """The numbers that single out this member of its family, such as ``{"slope": 0.01}``."""
        return MappingProxyType(dict(self.parameter_items))

    @property
    def label(self) -> str:
        """Name and parameters on one line; ``activation(label)`` makes a catalogue member again."""
        if not self.parameter_items:
            return self.name
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.parameter_items)})"

    @property
    def code(self) -> str:
        """What stands for it in a line of Python: its name in quotes, or that of the user's function."""
        named = self.method != "numerical" and not self.strip_is_measured
        return repr(self.label) if named else self.name

    @property
    def is_continuous(self) -> bool:
        """Whether the function itself has no jump; its slope may have."""
        return not any(kink.jump(0) for kink in self.kinks)

    @property
    def is_smooth(self) -> bool:
        """Whether no derivative of any order is known to jump."""
        return not self.kinks

    @property
    def slopes(self) -> tuple[float, float] | None:
        """(a_minus, a_plus) of a scale-invariant activation (2.14), None for any other."""
        if self.degree != 1 or self.pieces is None:
            return None
        minus, plus = (piece[1] if len(piece) > 1 else 0.0 for piece in self.pieces)
        return minus, plus

    def value(self, z: ArrayLike) -> Array:
        """sigma(z), element by element; a number in gives a number out, float32 stays float32."""
        return self.derivative(z, 0)

    __call__ = value

    def derivative(self, z: ArrayLike, order: int = 1) -> Array:
        """The pointwise derivative of this order, right-continuous at kinks.

        The delta functions that belong to a kink are not in it: ``kinks`` has them.
        """
        checked = check_order(order)
        if checked > self.max_order:
            raise NotSupportedError(
                f"derivative {checked} of {self.label} is not offered: the highest order is {self.max_order}."
            )
        result: Array = self.rule(real_array(z), checked)[()]
        return result

    def taylor(self, order: int, *, series: bool = False) -> Array:
        """sigma_p, the p-th derivative at 0, for p = 0..order; ``series=True`` divides by p!."""
        if any(kink.location == 0.0 for kink in self.kinks):
            raise NotSupportedError(
                f"{self.label} has no Taylor series at 0 because it has a kink there: "
                "use its pieces, or derivative(0.0, order) for the right-hand side."
            )
        orders = range(check_order(order) + 1)
        # By symmetry every other one is 0; a numerical derivative would leave rounding there.
        absent = {"odd": 0, "even": 1}.get(self.parity or "", -1)
        coefficients = [0.0 if p % 2 == absent else float(self.derivative(0.0, p)) for p in orders]
        if series:
            coefficients = [value / math.factorial(p) for p, value in zip(orders, coefficients)]
        return np.array(coefficients)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Activation) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def answer(self) -> Answer:
        """What is known about it, and the picture of its value and first derivatives."""
        names = ("name", "formula", "parameters", "parity", "degree", "slopes")
        record = {
            **{name: getattr(self, name) for name in names},
            "kinks": [asdict(kink) for kink in self.kinks],
            "closed_form": self.closed_form,
            "max_order": self.max_order,
            "taylor": _taylor(self),
            "notes": self.notes,
        }
        table = Table(("property", "value"), _describe(self))
        return Answer(f"Activation {self.label}", [table, self._figure], data=self._curves, record=record)

    def _curves(self) -> xarray.Dataset:
        """Value and pointwise derivatives, as far as they are drawn."""
        z = np.linspace(-5.0, 5.0, 1001)
        orders = range(min(2, self.max_order) + 1)
        values = np.stack([self.derivative(z, order) for order in orders])
        notes = {"activation": self.label, "formula": self.formula}
        return labelled({"derivative": ("order z", values)}, notes, order=list(orders), z=z)

    def _figure(self) -> Figure:
        curves, figure = self._curves()["derivative"], Figure(self.label, size=(6.0, 4.0))
        panel = figure.panel(x="z")
        for values, label in zip(curves.values, ("σ", "σ′", "σ″")):
            panel.curve(curves["z"], values, "-", label)
        for kink in self.kinks:
            panel.level(x=kink.location, dash=":")
        return figure


def check_order(order: int) -> int:
    """The order of a derivative as a whole number >= 0."""
    try:
        checked = operator.index(order)
    except TypeError:
        raise InputError(f"the order of a derivative is a whole number, not {order!r}.") from None
    if checked < 0:
        raise InputError(f"the order of a derivative is 0 or more, not {checked}.")
    return checked


def real_array(z: ArrayLike) -> Array:
    """The argument as float32 (if it came so) or float64, refused if it is not real."""
    if np.ma.is_masked(z):
        raise InputError("an activation takes numbers, not masked entries: fill them, or leave them out.")
    array = np.asarray(z)
    if array.dtype.kind not in "fiub":
        raise InputError(f"an activation takes real numbers, not {array.dtype} values.")
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)


def _describe(act: Activation) -> list[tuple[str, str]]:
    lines = [("formula", act.formula), ("parity", act.parity or "neither odd nor even")]
    if act.degree is not None:
        text = f"σ(λz) = λ^{act.degree:g} σ(z) for λ > 0"
        if act.slopes is not None:
            text += f"; scale-invariant with slopes (a-, a+) = ({act.slopes[0]:g}, {act.slopes[1]:g})"
        lines.append(("homogeneous", text))
    more = f"; and {len(act.kinks) - 4} more" if len(act.kinks) > 4 else ""
    kinks = []
    for kink in act.kinks[:4]:
        known = [(k, jump) for k, jump in enumerate(kink.jumps) if jump != 0.0 and not math.isnan(jump)]
        jumps = ", ".join(f"σ^({k}) by {jump:.6g}" for k, jump in known[:3]) + ", ..." * (len(known) > 3)
        kinks.append(f"z = {kink.location:g}" + (f" with jumps of {jumps}" if known else ", declared"))
    lines.append(("kinks", "; ".join(kinks) + more or "none (smooth)"))
    if act.strip_is_measured:
        lines.append(("variation", f"over lengths down to about {act.strip:.3g}, besides kinks"))
    elif math.isfinite(act.strip):
        lines.append(("singularity", f"nearest in the complex plane at distance {act.strip:.6g}"))
    family = f"closed form ({act.closed_form})" if act.closed_form else "by quadrature (no closed form)"
    lines.append(("Gaussian", family))
    lines.append(("derivatives", f"to order {act.max_order}, {act.method}"))
    if all(kink.location != 0.0 for kink in act.kinks):
        values = _taylor(act)
        numbers = ", ".join(f"{value + 0.0:.6g}" for value in values or [])
        told = f"σ_0..σ_{len(values) - 1} = {numbers}" if values else "not available at this accuracy"
        lines.append(("Taylor", told))
    return lines + [("note", note) for note in act.notes]


def _taylor(act: Activation) -> list[float] | None:
    """The first derivatives at 0, or None where the function has no Taylor series there."""
    try:
        return [float(value) for value in act.taylor(min(_TAYLOR_ORDER, act.max_order))]
    except NotSupportedError:
        return None
