"""What is known of the critical initialisations of one activation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from foretrain.activations import Activation
from foretrain.support.errors import InputError, NotSupportedError

UniversalityClass = Literal["scale-invariant", "K*=0", "half-stable", "none"]


@dataclass(frozen=True)
class CriticalPoint:
    """A critical (C_b, C_W) with its fixed point, and how the kernel moves near it.

    ``coefficients`` act in the recursion of the network at hand, skip connection included: a_p and b_p around
    K* = 0 (5.83), (5.85); a_1, h and source at K* > 0 (5.102); A_2, A_4 and rho of the scale-invariant class
    (5.60), (5.163). nu is the growth of V / K^2 per layer, (B.29) and (B.35) with a skip connection.
    """

    K_star: float | None  # None: every kernel value is a fixed point
    C_b: float
    C_W: float
    kind: UniversalityClass
    stability: str  # "marginal", "stable", "unstable", "attracts from below", "attracts from above"
    coefficients: dict[str, float] = field(default_factory=dict)
    exponents: dict[str, float] = field(default_factory=dict)
    corrections: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Criticality:
    """What is known of the critical initialisation of one activation, with skip connections gamma or without."""

    activation: Activation
    point: CriticalPoint | None
    others: tuple[CriticalPoint, ...]
    reason: str
    gamma: float = 0.0

    @property
    def exists(self) -> bool:
        """Whether a critical point with C_b >= 0 that attracts (at least from one side) was found."""
        return self.point is not None

    @property
    def C_b(self) -> float | None:
        """Bias variance at criticality."""
        return self.point.C_b if self.point else None

    @property
    def C_W(self) -> float | None:
        """Weight variance (times fan-in) at criticality."""
        return self.point.C_W if self.point else None

    @property
    def K_star(self) -> float | None:
        """The fixed point; None where every value is one, or where there is no criticality."""
        return self.point.K_star if self.point else None

    @property
    def universality_class(self) -> UniversalityClass:
        """``scale-invariant``, ``K*=0``, ``half-stable`` or ``none``."""
        return self.point.kind if self.point else "none"

    @property
    def exponents(self) -> dict[str, float]:
        """Exponents p of quantities ~ depth^(-p) at criticality (section 5.3, table of classes).

        p_0 of K - K*, p_parallel and p_perpendicular of the distances of nearby inputs, p_V of the vertex, p_1 of
        the next-to-leading metric and p_1_tuned of the same with ``corrections``.
        """
        return self.point.exponents if self.point else {}

    @property
    def corrections(self) -> dict[str, float]:
        """C_b_1 and C_W_1 of C_b + C_b_1 / n and C_W + C_W_1 / n, which slow the drift of the mean metric (5.142).

        Empty where none is known: the class half-stable, whose drift a_1 S (l - 1)(l - 2) / 2 from K* is too small
        to matter at common depths.
        """
        return self.point.corrections if self.point else {}

    def tuned(self, n: int) -> tuple[float, float]:
        """(C_b, C_W) of a layer with fan-in n, corrections of order 1/n included (5.138), (5.142)."""
        if n < 1:
            raise InputError(f"n is {n}: give the fan-in of the layer, a positive whole number.")
        if self.point is None or not self.point.corrections:
            raise NotSupportedError(
                f"corrections of order 1/n are not known for {self.activation.label} "
                f"(class {self.universality_class}, gamma = {self.gamma:g}): use C_b and C_W themselves."
            )
        return (
            self.point.C_b + self.point.corrections["C_b_1"] / n,
            self.point.C_W + self.point.corrections["C_W_1"] / n,
        )

    def __repr__(self) -> str:
        skip = f" with gamma = {self.gamma:g}" if self.gamma else ""
        head = f"Criticality of {self.activation.label}{skip}: "
        if self.point is None:
            return "\n".join([head + f"none ({self.reason})", *map(_other, self.others)])
        where = "any K" if self.point.K_star is None else f"K* = {self.point.K_star:.10g}"
        lines = [
            head + f"class {self.point.kind}, {self.point.stability}",
            f"  C_b = {self.point.C_b:.10g}, C_W = {self.point.C_W:.10g}, {where}",
            "  exponents " + ", ".join(f"{k} = {v:g}" for k, v in self.exponents.items()),
        ]
        return "\n".join([*lines, *map(_other, self.others)])


def _other(point: CriticalPoint) -> str:
    return f"  also, {point.stability}: K* = {point.K_star:.6g}, C_b = {point.C_b:.6g}, C_W = {point.C_W:.6g}"
