"""Moments that have no formula: means over random draws of one channel at all positions (architectures, 3, 4, 6).

A channel h = f(u) of Gaussian fields u with covariance K and tangent kernel Theta is drawn for all inputs of a tile
together, once for all pairs of positions:

    S = E[h h'],    Theta' = E[(J t)(J' t')],    u = K^(1/2) x,   t = Theta^(1/2) y,   J = dh/du

so that a draw costs products of matrices alone. Three things make draws few:

- x are scrambled Sobol points, whose first coordinates move the smoothest modes of the fields;
- the smoothest modes of Theta, and those of weights inside f, are summed exactly: only the rest of t is random;
- where each position depends on one position, or few positions are drawn together, J is known entry by entry
  and Theta is summed exactly.

A head that flattens asks for p = q only: then what each position reads is drawn by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.special import ndtri

from foretrain.support.seeds import generator, spawn, spawn_some
from foretrain.theory.layers.channels import (
    Layout,
    Node,
    Program,
    cosines,
    evaluated,
    pairs_read,
    program,
)
from foretrain.theory.layers.expressions import Expression
from foretrain.theory.layers.fields import Field, Kernel, Once, Sampling, Tile
from foretrain.theory.layers.positions import Array, Indices, Pairs, flat_positions, shape_of
from foretrain.theory.layers.tiles import in_order

_SMOOTH_MODES = 2  # of Theta that are summed exactly
_DRAWS_OF_TANGENTS = 4  # of u in a row that have the same rest of t: it is u that makes the noise
_EVEN_COORDINATES = 64  # of the random numbers are Sobol points; more are plain random numbers
_SHIFTS = 64  # of those points, for blocks of positions: so that their errors average out
_NUMBERS_AT_ONCE = 2**19  # in an array: few enough for the cache
_PLAIN_AT_ONCE = 32  # draws of plain numbers that have one seed
_UNIT_CHANGES = 48  # entries of J of a block that are computed one by one
_ROUNDING = 1e-10  # share of a variance that is added for the sake of singular matrices
_NOTHING_LEFT = 1e-9  # share of a variance that a root may leave out
_COLUMNS = 64  # of a root that are computed together


def drawn(law: Expression, positions: tuple[int, ...], name: str) -> Drawn:
    """The moments of an expression of any fields, by draws; refused if its channels are not known."""
    steps = program(law)
    return Drawn(
        inputs=(*dict.fromkeys(node.of for node in steps.leaves), *steps.statistics),
        positions=positions,
        name=name,
        sources=frozenset().union(*(node.sources for node in steps.leaves)),
        law=law,
    )


class Blocks(NamedTuple):
    """Positions that are drawn together, and where among them each wanted pair is found."""

    outputs: Indices  # (blocks, n), -1 for none
    where: tuple[Indices, Indices, Indices]  # of each pair: block, row, column
    layout: Layout


class Prepared(NamedTuple):
    """What every tile uses again."""

    blocks: Blocks
    places: dict[Node, Indices]  # of pairs of positions in the kernel at hand, (blocks, n, n)
    bases: dict[Node, Array]  # (blocks, n, n): functions of the positions in columns, smoothest first


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawn(Field):
    """The moments of a law by draws; the inputs are its Gaussian fields, then fields whose statistics it uses."""

    law: Expression

    @cached_property
    def program(self) -> Program:
        """Steps from the Gaussian fields."""
        return program(self.law)

    @property
    def reads_points(self) -> bool:
        """What points have is left behind by tiles of own pairs."""
        return True

    @property
    def keeps_gains(self) -> bool:
        """Gains are averaged together with the law."""
        return True

    @property
    def sampled(self) -> bool:
        """Always."""
        return True

    def work(self, prepared: Prepared) -> float:
        """Products of the roots with random numbers."""
        return float(sum(one.size * one.shape[-1] for one in prepared.places.values()) or 1)

    def needs(self, wanted: Pairs) -> tuple[Pairs, ...]:
        """Of each Gaussian field all pairs of positions within a block; of the others only what points have."""
        layout, found = _blocks(self, wanted).layout, []
        for one in self.inputs:
            count, reads = prod(one.positions), list[Any]()
            for node in self.program.leaves:
                if node.of is one:
                    mask = np.zeros((len(layout.positions[node]), count + 1), dtype=bool)
                    np.put_along_axis(mask, layout.positions[node], True, axis=1)
                    reads.append(mask[:, :-1])  # the last one stood for no position
            rows = np.concatenate(reads) if reads else np.zeros((1, count), dtype=bool)
            each = np.arange(len(rows))
            found.append(pairs_read(rows, each, each, one.positions))
        return tuple(found)

    def prepare(self, wanted: Pairs, given: tuple[Pairs, ...]) -> Prepared:
        """The blocks, and where the covariances of their positions stand in the kernels at hand."""
        return _prepared(self, wanted, given)

    def kernel(self, tile: Tile, inputs: list[Kernel], pairs: Pairs, prepared: Prepared) -> Kernel:
        """Means over draws of the inputs of the tile, each by itself (own pairs) or all together."""
        assert tile.own or tile.same
        # 1. Means over draws, some blocks of positions at a time.
        outputs, (block, row, column), _ = prepared.blocks
        kernels, some = dict(zip(self.inputs, inputs, strict=True)), _blocks_at_once(tile, prepared.blocks)
        parts = [
            _means(self, tile, kernels, prepared, np.arange(start, min(start + some, len(outputs))))
            for start in range(0, len(outputs), some)
        ]
        S, Theta, mean = (np.concatenate(one, axis=1) for one in zip(*parts, strict=True))

        # 2. Second moments of points are those of their tiles of own pairs, so that no correlation exceeds 1.
        here = np.einsum("gbapap->gbap", S)
        if tile.leaves_points:
            same = outputs[block, row] == outputs[block, column]
            home = np.empty((2, prod(self.positions)), dtype=np.intp)
            home[:, outputs[block, row][same]] = block[same], row[same]
            for name, values in (("square", here), ("mean", mean)):
                points = values[:, home[0], 0, home[1]].T if tile.own else values[0, home[0], :, home[1]]
                tile.row_points[self, name] = points.reshape(*self.positions, tile.size)
        own = _of_points(tile.row_points[self, "square"], tile, outputs)
        scale = np.sqrt(np.divide(own, here, out=np.ones_like(here), where=here > 0))
        S *= scale[..., None, None] * scale[:, :, None, None]

        # 3. The wanted pairs.
        found = (one[:, block, :, row, :, column] for one in (S, Theta))  # (pairs, apart, rows, columns)
        S, Theta = (one.reshape(*shape_of(pairs), *tile.shape) for one in found)
        return Kernel(S, Theta)

    def mean(self, tile: Tile) -> Array:
        """E[f] at single points."""
        return tile.row_points[self, "mean"]


def _means(
    of: Drawn, tile: Tile, kernels: dict[Field, Kernel], prepared: Prepared, inside: Indices
) -> tuple[Array, Array, Array]:
    """Means over draws on some blocks of positions.

    S and Theta (apart, blocks, inputs, n, inputs, n) and the mean of h (apart, blocks, inputs, n).
    """
    assert tile.sampling is not None
    sampling, steps = tile.sampling, of.program
    numbers = _kept(tile, of, lambda: _numbers(sampling, of))
    layout, blocks = prepared.blocks.layout.part(inside), len(inside)
    apart, inputs = (tile.size, 1) if tile.own else (1, tile.size)
    channels, alone, n = steps.channels, layout.places_alone(steps), layout.positions[steps.root].shape[1]

    def by_inputs(values: Array) -> Array:
        return np.asarray(values.reshape(*values.shape[:3], inputs, -1, values.shape[-1]))

    def points(one: Field, name: str, at: Indices) -> Array:
        return np.asarray(_of_points(tile.row_points[one, name], tile, at)[..., None])

    # 1. Roots of the covariances; tangent kernels as they are where J is known entry by entry, else their roots.
    roots, tangents, exact = dict[Node, Array](), dict[Node, Array](), dict[Node, Array]()
    ranks = {node: np.array(step.ranks) for node, step in steps.steps.items() if step and step.ranks}

    def matrices(node: Node) -> tuple[Array, Array | None, Array | None]:
        places, basis = prepared.places[node][inside], _with_inputs(prepared.bases[node][inside], inputs)
        S, Theta = (None if one is None else _matrices(one, places, tile) for one in kernels[node.of])
        assert S is not None
        if Theta is None or alone[node] is not None or n * places.shape[1] <= _UNIT_CHANGES:
            return _root(S, basis), None, Theta
        return _root(S, basis), _root(Theta, basis), None

    for node in steps.leaves:
        drawn_before = any(one.sampled for one in in_order(node.of))
        once = Once() if drawn_before else tile.once
        root, tangent, entries = once.kept((of, node, int(inside[0])), lambda: matrices(node))  # noqa: B023
        roots[node], ranks[node] = root, np.arange(root.shape[-1])
        tangents |= {} if tangent is None else {node: tangent}
        exact |= {} if entries is None else {node: entries}

    S, Theta = np.zeros((2, apart, blocks, inputs * n, inputs * n))
    mean = np.zeros((apart, blocks, inputs * n))
    widest = max(one.shape[1] for one in layout.positions.values())
    for draws in numbers.slices(apart * blocks * inputs * widest):
        # 2. Values of the Gaussian fields, u = K^(1/2) x, and of the law.
        x = numbers.normals(ranks, channels, inside, draws)
        u = {node: by_inputs(root @ x[node].swapaxes(1, 2)[:, None]) for node, root in roots.items()}
        h, push = evaluated(steps, layout, u, x, points)

        def rows(change: Array, shape: tuple[int, ...] = h.shape) -> Array:
            """(apart, blocks, inputs x n, draws of all channels of a group)."""
            moved = np.moveaxis(np.broadcast_to(change, shape), 0, -2) / np.sqrt(shape[0])
            return np.asarray(moved.reshape(*moved.shape[:2], inputs * n, -1))

        S += _squares(rows(h))
        mean += h.mean(axis=0).sum(axis=-1).reshape(mean.shape)

        # 3. Theta: changes of which it is the sum of squares; smooth modes one by one, all others at once.
        others, rest, changes = numbers.others(draws), dict[Any, Array](), list[dict[Any, Array]]()
        for node in steps.steps:
            for k, one in enumerate(steps.parameters[node]):
                smooth, rough = one.changes(channels[node], layout.positions[node].shape[1], others)
                changes += [{(node, k): smooth}] if smooth is not None else []
                rest |= {(node, k): rough} if rough is not None else {}
        for node, root in tangents.items():
            few = min(_SMOOTH_MODES, root.shape[-1])
            for mode in range(few):
                signs = others.signs(channels[node])[:, None, None, None, None]
                changes.append({node: signs * by_inputs(root[None, ..., mode, None])})
            if few < root.shape[-1]:
                y = others.normals(channels[node], 1, 1, root.shape[-1] - few)[..., ::_DRAWS_OF_TANGENTS]
                t = np.repeat(root[..., few:] @ y, _DRAWS_OF_TANGENTS, axis=-1)
                rest[node] = by_inputs(t[..., : x[node].shape[-1]])
        for change in (*changes, rest):
            if change:
                Theta += _squares(rows(push(change)))

        # 4. And exactly, where the entries of J are known.
        for node, of_node in exact.items():
            Theta += _exactly(of_node, alone[node], u[node], lambda change: rows(push({node: change})))  # noqa: B023
        # 5. A step of the progress bar.
        share = len(inside) / len(prepared.blocks.outputs) * (draws.stop - draws.start)
        sampling.advance(of.work(prepared) * share * apart * inputs**2)
    shape = (apart, blocks, inputs, n)
    S, Theta = (one.reshape(*shape, inputs, n) / numbers.draws for one in (S, Theta))
    return S, Theta, mean.reshape(shape) / numbers.draws


def _exactly(Theta: Array, alone: Indices | None, u: Array, push: Callable[[Array], Array]) -> Array:
    """Sums over draws of J Theta J', (apart, blocks, inputs x n, inputs x n), from single changes of u.

    ``alone``: the one position that each position of the result depends on, (blocks, n), if it is one.
    """
    channels, apart, blocks, inputs, positions, _ = u.shape
    Theta = Theta.reshape(apart, blocks, inputs, positions, inputs, positions)
    total: Any = 0.0
    for channel in range(channels):
        change = np.zeros((*u.shape[:-1], 1))
        if alone is not None:  # J has one entry in each row
            change[channel] = 1.0
            at = np.maximum(alone, 0)[None]
            there = np.take_along_axis(Theta, at[:, :, None, :, None, None], axis=3)
            there = np.take_along_axis(there, at[:, :, None, None, None, :], axis=5)
            products = _squares(push(change))
            total = total + products * there.reshape(products.shape)
            continue
        entries = []
        for position in range(positions):
            change[:] = 0.0
            change[channel, ..., position, :] = 1.0
            entries.append(push(change))
        J = np.stack(entries, axis=3)  # (apart, blocks, inputs x n, positions, draws)
        products = _squares(J.reshape(apart, blocks, -1, J.shape[-1]))
        products = products.reshape(apart, blocks, *(inputs, J.shape[2] // inputs, positions) * 2)
        found = np.einsum("gbapcxqd,gbacxd->gbapxq", products, Theta, optimize=True)
        total = total + found.reshape(apart, blocks, J.shape[2], -1)
    return np.asarray(total)


def _squares(rows: Array) -> Array:
    """Sums over draws of the products of all rows."""
    return np.asarray(rows @ rows.swapaxes(-1, -2))


# Random numbers


@dataclass(frozen=True, eq=False)
class Numbers:
    """Random numbers of a field: the same for all tiles of a run."""

    even: Array  # (draws, coordinates) in (0, 1), spread evenly
    shifts: Array
    seed: np.random.SeedSequence
    shifted: dict[int, Array] = field(
        default_factory=dict
    )  # normal numbers (coordinates, draws) of each shift

    @property
    def draws(self) -> int:
        """How many."""
        return len(self.even)

    def slices(self, width: int) -> list[slice]:
        """Some draws at a time, of arrays of so many numbers for each draw."""
        some = max(1, min(_NUMBERS_AT_ONCE // width, 1024) // _PLAIN_AT_ONCE) * _PLAIN_AT_ONCE
        return [slice(start, min(start + some, self.draws)) for start in range(0, self.draws, some)]

    def normals(
        self, ranks: dict[Node, Indices], channels: dict[Node, int], blocks: Indices, draws: slice
    ) -> dict[Node, Array]:
        """Normal numbers (channels, numbers, blocks, draws); the lower their rank, the more evenly spread."""
        each = np.concatenate([np.tile(one, channels[node]) for node, one in ranks.items()])
        order, few = np.argsort(each, kind="stable"), min(len(each), self.even.shape[1])
        x = np.empty((len(blocks), len(each), draws.stop - draws.start))
        if few < len(each):
            starts = range(draws.start, draws.stop, _PLAIN_AT_ONCE)
            for start, seed in zip(starts, spawn_some(self.seed, starts)):
                stop = min(start + _PLAIN_AT_ONCE, draws.stop)
                plain = generator(seed).standard_normal((len(each) - few, _PLAIN_AT_ONCE))
                x[:, order[few:], start - draws.start : stop - draws.start] = plain[:, : stop - start]
        for part, shift in zip(x, blocks % len(self.shifts)):
            if shift not in self.shifted:
                points = (self.even + self.shifts[shift]).T % 1.0
                self.shifted[shift] = ndtri(np.clip(points, 1e-16, 1 - 1e-16))
            part[order[:few]] = self.shifted[shift][:few, draws]
        ends = np.cumsum([channels[node] * len(one) for node, one in ranks.items()])
        parts = zip(ranks, np.split(x, ends[:-1], axis=1), strict=True)
        return {
            node: part.reshape(len(blocks), channels[node], -1, x.shape[-1]).transpose(1, 2, 0, 3)
            for node, part in parts
        }

    def others(self, draws: slice) -> Others:
        """A source of numbers that need not be even."""
        (seed,) = spawn_some(self.seed, [self.draws + draws.start])  # none of those of the plain numbers
        return Others(generator(seed), draws.stop - draws.start)


@dataclass(frozen=True, eq=False)
class Others:
    """Independent random numbers for some draws."""

    source: np.random.Generator
    draws: int

    def normals(self, *shape: int) -> Array:
        """Standard normal numbers."""
        return self.source.standard_normal((*shape, self.draws))

    def signs(self, count: int) -> Array:
        """Random signs, so that products of different channels vanish on average; 1 for a single one."""
        return np.ones((1, 1)) if count == 1 else self.source.choice((-1.0, 1.0), (count, self.draws))


def _numbers(sampling: Sampling, of: Field) -> Numbers:
    """The random numbers of a field in a repetition."""
    from scipy.stats import qmc  # slow to import, and seldom needed

    (source,) = spawn_some(sampling.seed, [sampling.numbers[of]])
    even, shifts, plain = spawn(source, 3)
    points = qmc.Sobol(_EVEN_COORDINATES, scramble=True, rng=generator(even))
    return Numbers(
        points.random_base2(max(1, (sampling.draws - 1).bit_length())),
        generator(shifts).random((_SHIFTS, _EVEN_COORDINATES)),
        plain,
    )


# What tiles of one run share

_runs: WeakKeyDictionary[Sampling, dict[Any, Any]] = WeakKeyDictionary()


def _kept(tile: Tile, name: Any, compute: Callable[[], Any]) -> Any:
    """What is computed once for all tiles of a repetition."""
    assert tile.sampling is not None
    run = _runs.setdefault(tile.sampling, {})
    if name not in run:
        run[name] = compute()
    return run[name]


# Positions and matrices


@lru_cache(maxsize=32)
def _prepared(of: Drawn, wanted: Pairs, given: tuple[Pairs, ...]) -> Prepared:
    """What every tile and every repetition uses again."""
    blocks = _blocks(of, wanted)
    places, bases = dict[Node, Indices](), dict[Node, Array]()
    for node in of.program.leaves:
        pairs, at = given[of.inputs.index(node.of)], blocks.layout.positions[node]
        along = np.zeros((*at.shape, len(pairs)), dtype=np.intp)
        flat = np.zeros((*at.shape, at.shape[1]), dtype=np.intp)
        for k, (axis, one) in enumerate(zip(pairs, _along(at, node.of.positions))):
            along[..., k] = one
            flat = flat * len(axis) + np.minimum(axis.places(one[:, :, None], one[:, None]), len(axis) - 1)
        places[node] = np.where((at[:, :, None] < 0) | (at[:, None] < 0), -1, flat)
        bases[node] = _smooth_functions(along)
    return Prepared(blocks, places, bases)


@lru_cache(maxsize=32)
def _blocks(of: Drawn, wanted: Pairs) -> Blocks:
    """All positions as one block, or one block for each p and its partners q, whichever has smaller covariances."""
    steps, count = of.program, prod(of.positions)
    p, q = flat_positions(wanted)

    def cost(blocks: Blocks) -> int:
        return sum(one.size * one.shape[1] for one in blocks.layout.positions.values())

    whole = np.arange(count)[None]
    best = Blocks(whole, (np.zeros_like(p), p, q), Layout.of(steps, whole))
    if 2 * len(p) > count**2:
        return best
    first, block = np.unique(p, return_inverse=True)
    together = np.zeros((len(first), count), dtype=bool)
    together[block, q] = together[block, p] = True
    number = np.cumsum(together, axis=1) - 1
    outputs = np.full((len(first), int(number.max()) + 1), -1)
    rows, columns = np.nonzero(together)
    outputs[rows, number[rows, columns]] = columns
    apart = Blocks(outputs, (block, number[block, p], number[block, q]), Layout.of(steps, outputs))
    return min(apart, best, key=cost)


def _blocks_at_once(tile: Tile, blocks: Blocks) -> int:
    """So many that arrays of 512 draws stay small."""
    widest = max(one.shape[1] for one in blocks.layout.positions.values())
    return int(max(1, _NUMBERS_AT_ONCE // (512 * tile.size * widest)))


def _along(at: Indices, positions: tuple[int, ...]) -> tuple[Indices, ...]:
    """Flat positions, -1 for none, as positions along each axis."""
    return np.unravel_index(np.maximum(at, 0), positions) if positions else ()


def _smooth_functions(coordinates: Indices) -> Array:
    """Orthonormal functions of positions (blocks, n, axes), in columns from the smoothest on: products of cosines."""
    blocks, n, axes = coordinates.shape
    if n == 1 or not axes:
        return np.ones((blocks, n, n))
    along = coordinates - coordinates.min(axis=1, keepdims=True)
    sizes = along.max(axis=(0, 1)) + 1
    frequencies = np.indices(sizes).reshape(axes, -1).T
    frequencies = frequencies[np.argsort((frequencies**2 / sizes**2).sum(axis=1), kind="stable")][:n]
    functions = np.zeros((blocks, n, n))
    angles = np.pi * frequencies / sizes * (along[:, :, None] + 0.5)
    functions[:, :, : len(frequencies)] = np.cos(angles).prod(axis=-1)
    if blocks == 1 and n == prod(sizes):  # a whole lattice: they are orthogonal
        return np.asarray(functions / np.linalg.norm(functions, axis=1, keepdims=True))
    basis, triangle = np.linalg.qr(functions)
    return np.asarray(basis * np.where(np.einsum("bii->bi", triangle) < 0, -1.0, 1.0)[:, None])


def _with_inputs(basis: Array, inputs: int) -> Array:
    """Functions of (inputs, positions) from those of positions (blocks, n, n), smoothest first."""
    both = np.einsum("bpr,as->baprs", basis, cosines([inputs]))
    return np.asarray(both.reshape(len(basis), inputs * basis.shape[1], -1))


def _matrices(values: Array, places: Indices, tile: Tile) -> Array:
    """A kernel as matrices (apart, blocks, inputs x positions, inputs x positions) of the positions of blocks."""
    inputs, (blocks, n, _) = tile.size, places.shape
    found = values.reshape(-1, *tile.shape)[places]
    found[places < 0] = 0.0
    if tile.own:
        return np.ascontiguousarray(np.moveaxis(found, -1, 0))
    return np.ascontiguousarray(found.transpose(0, 3, 1, 4, 2)).reshape(1, blocks, inputs * n, inputs * n)


def _of_points(values: Array, tile: Tile, at: Indices) -> Array:
    """What points (positions..., inputs) have, at positions (blocks, n), as (apart, blocks, inputs, n)."""
    found = values.reshape(-1, tile.size)[np.maximum(at, 0)]
    return np.moveaxis(found, -1, 0)[:, :, None] if tile.own else found.swapaxes(1, 2)[None]


def _root(covariance: Array, basis: Array) -> Array:
    """F with F F^T = covariance (apart, blocks, N, N), smooth in it; its first columns are the smoothest modes.

    Some columns Q of the basis at a time: K Q L^-T for Q^T K Q = L L^T is taken off K, until nothing is left. So the
    root of a matrix of low rank has few columns. A little is added to the diagonal for the sake of singular matrices;
    as it is added there alone, equal points stay equal.
    """
    size = np.sqrt(np.maximum(np.einsum("gbii->gbi", covariance), 0.0))
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    K = covariance * inverse[..., None] * inverse[..., None, :]
    try:
        root = _root_by_parts(K, basis, _ROUNDING)
    except np.linalg.LinAlgError:  # a covariance that was drawn itself may have small negative parts
        values, vectors = np.linalg.eigh(K)
        K = (vectors * np.maximum(values, 0.0)[..., None, :]) @ vectors.swapaxes(-1, -2)
        root = _root_by_parts(K, basis, 10 * _ROUNDING)
    return np.asarray(size[..., None] * root)


def _root_by_parts(K: Array, basis: Array, more: float) -> Array:
    """The root of a matrix whose diagonal is 1 or 0."""
    n = K.shape[-1]
    root, left = np.zeros((*K.shape[:-1], 0)), np.einsum("gbii->gbi", K).copy()
    for start in range(0, n, _COLUMNS):
        functions = basis[:, :, start : start + _COLUMNS]
        rest = K @ functions - root @ (root.swapaxes(-1, -2) @ functions)
        lower = np.linalg.cholesky(functions.swapaxes(-1, -2) @ rest + more * np.eye(functions.shape[-1]))
        part = np.linalg.solve(lower, rest.swapaxes(-1, -2)).swapaxes(-1, -2)
        root = np.concatenate([root, part], axis=-1)
        left -= np.einsum("gbik,gbik->gbi", part, part)
        if left.max(initial=0.0) < _NOTHING_LEFT:
            break
    used = (root**2).max(axis=(0, 1, 2), initial=0.0) > _ROUNDING
    return root[..., : max(1, int(np.flatnonzero(used)[-1]) + 1 if used.any() else 0)]
