"""Fields as text."""

from __future__ import annotations

from foretrain.empirical.fields.chain import Layer
from foretrain.empirical.fields.state import FieldState


def fields_text(state: FieldState, normalized: bool) -> str:
    """The layers with their share of the kernel, and what to ask next."""
    chain = state.chain
    widths = " -> ".join(map(str, chain.widths))
    traces = state.kernel_traces()
    total = float(traces.sum())
    lines = [
        f"Fields of {chain.inputs} inputs in {widths}, read out as {state.readout.label}",
        f"  {'layer':<7}{'weights':<22}{'learns':<14}{'share of tr K':>14}{'mean slope':>12}",
    ]
    for number, layer in enumerate(chain.layers, start=1):
        share = float(traces[number - 1]) / total if total > 0 else float("nan")
        slope = float(chain.a(number).mean())
        lines.append(f"  {number:<7}{layer.name:<22}{_learns(layer):<14}{share:>14.4f}{slope:>12.4f}")
    factor = "" if state.readout.scale == 1 else f"{state.readout.scale**2:g} times "
    inner = "divided by the width" if normalized else f"raw: K is {factor}the sum over layers of Q * S"
    return "\n".join(
        [
            *lines,
            f"  {_closure(state)}",
            f"  inner products {inner}",
            "  of inputs:  overlap(l) conjugate(l) masked_conjugate(l) correlator(l) coactivation(l) kernel "
            "kernel_by_layer",
            "  of pairs:   projector metric pullback transport apply_transport(l, vectors, first, second)",
            "  of a step:  first_order(lr, y) step_report(lr, y);  spectra: kernel_spectrum metric_spectrum(l) "
            "weight_spectrum(l) tail(l)",
        ]
    )


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
