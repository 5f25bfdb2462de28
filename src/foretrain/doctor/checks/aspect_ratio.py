"""Is the MLP wide enough for its depth?

Between two initialisations with the same C_b and C_W the size of signals scatters, and more so the deeper and
narrower a network is: V / (n K^2) is the variance of the mean square signal in units of its square (5.109), nu L / n
at criticality. The theory of wide networks is an expansion in it.

Measurements (dimension layer 1..L):
``fluctuation``        V / (n K^2) of a typical input, predicted for this network's widths, C_b and C_W
``inverse_widths``     sum of 1 / n over the hidden layers before it
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray

from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.doctor.mlp_chain import MlpChain, chain_of
from foretrain.doctor.setup import Case
from foretrain.support.answers import labelled
from foretrain.support.errors import ForetrainError, NotSupportedError
from foretrain.theory.flow import flow
from foretrain.theory.residual_networks import optimal_aspect_ratio, optimal_skip

Array = NDArray[np.float64]

# At one the expansion in depth over width ends, and the mean square signal is known to a factor of about e. At five
# it is uncertain by e^sqrt(5), a factor of nine, so that a draw easily learns as badly as one off criticality.
_NOTE, _WARNING = 1.0, 5.0
_MARGIN = 1.02  # on the safe side of rounding
_SOURCE = "Roberts & Yaida (5.109), (A.73), (B.36)"


def check(case: Case) -> Examination:
    """The largest predicted fluctuation of a layer's kernel, and depth over width itself.

    Off criticality biases may hide the scatter of the weights; depth over width is beyond the expansion all the same.
    """
    chain = chain_of(case)
    if chain.depth < 2:
        raise NotSupportedError("the model has no hidden layer, so there is no width to judge.")
    fluctuation = _fluctuation(chain)
    scatter = float(fluctuation.max())
    sums = np.concatenate([[0.0], np.cumsum([1 / width for width in chain.widths[1:-1]])])
    inverse = float(sums[-1])
    try:
        best = optimal_aspect_ratio(chain.activation, n_out=chain.widths[-1])
    except ForetrainError:  # no critical point, or a half-stable one
        best = None
    worst = max(scatter, inverse)
    severity = Severity.WARNING if worst > _WARNING else Severity.NOTE if worst > _NOTE else Severity.GOOD
    finding = Finding(
        severity,
        _title(severity, scatter, inverse),
        _evidence(chain, fluctuation, inverse, best),
        _SOURCE,
        "" if severity == Severity.GOOD else _advice(chain, worst),
        numbers={"fluctuation": scatter, "depth_to_width": chain.mlp.depth_to_width},
        where=chain.names if severity < Severity.GOOD else (),
    )
    data = labelled(
        {"fluctuation": ("layer", fluctuation), "inverse_widths": ("layer", sums)},
        {
            "depth_to_width": chain.mlp.depth_to_width,
            "best_depth_to_width": float("nan") if best is None else best,
            "units": "none",
        },
        ["layer"],
        name=("layer", list(chain.names)),
    )
    return Examination((finding,), data)


def _fluctuation(chain: MlpChain) -> Array:
    """V / (n K^2) by layer, for the input of median size."""
    sizes = (chain.inputs**2).mean(1)
    typical = chain.inputs[np.argsort(sizes)[len(sizes) // 2]]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = flow(chain.mlp, typical[None, :], ["K", "V"])
    except (ForetrainError, ArithmeticError) as error:
        raise NotSupportedError(
            f"the theory gives no fluctuations for {chain.activation.label} at these weights."
        ) from error
    K, V = found["K"].values.ravel(), found["V"].values.ravel()
    if not (K > 0).all():
        raise NotSupportedError("a typical input gives no signal at all, so its fluctuations say nothing.")
    return np.asarray(V / (np.array(chain.widths[:-1]) * K**2))


def _title(severity: Severity, scatter: float, inverse: float) -> str:
    what = "between initialisations the mean square signal differs by"
    factor = f"a factor {np.exp(np.sqrt(scatter)):.2g}"
    if inverse > scatter and severity < Severity.GOOD:
        much = "too narrow" if severity == Severity.WARNING else "narrow"
        return f"The network is {much} for its depth: its depth is {inverse:.2g} times its width."
    if severity == Severity.WARNING:
        return f"The network is too narrow for its depth: {what} {factor}."
    if severity == Severity.NOTE:
        return f"The network is deep for its width: {what} {factor}."
    return f"The network is wide enough for its depth: {what} {np.sqrt(scatter):.0%}."


def _evidence(chain: MlpChain, fluctuation: Array, inverse: float, best: float | None) -> str:
    place = int(np.argmax(fluctuation))
    where = "the output" if place == len(fluctuation) - 1 else f"layer {place + 1}"
    low, high = min(chain.widths[1:-1]), max(chain.widths[1:-1])
    widths = str(low) if low == high else f"{low} to {high}"
    optimum = "" if best is None else f"; perturbation theory for all outputs together ends near {best:.2g}"
    return (
        f"V / (n K^2) = {fluctuation[place]:.3g} at {where}, predicted for {chain.depth} layers with widths "
        f"{widths} at the measured C_b and C_W. Depth over width is {chain.mlp.depth_to_width:.3g} "
        f"(sum of 1/n {inverse:.3g}){optimum}."
    )


def _advice(chain: MlpChain, worst: float) -> str:
    harmonic = (chain.depth - 1) / sum(1 / width for width in chain.widths[1:-1])
    width = int(np.ceil(_MARGIN * harmonic * worst / _NOTE))
    words = f"Use layers of width {width} or more, or fewer layers"
    try:
        gamma = optimal_skip(chain.activation, chain.mlp.depth_to_width, n_out=chain.widths[-1])
    except ForetrainError:
        return f"{words}, or add skip connections."
    if not gamma:
        return f"{words}."
    skip = f"z -> {gamma:.3g} z + W s(z) + b, with C_W multiplied by {1 - gamma**2:.2g}"
    return f"{words}; or add skip connections {skip}."
