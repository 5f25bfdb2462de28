"""How many numbers describe the distribution of trained networks, order by order in 1/n (Epilogue).

At infinite width the trained distribution is Gaussian and made of the labels y, the kernel K and the NTK Theta
(epsilon.9). The first correction needs in addition eleven tensors with four sample indices (epsilon.13). Order 1/n^k
brings tensors with 2k + 2 sample indices, so that the count grows as N^(2k + 2); the printed exponent 2k of
(epsilon.25) contradicts (epsilon.14) and (epsilon.15).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from foretrain.support.answers import Answer, Result, Table, fields_answer
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError

Permutation = tuple[int, ...]

_PAIR_SWAPS: tuple[Permutation, ...] = ((1, 0, 2, 3), (0, 1, 3, 2))

SYMMETRIES: dict[str, tuple[Permutation, ...]] = {
    "V": (*_PAIR_SWAPS, (2, 3, 0, 1)),
    "A": (*_PAIR_SWAPS, (2, 3, 0, 1)),
    "B": ((1, 0, 3, 2), (2, 3, 0, 1)),
    "D": _PAIR_SWAPS,
    "F": ((2, 3, 0, 1),),
    "P": ((0, 2, 1, 3),),
    "Q": (),
    "R": ((0, 1, 3, 2),),
    "S": ((1, 0, 3, 2),),
    "T": ((3, 2, 1, 0),),
    "U": ((2, 3, 0, 1),),
}
"""Exchanges of stored indices that leave each four-index tensor unchanged: entry [p] says which index goes there."""


@dataclass(frozen=True, repr=False)
class ModelComplexity(Result):
    """Numbers in the trained distribution through some order in 1/n."""

    also = ("total",)
    order: int
    n_data: int
    n_train: int
    n_out: int
    counts: dict[str, int] | None  # by symbol; None where the tensors are not worked out
    exponent: int  # the count grows as n_data ** exponent

    @property
    def total(self) -> int | None:
        """All of them; None from order 2 on, where only the growth is known."""
        return None if self.counts is None else sum(self.counts.values())

    def answer(self) -> Answer:
        """How fast the count grows, and the count of every symbol."""
        counts = Table(("symbol", "count"), list((self.counts or {}).items()))
        growth = (
            f"Numbers of the trained distribution to order 1/n^{self.order} grow as n_data^{self.exponent}."
        )
        return fields_answer(self, growth, parts=[counts] if self.counts else [])


def model_complexity(order: int, n_data: int, n_train: int | None = None, n_out: int = 1) -> ModelComplexity:
    """Count the numbers that fix the distribution of trained networks through order 1/n^order.

    ``n_data`` inputs in all, of which ``n_train`` (all by default) carry labels. Order 0 is (epsilon.14),
    n_out N_A + N_D (N_D + 1); order 1 adds eleven tensors (epsilon.15), counted with their symmetries. Compare with
    the parameters of a network, ``mlp.parameter_count``.

    Examples
    --------
    >>> model_complexity(0, n_data=30, n_train=20, n_out=3).total
    990
    >>> model_complexity(1, n_data=30).counts["V"]
    108345
    """
    size = whole_number("n_data", n_data)
    trained = size if n_train is None else whole_number("n_train", n_train)
    if trained > size:
        raise InputError(f"n_train is {trained}, more than all {size} inputs: n_data counts both kinds.")
    if isinstance(order, bool) or not isinstance(order, int | np.integer) or order < 0:
        raise InputError(
            f"the order is {order!r}: give 0 for infinite width, 1 for the first correction, ..."
        )
    outputs = whole_number("n_out", n_out)
    # Kernel and NTK, or at finite width the full metric and the mean NTK: symmetric matrices both.
    matrices = ("G", "H") if order else ("K", "Theta")
    counts = {"y": outputs * trained, **dict.fromkeys(matrices, size * (size + 1) // 2)}
    if order:
        counts |= {name: independent_entries(size, SYMMETRIES[name]) for name in SYMMETRIES}
    return ModelComplexity(
        int(order), size, trained, outputs, counts if order < 2 else None, 2 * int(order) + 2
    )


def independent_entries(size: int, generators: tuple[Permutation, ...]) -> int:
    """Entries of a four-index tensor over ``size`` inputs that its index symmetries leave independent.

    Burnside's lemma: the mean over the symmetry group of the number of index sets that an element leaves alone.
    """
    group = generated_group(generators)
    fixed: int = sum(size ** _cycles(element) for element in group)
    return fixed // len(group)


def regime(r: float) -> str:
    """What the aspect ratio r = depth / width means for learning; the border near one is not sharp."""
    if not (np.isfinite(r) and r >= 0):
        raise InputError(f"the aspect ratio is {r!r}: give depth over width, zero or more.")
    if r == 0:
        return "infinite width: a kernel machine, without representation learning"
    if r < 1:
        return "effective theory: weakly interacting neurons, corrections ordered in powers of depth / width"
    return "strongly coupled: corrections of all orders compete, and networks differ wildly from draw to draw"


def generated_group(generators: tuple[Permutation, ...]) -> set[Permutation]:
    """The group of permutations of four indices generated by some of them."""
    identity: Permutation = (0, 1, 2, 3)
    group = {identity}
    while True:
        larger = group | {tuple(element[i] for i in g) for element in group for g in generators}
        if larger == group:
            return group
        group = larger


def _cycles(element: Permutation) -> int:
    seen: set[int] = set()
    count = 0
    for start in element:
        if start not in seen:
            count += 1
            while start not in seen:
                seen.add(start)
                start = element[start]
    return count
