"""What fields show of themselves: the layers' shares of the kernel, and which inputs are active together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.empirical.fields.chain import Layer
from foretrain.empirical.fields.state import FieldState
from foretrain.support.answers import Answer, Axis, Figure, dataset_table, labelled

if TYPE_CHECKING:
    from foretrain.empirical.fields.entry import Fields


def describe(found: Fields) -> Answer:
    """The layers with their share of the kernel, and what to ask next."""
    state, chain = found.state, found.state.chain
    traces = state.kernel_traces()
    total = float(traces.sum())
    data = labelled(
        {
            "weights": ("layer", [layer.name for layer in chain.layers]),
            "learns": ("layer", [_learns(layer) for layer in chain.layers]),
            "trace_share": ("layer", traces / total if total > 0 else np.full(chain.depth, np.nan)),
            "mean_slope": ("layer", [float(chain.a(n).mean()) for n in range(1, chain.depth + 1)]),
        },
        counted=["layer"],
    )
    factor = "" if state.readout.scale == 1 else f"{state.readout.scale**2:g} times "
    raw = f"raw: K is {factor}the sum over layers of Q * S"
    statement = (
        f"Fields of {chain.inputs} inputs in {' -> '.join(map(str, chain.widths))}, read out as "
        f"{state.readout.label}: {_closure(state)}."
    )
    more = (
        f"inner products {'divided by the width' if found.normalized else raw}\n"
        "of inputs: overlap(l) conjugate(l) masked_conjugate(l) correlator(l) coactivation(l) kernel "
        "kernel_by_layer\n"
        "of pairs: projector metric pullback transport apply_transport(l, vectors, first, second)\n"
        "of a step: first_order(lr, y) step_report(lr, y); spectra: kernel_spectrum metric_spectrum(l) "
        "weight_spectrum(l) tail(l)"
    )
    names = {
        "weights": "weights",
        "learns": "learns",
        "trace_share": "share of tr K",
        "mean_slope": "mean slope",
    }
    return Answer(
        statement, [dataset_table(data, "layer", names), more, partial(coactivation_figure, found)], data
    )


def coactivation_figure(found: Fields) -> Figure:
    """A^l of all pairs of inputs, one panel for each layer: the mean over units of the product of slopes."""
    # A last layer without activation has slope 1 everywhere.
    plain = found.depth > 1 and found.state.has_plain_output
    layers = range(1, found.depth + (not plain))
    units = [1 if found.normalized else found.widths[layer] for layer in layers]
    means = [found.coactivation(layer).values / unit for layer, unit in zip(layers, units)]
    top = float(np.abs(means).max()) or 1.0
    signed = bool(np.min(means) < 0)
    figure = Figure("Co-activation of inputs", columns=min(4, len(layers)))
    for layer, matrix in zip(layers, means):
        upright = Axis("input" if layer == 1 else "", whole=True, reverse=True)
        panel = figure.panel(f"layer {layer}", Axis("input", whole=True), upright, equal=True)
        label = "mean product of slopes" if layer == layers[-1] else ""
        panel.heat_map(matrix, label=label, diverging=signed, low=-top if signed else 0.0, high=top)
    return figure


def _closure(state: FieldState) -> str:
    """Which fields evolve without the weights."""
    if state.chain.depth == 1:
        return "training closes on v_1: simulate(model, x, y, steps, lr) needs no weights (47)"
    if state.chain.depth == 2:
        closes = "training closes on v_1 and b_1: simulate(model, x, y, steps, lr) needs no weights"
        return (
            closes if state.has_plain_output else "training needs {u_1, u_2, b_1} and the forward transport"
        )
    return "training needs G and the pullback hierarchy; the fields alone do not close"


def _learns(layer: Layer) -> str:
    parts = [
        name for name, trains in (("weight", layer.trains_weight), ("bias", layer.trains_bias)) if trains
    ]
    return ", ".join(parts) or "frozen"
