"""What an exact tangent kernel must compute: flops of the forward pass, of C backward passes, and of Gram matrices.

How they are counted, for N inputs with C outputs each:
- A `Site` is a weight matrix, used at S positions of an input. Forward it costs 2·N·S·P, with P its entries;
  backward as often as there are outputs, where its input depends on other weights. Attention adds its two products
  forward and four backward.
- Full: a site's share of the kernel is the cheaper of two routes. By gradients: C·N of them, 2·S·P each, and their
  Gram, rows·(rows + 1)·P. By Grams: one of the site's inputs, one of its cotangents, over all positions, and their
  product contracted over positions. Symmetry halves every Gram.
- Trace: both routes with C cotangents contracted instead of multiplied out.
- Cotangents of the last site are the identity: they cost nothing, nor does passing them back through it. More
  structure of cotangents (equal at all positions after a mean, for instance) is not counted, nor are biases, norms
  and functions of single numbers.
Moved are the weights and inputs once, and the kernel once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

from bench.harness.rates import Work

BYTES = 4


@dataclass(frozen=True)
class Site:
    """A weight matrix and at how many positions it is used; a `first` one passes nothing back."""

    inputs: int
    outputs: int
    positions: int = 1
    first: bool = False

    @property
    def entries(self) -> int:
        return self.inputs * self.outputs


def work(network: str, sizes: Mapping[str, Any], shape: tuple[int, ...], outputs: str, count: int) -> Work:
    """The work of one kernel: `shape` is that of all inputs, `count` the number of outputs C."""
    sites = SITES[network](sizes, shape)
    last = sites.pop()
    N, weights = shape[0], sum(site.entries for site in sites) + last.entries
    forward = sum(2.0 * N * site.positions * site.entries for site in [*sites, last])
    backward = sum(2.0 * N * count * site.positions * site.entries for site in sites if not site.first)
    flops = forward + backward + N * (N + 1.0) * last.inputs
    flops += sum(_share(site, N, count, outputs) for site in sites)
    layers, tokens = ATTENTION.get(network, lambda sizes, shape: (0, 0))(sizes, shape)
    flops += (2 + 4 * count) * 2.0 * N * layers * tokens**2 * sizes.get("width", 0)
    kernel = N**2 * (count**2 if outputs == "full" else 1)
    return Work("float32", flops=flops, moved=BYTES * float(weights + prod(shape) + kernel))


def _share(site: Site, N: int, count: int, outputs: str) -> float:
    """Flops of a site's share of the kernel by the cheaper route."""
    rows, width = (N * count, 1) if outputs == "full" else (N, count)
    gradients = 2.0 * N * count * site.positions * site.entries + _gram(rows, width * site.entries)
    grams = _gram(N * site.positions, site.inputs) + _gram(rows * site.positions, width * site.outputs)
    contraction = _gram(rows * site.positions, 1) if site.positions > 1 else 0.0
    return min(gradients, grams + contraction)


def _gram(rows: int, columns: int) -> float:
    """All products of rows, each pair once."""
    return rows * (rows + 1.0) * columns


def _perceptron(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    layers = pairwise(sizes["widths"])
    return [Site(before, after, first=index == 0) for index, (before, after) in enumerate(layers)]


def _convolutional(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    channels, side = sizes["channels"], shape[-1]
    sites: list[Site] = []
    for before, after, stride in zip(channels, channels[1:], sizes["strides"]):
        side = (side - 1) // stride + 1
        sites.append(Site(9 * before, after, side**2, first=not sites))
    return [*sites, Site(channels[-1], sizes["outputs"])]


def _attention(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    """No site is a first one, because a norm with weights stands before it."""
    width, hidden, tokens = sizes["width"], sizes["hidden"], shape[1]
    projections = [Site(width, width, tokens)] * 4
    feed_forward = [Site(width, hidden, tokens), Site(hidden, width, tokens)]
    return [*projections, *feed_forward, Site(width, sizes["outputs"])]


def _layers(sizes: Mapping[str, Any], tokens: int) -> list[Site]:
    """The layers of a transformer; what the last one need not compute where one token is read is counted as well."""
    width = sizes["width"]
    projections = [Site(width, 3 * width, tokens), Site(width, width, tokens)]
    feed_forward = [Site(width, 4 * width, tokens), Site(4 * width, width, tokens)]
    return [*projections, *feed_forward] * sizes["layers"]


def _generative(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    """Rows that are looked up have no products."""
    return [*_layers(sizes, shape[1]), Site(sizes["width"], sizes["outputs"])]


def _encoder(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    width = sizes["width"]
    return [*_layers(sizes, shape[1]), Site(width, width), Site(width, sizes["outputs"])]


def _vision(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    width, patch = sizes["width"], sizes["patch"]
    patches = (shape[-1] // patch) ** 2
    stem = Site(3 * patch**2, width, patches, first=True)
    return [stem, *_layers(sizes, patches + 1), Site(width, sizes["outputs"])]


def _residual(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    channels, side = sizes["channels"], shape[-1]
    sites = [Site(27, channels[0], side**2, first=True)]
    sites += [Site(9 * channels[0], channels[0], side**2)] * 4
    for before, after in pairwise(channels):
        side //= 2
        sites += [Site(9 * before, after, side**2), Site(before, after, side**2)]
        sites += [Site(9 * after, after, side**2)] * 3
    return [*sites, Site(channels[-1], sizes["outputs"])]


def _recurrent(sizes: Mapping[str, Any], shape: tuple[int, ...]) -> list[Site]:
    """Nothing goes back to the inputs, and states are passed back at every step."""
    hidden, steps = sizes["hidden"], shape[1]
    from_input = Site(sizes["inputs"], 3 * hidden, steps, first=True)
    return [from_input, Site(hidden, 3 * hidden, steps), Site(hidden, sizes["outputs"])]


SITES = {
    "perceptron": _perceptron,
    "convolutional": _convolutional,
    "attention": _attention,
    "generative": _generative,
    "encoder": _encoder,
    "vision": _vision,
    "residual": _residual,
    "recurrent": _recurrent,
}

# How many layers attend to how many tokens.
ATTENTION: dict[str, Callable[[Mapping[str, Any], tuple[int, ...]], tuple[int, int]]] = {
    "attention": lambda sizes, shape: (1, shape[1]),
    "generative": lambda sizes, shape: (sizes["layers"], shape[1]),
    "encoder": lambda sizes, shape: (sizes["layers"], shape[1]),
    "vision": lambda sizes, shape: (sizes["layers"], (shape[-1] // sizes["patch"]) ** 2 + 1),
}
