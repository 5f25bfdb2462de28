"""A plateau in lines of text."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from foretrain.compare.plateau.prediction import step_text

if TYPE_CHECKING:
    from foretrain.compare.plateau.prediction import Forecast
    from foretrain.compare.plateau.rescaling import ScalingLaw
    from foretrain.compare.plateau.result import Plateau

MEMORIES = 50  # of momentum, in which it follows its own average well
COARSE = 0.25  # of the largest stable rate: above, descent and flow differ by tens of percent


def told(found: Plateau) -> str:
    """Everything a reader needs: verdict, layers, law, advice."""
    lines = ["Plateau", f"  {found.verdict}", "  weight matrices: norm, and share of the natural norm"]
    small = {layer.name for layer in found.bottleneck.layers}
    for layer in found.layers:
        mark = "  <- bottleneck" if layer.name in small else ""
        lines.append(f"    {layer.name:<24}{layer.norm:>10.4g}{layer.relative:>9.3f}{mark}")
    if found.law is not None:
        lines.append(f"  {law_text(found.law)}")
    lines += [f"  {line}" for line in (*advice_text(found).splitlines(), *caution_text(found).splitlines())]
    return "\n".join(lines)


def law_text(law: ScalingLaw) -> str:
    """What the scaling law says, and what the network itself does."""
    start = (
        f"Scaling law for {law.small_layers} layers at ε = {law.epsilon:.3g}: plateau {law.formula} as ε → 0"
    )
    here = (
        f"halving ε makes it {law.halving:.3g} times as long by the law, {law.halving_here:.3g} times by this "
        "network's own flow"
        if math.isfinite(law.halving_here)
        else f"halving ε makes it {law.halving:.3g} times as long by the law"
    )
    scope = "" if law.applies else " (derived for layers in a row, which these are not: trust the flow)"
    return f"{start}; {here}{scope}."


def advice_text(found: Plateau) -> str:
    """Which layers to rescale, with the lines that do it, and the plateau that is left."""
    after = found.rescaled_forecast
    if after is None:
        return "" if not found.forecast.has_plateau else "No rescaling is advised."
    names = ", ".join(found.factors)
    if not math.isfinite(after.escape):
        gain = f"then the loss is {after.losses[-1]:.4g} after {after.followed:,.0f} steps ({after.status})"
    else:
        word = (
            "the plateau is gone"
            if not after.has_plateau
            else f"{step_text(after.length)} steps of plateau are left"
        )
        gain = f"then {word}: the loss is below {after.threshold:.4g} at step {step_text(after.escape)}"
        if math.isfinite(found.speedup):
            gain += f", {found.speedup:.3g} times sooner"
    return f"Bring {names} to the natural scale; {gain}.\n{found.code}"


def caution_text(found: Plateau) -> str:
    """Where descent cannot follow the flow."""
    lines = []
    flows: dict[str, Forecast | None] = {"given": found.forecast, "rescaled": found.rescaled_forecast}
    for name, flow in flows.items():
        if flow is None or flow.stability < COARSE * flow.stability_limit:
            continue
        word = "coarse" if flow.stable else "too large"
        lines.append(
            f"The learning rate is {word} for the {name} network: rate × curvature is {flow.stability:.2g} at the "
            f"end of its flow, which descent follows well only far below {flow.stability_limit:.2g}."
        )
    memory = 1 / (1 - found.descent.momentum)
    if found.descent.momentum and found.forecast.escape < MEMORIES * memory:
        lines.append(
            f"Momentum {found.descent.momentum:g} remembers about {memory:.3g} steps: predictions are good for "
            f"plateaus of more than {MEMORIES} times that, and too short here."
        )
    return "\n".join(lines)
