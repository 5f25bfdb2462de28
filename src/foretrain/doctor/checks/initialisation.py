"""Is every layer of the MLP at its critical initialisation, and what does it do to signals and gradients if not?

Judged by the consequence: differences between inputs and gradients are followed through the hidden layers, in this
very network and by the theory for its C_b and C_W. Off-critical weights do no harm in three layers and are fatal in
thirty.

Measurements (dimensions layer 1..L, hidden 1..L-1, input):
``C_b``, ``C_W``  of this network, and ``C_W_wanted``, ``C_b_wanted``
``K_before``, ``K_before_wanted``  kernel of the layer before, mean over samples, and in the network that is advised
``chi_parallel``, ``chi_perpendicular``  predicted susceptibilities at each layer's kernel, mean over inputs
``K_measured``, ``K_theory``, ``K_deviation``, ``K_z``  kernel (mean square preactivation) of some inputs beside its
prediction, the deviation between single networks, and the distance from the prediction in these deviations
``distance_measured``, ``distance_theory``  mean square difference between two inputs' activations
``gradient_measured``, ``gradient_theory``  mean square of a gradient that starts with one at the last hidden layer
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.mlp_chain import (
    INPUTS,
    Kernels,
    LayerPlan,
    MlpChain,
    Signals,
    Wanted,
    carry_out,
    chain_of,
    code_for,
    find_wanted,
    measure,
    predict,
)
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.stability import FEWEST_DIVIDED, held_out
from foretrain.doctor.trials import has_learned
from foretrain.support.answers import labelled
from foretrain.support.errors import ForetrainError, NotSupportedError

if TYPE_CHECKING:
    import xarray

# The tangent kernel of hidden weights carries (differences x gradients)^2, so the geometric mean of both falls says
# how far they learn behind the last layer. Trained MLPs (10 activations, depths 4..30) learn as well as critical ones
# down to 0.1, are several times slower below 0.025 and stand still below 0.003.
_FALL_WARNING, _FALL_CRITICAL = 0.025, 3e-3
_FALL_NOTE = 0.1
# Growth makes the first layers set the stable learning rate: from a factor of 100 the loss hardly falls. Below, such
# networks learn the given samples, but by heart; how much that costs is tried on samples held out.
_GROWTH_TRIED, _GROWTH_WARNING, _GROWTH_CRITICAL = 4.0, 10.0, 100.0
# Of the loss on samples held out, left by critical weights; for little growth.
_UNSEEN, _UNSEEN_BELOW = 0.8, 0.7
_SLOWER = 0.5  # of the loss on the trained samples, left by critical weights
# Outputs of this size, for inputs of size one, must be unlearned before anything is learned.
_OUTPUT_WARNING = 30.0
_SOURCE = "Roberts & Yaida (5.55), (5.56), (9.93)"


def check(case: Case) -> Examination:
    """Measured and predicted signals through the depth, against those of a critical network."""
    chain = chain_of(case)
    if chain.depth < 2:
        raise NotSupportedError(
            "the model has a single linear layer, whose initialisation no depth can amplify."
        )
    measured = measure(chain, case.setup.seed)
    try:
        predicted = predict(chain.mlp, chain.inputs[:INPUTS])
    except (ForetrainError, ArithmeticError, ValueError):
        predicted = None  # no rule of the theory for the activation, or kernels leave the range of numbers
    wanted = find_wanted(chain, case.setup.fresh)
    findings = [_signals_finding(case, chain, measured, predicted, wanted)]
    outputs = _outputs_finding(case, chain, wanted)
    if outputs is not None and findings[0].severity > Severity.WARNING:
        findings.append(outputs)
    return Examination(tuple(findings), _dataset(chain, measured, predicted, wanted))


def _signals_finding(
    case: Case, chain: MlpChain, measured: Signals, predicted: Kernels | None, wanted: Wanted
) -> Finding:
    told = [measured] if predicted is None else [measured, predicted.signals]
    # The milder of both: what only the theory sees is no harm, what only this draw shows is no matter of C_b and C_W.
    fall = max(float(np.sqrt(one.distance_ratio * one.gradient_ratio)) for one in told)
    growth = min(max(one.distance_ratio, one.gradient_ratio) for one in told)
    severity = Severity.NOTE if fall < _FALL_NOTE else Severity.GOOD
    if fall < _FALL_CRITICAL or growth > _GROWTH_CRITICAL:
        severity = Severity.CRITICAL
    elif fall < _FALL_WARNING or growth > _GROWTH_WARNING:
        severity = Severity.WARNING
    numbers = {
        "fall": fall,
        "growth": growth,
        "distance_ratio": measured.distance_ratio,
        "gradient_ratio": measured.gradient_ratio,
        "layers": float(chain.depth),
    }
    evidence = _evidence(chain, measured, predicted, wanted)
    setup, treatment = case.setup, _treatment("critical initialisation", wanted.layers)
    enough = len(case.task.x) >= FEWEST_DIVIDED
    if growth >= _GROWTH_TRIED and setup.fresh and treatment is not None and enough:
        given, treated = held_out(setup), held_out(treatment.apply(setup))
        by_heart = treated.unseen < _UNSEEN * given.unseen
        if growth <= _GROWTH_CRITICAL and severity != Severity.CRITICAL:
            if growth > _GROWTH_WARNING:
                harm = by_heart or not treated.trained > _SLOWER * given.trained
                severity = Severity.WARNING if harm else Severity.NOTE
            elif treated.unseen < _UNSEEN_BELOW * given.unseen:
                severity = Severity.WARNING
        evidence += (
            f" In a short training the loss on {given.samples} samples held out reached {given.unseen:.3g} (on the "
            f"others {given.trained:.3g}), and with critical weights {treated.unseen:.3g} ({treated.trained:.3g})."
        )
        if by_heart:
            numbers |= {"held_out_loss": given.unseen, "held_out_loss_treated": treated.unseen}
    if severity > Severity.WARNING:
        return Finding(severity, _calm_title(chain, measured), evidence, _SOURCE, numbers=numbers)
    return Finding(
        severity,
        _title(chain, measured, growth > _GROWTH_TRIED),
        evidence,
        _SOURCE,
        _advice(chain, wanted),
        code_for(chain, wanted.layers) if wanted.layers else "",
        treatment,
        numbers,
        chain.names,
    )


def _calm_title(chain: MlpChain, measured: Signals) -> str:
    layers = f"the {chain.depth - 1} hidden layers" if chain.depth > 2 else "the hidden layer"
    if not measured.gradient_ratio > 0:
        return f"The weights of {layers} have fair sizes, yet no gradient passes them: see the dead units."
    kept = f"Signals keep {measured.distance_ratio:.2g} and gradients {measured.gradient_ratio:.2g}"
    return f"{kept} of their size through {layers}."


def _title(chain: MlpChain, measured: Signals, grows: bool) -> str:
    layers = f"the {chain.depth - 1} hidden {chain.activation.label} layers"
    if not measured.distance[-1] > 0:
        return f"No difference between inputs passes {layers}."
    if grows and measured.gradient_ratio >= measured.distance_ratio:
        return (
            f"Gradients grow {measured.gradient_ratio:.2g}-fold through {layers}: the weights are too large."
        )
    if grows:
        return f"Signals grow {measured.distance_ratio:.2g}-fold through {layers}: the weights are too large."
    return (
        f"Differences between inputs shrink to {measured.distance_ratio:.2g} of their size through {layers}."
    )


def _evidence(chain: MlpChain, measured: Signals, predicted: Kernels | None, wanted: Wanted) -> str:
    theory = (
        ""
        if predicted is None
        else f" (theory: {predicted.signals.distance_ratio:.2g} and {predicted.signals.gradient_ratio:.2g})"
    )
    label, found = chain.activation.label, wanted.critical
    if found is None or found.point is None:
        reason = "" if found is None else f" ({found.reason})"
        critical = f"{label} has no critical initialisation{reason}"
    else:
        where = "at any kernel" if found.K_star is None else f"at K* = {found.K_star:.3g}"
        critical = f"{label} is critical at C_W = {found.C_W:.4g} and C_b = {found.C_b:.3g}, {where}"
    inner = slice(1, -1) if chain.depth > 2 else slice(None)
    return (
        f"From the first to the last hidden layer the distance between inputs is multiplied by "
        f"{measured.distance_ratio:.2g} and, backwards, a gradient by {measured.gradient_ratio:.2g}{theory}, over "
        f"{len(chain.inputs)} samples. The layers have C_W = {_span(chain.C_W[inner])} and C_b = "
        f"{_span(chain.C_b[inner])}; {critical}."
    )


def _advice(chain: MlpChain, wanted: Wanted) -> str:
    middle = [plan.C_W for plan in wanted.layers[1:-1]] or [plan.C_W for plan in wanted.layers]
    if not middle:
        return "Train these layers, or take others: they are frozen, so their weights cannot be rescaled."
    scale = f"C_W = {_span(np.array(middle))} in the hidden layers"
    if wanted.exists:
        return f"Rescale every layer so that chi_perp = 1 at the kernel it sees: {scale}, as in the code."
    return (
        f"Use tanh, ReLU or GELU instead of {chain.activation.label}; or centre its activations by the biases and "
        f"set {scale}, as in the code."
    )


def _outputs_finding(case: Case, chain: MlpChain, wanted: Wanted) -> Finding | None:
    """Outputs that start far beyond the targets, because of the last layer or of all of them together."""
    size = float(np.sqrt(chain.kernels[-1].mean() / max(1.0, float((chain.inputs**2).mean()))))
    y = case.task.y
    targets = float(y.double().square().mean().sqrt()) if y is not None and y.is_floating_point() else 1.0
    if not chain.whole or size < _OUTPUT_WARNING * max(1.0, targets) or has_learned(case):
        return None
    name = chain.names[-1]
    last = tuple(plan for plan in wanted.layers if plan.name == name)
    return Finding(
        Severity.WARNING,
        f"Outputs start at a size of {size:.3g}, far beyond the targets' {targets:.2g}.",
        f"The last layer has C_W = {chain.C_W[-1]:.3g}, measured on {len(chain.inputs)} samples.",
        "Roberts & Yaida (4.118)",
        "Rescale the last layer, so that outputs start at order one.",
        code_for(chain, last) if last else "",
        _treatment("smaller outputs", last),
        {"output_size": size, "target_size": targets},
        (name,),
    )


def _treatment(name: str, plans: tuple[LayerPlan, ...]) -> Treatment | None:
    def apply(setup: Setup) -> Setup:
        return setup.with_weights(lambda model: carry_out(model, plans))

    return Treatment(name, apply) if plans else None


def _span(values: np.ndarray[Any, Any]) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.3g}" if high - low <= 0.05 * abs(high) else f"{low:.3g} to {high:.3g}"


def _dataset(chain: MlpChain, measured: Signals, predicted: Kernels | None, wanted: Wanted) -> xarray.Dataset:
    plans = {plan.name: plan for plan in wanted.layers}
    goals = [plans.get(name) for name in chain.names]
    kernels = chain.kernels[:, :INPUTS]
    variables: dict[str, Any] = {
        "C_b": ("layer", chain.C_b),
        "C_W": ("layer", chain.C_W),
        "C_b_wanted": ("layer", [np.nan if goal is None or goal.C_b is None else goal.C_b for goal in goals]),
        "C_W_wanted": ("layer", [np.nan if goal is None else goal.C_W for goal in goals]),
        "K_before": ("layer", [np.nan, *chain.kernels[:-1].mean(1)]),
        "K_before_wanted": ("layer", [np.nan if goal is None else goal.kernel for goal in goals]),
        "K_measured": ("layer input", kernels),
        "distance_measured": ("hidden", measured.distance),
        "gradient_measured": ("hidden", measured.gradient),
    }
    if predicted is not None:
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (kernels - predicted.K) / predicted.deviation
        variables |= {
            "K_theory": ("layer input", predicted.K),
            "K_deviation": ("layer input", predicted.deviation),
            "K_z": ("layer input", z),
            "chi_parallel": ("layer", predicted.chi_parallel.mean(1)),
            "chi_perpendicular": ("layer", predicted.chi_perpendicular.mean(1)),
            "distance_theory": ("hidden", predicted.signals.distance),
            "gradient_theory": ("hidden", predicted.signals.gradient),
        }
    notes = {"activation": chain.activation.label, "samples": len(chain.inputs), "units": "none"}
    return labelled(variables, notes, ["layer", "hidden"], name=("layer", list(chain.names)))
