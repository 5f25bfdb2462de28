"""P = (D_h F)^-1 of equilibrium models: by factors of the Jacobians, or by Krylov spaces where these are too large.

Where samples do not couple, D_h F is a block (n, n) for every sample and each is a system of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.implicit.constraint import LinearisedConstraint
from foretrain.support.errors import NotSupportedError, unknown_name
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.progress import track
from foretrain.support.user_warnings import warn_user

Solver = Literal["auto", "direct", "krylov"]

_ROWS_TOGETHER = 32
_LARGEST = 4096  # unknowns of a system that is factored
_COPIES = 4  # of the Jacobians, while they are factored and checked
_SINGULAR = 0.1  # condition number times rounding
_INACCURATE = 1e-4
_TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}
_TOLERANCE_HALF = 1e-2
_RESTART = 60
_MOST_PRODUCTS = 2000


class Inverse(ABC):
    """Solves with D_h F and with its adjoint, for blocks (k, size)."""

    @abstractmethod
    def solve(self, block: Tensor, adjoint: bool = False) -> Tensor:
        """(D_h F)^-1 q, or (D_h F)^-* v."""

    @abstractmethod
    def describe(self) -> str:
        """How, and how exactly."""


def inverse(linear: LinearisedConstraint, solver: Solver = "auto") -> Inverse:
    """Factors if the systems are small enough, Krylov spaces otherwise, unless one of them is asked for."""
    if solver not in ("auto", "direct", "krylov"):
        raise unknown_name("`solver`", str(solver), ["auto", "direct", "krylov"])
    size = linear.end.numel()
    systems = 1 if linear.couples_samples() else len(linear.end)
    unknowns = size // systems
    needed = _COPIES * systems * unknowns**2 * linear.end.element_size()
    fits = unknowns <= _LARGEST and needed <= available_bytes() / 4
    if solver == "direct":
        require_memory(needed, f"D_h F of {systems} x {unknowns} unknowns", 'pass solver="krylov"')
    if solver == "direct" or (solver == "auto" and fits):
        return Factored(linear, systems)
    return Krylov(linear, systems)


class Factored(Inverse):
    """LU factors of the Jacobian of every system."""

    def __init__(self, linear: LinearisedConstraint, systems: int) -> None:
        self._systems, unknowns = systems, linear.end.numel() // systems
        jacobian = linear.residual.new_empty(systems, unknowns, unknowns)
        for start in track(range(0, unknowns, _ROWS_TOGETHER), "rows of the Jacobian"):
            rows = range(start, min(start + _ROWS_TOGETHER, unknowns))
            units = jacobian.new_zeros(len(rows), systems, unknowns)
            for number, row in enumerate(rows):  # row j of all systems by one backward pass
                units[number, :, row] = 1
            pulled = linear.jacobian_adjoint(units.flatten(1)).view(len(rows), systems, unknowns)
            jacobian[:, start : start + len(rows)] = pulled.transpose(0, 1)
        self._factors, self._pivots, failed = torch.linalg.lu_factor_ex(jacobian)
        found = float("inf")  # the largest condition number in the 1-norm; refused where it leaves no digit
        if not bool(failed.any()):
            identity = torch.eye(jacobian.shape[-1], dtype=jacobian.dtype, device=jacobian.device)
            inverted = torch.linalg.lu_solve(
                self._factors, self._pivots, identity.expand_as(jacobian).contiguous()
            )
            norms = [torch.linalg.matrix_norm(part, 1) for part in (jacobian, inverted)]
            found = float(torch.nan_to_num(norms[0] * norms[1], nan=float("inf")).max())
        digits = found * torch.finfo(jacobian.dtype).eps
        if digits > _SINGULAR:
            raise _singular(f"{found:.2g}")
        if digits > _INACCURATE:
            warn_user(
                f"D_h F has condition number {found:.2g}: about {digits:.0e} of the kernel is rounding; use float64, "
                "or a state farther from the bifurcation.",
            )
        self.condition = found

    def solve(self, block: Tensor, adjoint: bool = False) -> Tensor:
        """By the factors, or the same ones transposed."""
        columns = block.reshape(len(block), self._systems, -1).permute(1, 2, 0).contiguous()
        found: Tensor = torch.linalg.lu_solve(self._factors, self._pivots, columns, adjoint=adjoint)
        return found.permute(2, 0, 1).reshape(len(block), -1)

    def describe(self) -> str:
        """The sizes and the condition number."""
        systems, unknowns, _ = self._factors.shape
        return f"LU factors of {systems} x ({unknowns}, {unknowns}), condition number {self.condition:.2g}"


class Krylov(Inverse):
    """GMRES with restarts; every sample that does not couple to others has a space of its own."""

    def __init__(self, linear: LinearisedConstraint, systems: int) -> None:
        self._linear, self._systems = linear, systems
        self.tolerance = _TOLERANCE.get(linear.end.dtype, _TOLERANCE_HALF)

    def solve(self, block: Tensor, adjoint: bool = False) -> Tensor:
        """From products D_h F q, or D_h F* v."""
        product = self._linear.jacobian_adjoint if adjoint else self._linear.jacobian

        def apply(vectors: Tensor) -> Tensor:
            return product(vectors.reshape(len(block), -1)).reshape(vectors.shape)

        found = gmres(apply, block.reshape(len(block) * self._systems, -1), self.tolerance)
        return found.reshape(block.shape)

    def describe(self) -> str:
        """The tolerance."""
        return f"GMRES to a relative residual of {self.tolerance:.0e}"


def gmres(apply: Callable[[Tensor], Tensor], right: Tensor, tolerance: float) -> Tensor:
    """A^-1 b for many systems (s, n) at once by minimal residuals (Saad & Schultz 1986), restarted."""
    sizes = torch.linalg.vector_norm(right, dim=1)
    limit = tolerance * sizes
    found, rest = torch.zeros_like(right), right
    products, best = 0, float("inf")
    while bool((torch.linalg.vector_norm(rest, dim=1) > limit).any()):
        length = min(_RESTART, right.shape[1])
        step, triangle = _minimal_residual(apply, rest, length, 0.5 * limit)
        found = found + step
        rest = right - apply(found)
        products += length + 1
        relative = torch.linalg.vector_norm(rest, dim=1) / sizes.clamp_min(torch.finfo(sizes.dtype).tiny)
        left = float(relative.max())
        if products > _MOST_PRODUCTS or not left < 0.99 * best:
            values = torch.linalg.svdvals(triangle[relative > tolerance])
            condition = float(torch.nan_to_num(values[:, 0] / values[:, -1], nan=float("inf")).max())
            raise _singular(f"at least {condition:.2g}, with a residual that stays at {left:.1e}")
        best = left
    return found


def _minimal_residual(
    apply: Callable[[Tensor], Tensor], rest: Tensor, length: int, limit: Tensor
) -> tuple[Tensor, Tensor]:
    """The step in a Krylov space of ``rest`` that leaves least of it, and the triangular factor (s, m, m) there."""
    size = torch.linalg.vector_norm(rest, dim=1)
    basis = rest.new_zeros(length + 1, *rest.shape)
    basis[0] = _unit(rest, size)
    triangle = rest.new_zeros(len(rest), length, length)
    target = rest.new_zeros(len(rest), length + 1)
    target[:, 0] = size
    turns: list[tuple[Tensor, Tensor]] = []
    for used in range(1, length + 1):
        column, basis[used] = _orthogonal(basis[:used], apply(basis[used - 1]))
        for i, (cosine, sine) in enumerate(turns):
            column[:, i], column[:, i + 1] = _turned(cosine, sine, column[:, i], column[:, i + 1])
        long = torch.hypot(column[:, used - 1], column[:, used])
        cosine = torch.where(long > 0, column[:, used - 1] / long, 1)
        sine = torch.where(long > 0, column[:, used] / long, 0)
        turns.append((cosine, sine))
        triangle[:, : used - 1, used - 1] = column[:, : used - 1]
        # A space that is exhausted adds nothing.
        triangle[:, used - 1, used - 1] = torch.where(long > 0, long, 1)
        target[:, used - 1], target[:, used] = _turned(cosine, sine, target[:, used - 1], target[:, used])
        if bool((target[:, used].abs() <= limit).all()):
            break
    triangle = triangle[:, :used, :used]
    exhausted = torch.diag_embed((triangle.diagonal(dim1=1, dim2=2) == 0).to(rest))  # such spaces add nothing
    weights = torch.linalg.solve_triangular(triangle + exhausted, target[:, :used, None], upper=True)[..., 0]
    return torch.einsum("isn,si->sn", basis[:used], weights), triangle


def _orthogonal(basis: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """A column of the Hessenberg matrix (s, j + 1), and the next vector of the basis; zeros if there is none."""
    before = torch.linalg.vector_norm(new, dim=1)
    column = new.new_zeros(len(new), len(basis) + 1)
    for _ in range(2):  # once more for what rounding left
        overlaps = torch.einsum("isn,sn->si", basis, new)
        new = new - torch.einsum("isn,si->sn", basis, overlaps)
        column[:, :-1] += overlaps
    after = torch.linalg.vector_norm(new, dim=1)
    after = torch.where(after > 4 * torch.finfo(new.dtype).eps * before, after, 0)
    column[:, -1] = after
    return column, _unit(new, after)


def _turned(cosine: Tensor, sine: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    return cosine * first + sine * second, cosine * second - sine * first


def _unit(vectors: Tensor, sizes: Tensor) -> Tensor:
    return torch.where(sizes > 0, 1 / sizes, 0)[:, None] * vectors


def _singular(condition: str) -> NotSupportedError:
    return NotSupportedError(
        f"D_h F cannot be inverted at this state (condition number {condition}): it is at a bifurcation or one of a "
        "continuum of solutions; move away from there, or fix the free direction by an equation."
    )
