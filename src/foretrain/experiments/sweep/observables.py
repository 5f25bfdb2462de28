"""Observables of sweeps: named functions from a point to labelled numbers.

A room adds one with a function whose signature declares its parameters (``Annotated[float, "help"]``, defaults),
and a line of the table at the end. One that draws random numbers takes ``seed``; the answer is a dict or Dataset.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from foretrain.experiments.sweep.targets import Parameter, declared
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray

Nonlinearity = Annotated[str, "name of the activation"]
Depth = Annotated[int, "layers of weights, L"]
Width = Annotated[int, "hidden width"]
BiasVariance = Annotated[float | None, "variance of biases; critical if left out"]
WeightVariance = Annotated[float | None, "variance of weights times fan-in; critical if left out"]
Skip = Annotated[float, "skip connections of hidden layers"]
InputCount = Annotated[int, "number of generic inputs"]
InputSize = Annotated[float, "mean square of an input's entries"]

_ENTRIES = 8  # of a generic input


@dataclass(frozen=True)
class Observable:
    """A function with what it shows; it takes its parameters by name."""

    name: str
    title: str
    function: Callable[..., Any]

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """As its signature declares them."""
        return declared(self.function)


def flow(
    activation: Nonlinearity,
    depth: Depth = 10,
    width: Width = 100,
    C_b: BiasVariance = None,
    C_W: WeightVariance = None,
    gamma: Skip = 0.0,
    tensors: Annotated[str, "names of the flow, such as K,V,Theta"] = "K,V",
    layer: Annotated[int, "layer from 1 on; 0 is the output"] = 0,
    inputs: InputCount = 1,
    size: InputSize = 1.0,
) -> xarray.Dataset:
    """Tensors of the flow at a layer, without their 1/n."""
    import xarray

    from foretrain.theory.criticality.critical_initialisation import critical_unless_given
    from foretrain.theory.flow import flow as run

    network = critical_unless_given(activation, depth, width, C_b, C_W, gamma)
    names = [part.strip() for part in tensors.split(",")]
    if not 0 <= layer <= depth:
        raise InputError(
            f"layer is {layer}, but there are {depth} layers: give 1 to {depth}, or 0 for the last."
        )
    found = run(network, _inputs(inputs, size), names)
    chosen = {name: found[name].sel(layer=layer or depth, drop=True) for name in names}
    single = {f"input_{axis}": 0 for axis in range(1, 7)} if inputs == 1 else {}
    return xarray.Dataset(
        {name: array.isel(single, drop=True, missing_dims="ignore") for name, array in chosen.items()}
    )


def susceptibility(
    activation: Nonlinearity,
    K: Annotated[float, "kernel"] = 1.0,
    C_W: Annotated[float, "variance of weights times fan-in"] = 1.0,
    gamma: Skip = 0.0,
) -> dict[str, Any]:
    """chi_parallel and chi_perp at a kernel (5.50), (5.51)."""
    from foretrain.theory.criticality import susceptibility as run

    found = run(activation, K, C_W, gamma)
    return {
        "chi_parallel": _special(found.parallel, 1.0),
        "chi_perpendicular": _special(found.perpendicular, 1.0),
    }


def criticality(activation: Nonlinearity, gamma: Skip = 0.0) -> dict[str, Any]:
    """The critical point of an activation; nan where there is none."""
    from foretrain.theory.criticality import criticality as run

    found = run(activation, gamma)
    numbers = {"critical_C_b": found.C_b, "critical_C_W": found.C_W, "critical_K": found.K_star}
    exponents = {name: found.exponents.get(name, math.nan) for name in ("p_0", "p_perpendicular", "p_V")}
    return {
        "universality_class": found.universality_class,
        **{name: math.nan if value is None else value for name, value in numbers.items()},
        **exponents,
    }


def phase(
    activation: Nonlinearity,
    C_b: Annotated[float, "variance of biases"],
    C_W: Annotated[float, "variance of weights times fan-in"],
    gamma: Skip = 0.0,
    start: Annotated[float, "kernel of the first layer"] = 1.0,
) -> dict[str, Any]:
    """Where the kernel and the correlation of two inputs end at infinite depth, and how fast."""
    from foretrain.theory.criticality import susceptibility as slopes
    from foretrain.theory.criticality.fixed_points import correlation_depth, final_correlation, flows_to

    K = flows_to(activation, C_b, C_W, start, gamma)
    if not math.isfinite(K):
        unknown = {name: _special(math.nan, 1.0) for name in ("chi_parallel", "chi_perpendicular")}
        return {"correlation": math.nan, "K_end": K, **unknown, "depth_perpendicular": math.nan}
    chi = slopes(activation, K, C_W, gamma)
    return {
        "correlation": final_correlation(activation, K, C_b, C_W, gamma),
        "K_end": K,
        "chi_parallel": _special(chi.parallel, 1.0),
        "chi_perpendicular": _special(chi.perpendicular, 1.0),
        "depth_perpendicular": float(correlation_depth(chi.perpendicular)),
    }


def escape_time(
    activation: Nonlinearity,
    epsilon: Annotated[float, "initial scale of the small layers"],
    depth: Annotated[int, "layers"] = 4,
    bottleneck: Annotated[int, "how many layers are small, from the first; 0: all"] = 0,
    width: Width = 64,
    beta: Annotated[float, "strength of the teacher"] = 1.0,
    threshold: Annotated[float, "on the first layer"] = 0.3,
    method: Annotated[str, "leading, corrected or reduced"] = "reduced",
    time: Annotated[str, "matrix or reduced"] = "matrix",
) -> dict[str, Any]:
    """How long gradient flow stays near the saddle; infinite if for ever."""
    from foretrain.saddle import bottleneck_scales
    from foretrain.saddle import escape_time as run

    scales = bottleneck_scales(epsilon, bottleneck or depth, depth)
    options: dict[str, Any] = {"method": method, "time": time}
    return {"escape_time": run(activation, scales, width=width, beta=beta, threshold=threshold, **options)}


def compare(
    activation: Nonlinearity,
    depth: Depth = 5,
    width: Width = 64,
    C_b: BiasVariance = None,
    C_W: WeightVariance = None,
    gamma: Skip = 0.0,
    tensors: Annotated[str, "names of the flow, such as K,V,G1"] = "K,V,G1",
    inputs: InputCount = 2,
    size: InputSize = 1.0,
    draws: Annotated[int, "networks per width, on average"] = 2000,
    seed: Annotated[int, "of the random networks"] = 0,
) -> dict[str, Any]:
    """Theory beside real random networks: root mean square and largest z, and the verdict."""
    from foretrain.compare.initial import compare_initial as run
    from foretrain.theory.criticality.critical_initialisation import critical_unless_given

    network = critical_unless_given(activation, depth, width, C_b, C_W, gamma)
    names = [part.strip() for part in tensors.split(",")]
    found = run(network, _inputs(inputs, size), names, draws, seed=seed)
    judged = found.judgement
    return {
        "rms_z": judged.rms,
        "rms_bound": judged.rms_bound,
        "largest_z": judged.largest,
        "largest_bound": judged.bound,
        "agrees": float(found.agrees),
    }


def global_ntk(
    gain: Annotated[float, "of the recurrent weights"] = 1.0,
    units: Annotated[int, "of the recurrent layer"] = 32,
    cell: Annotated[str, "rnn, gru or lstm"] = "rnn",
    steps: Annotated[int, "of time"] = 20,
    samples: Annotated[int, "in the batch"] = 8,
    n_in: Annotated[int, "white inputs"] = 2,
    accuracy: Annotated[float, "relative standard error of ranks"] = 0.02,
    seed: Annotated[int, "of weights, inputs and probes"] = 0,
) -> dict[str, Any]:
    """Trace and effective ranks of the global-state NTK of a random recurrent layer."""
    import torch

    from foretrain.empirical.global_ntk import global_ntk as kernel_of
    from foretrain.support.seeds import spawn, torch_generator
    from foretrain.training.tasks import Recurrent

    weights, data, probes = spawn(seed, 3)
    model = Recurrent(n_in, units, 1, cell, gain=gain, seed=weights, dtype=torch.float64)  # type: ignore[arg-type]
    x = torch.randn(samples, steps, n_in, generator=torch_generator(data), dtype=torch.float64)
    kernel = kernel_of(model.recurrent, x)
    found: dict[str, Any] = {"trace": kernel.trace(accuracy=accuracy, seed=probes)}
    found["effective_rank"] = kernel.effective_rank(accuracy=accuracy, seed=probes)
    found["temporal_rank"] = kernel.temporal(accuracy=accuracy, seed=probes).rank
    found["spatial_rank"] = kernel.spatial(accuracy=accuracy, seed=probes).rank
    errors = {f"{name}_error": estimate.standard_error for name, estimate in found.items()}
    return {name: estimate.value for name, estimate in found.items()} | errors


def predict(
    activation: Nonlinearity,
    depth: Depth = 3,
    width: Width = 100,
    C_b: BiasVariance = None,
    C_W: WeightVariance = None,
    regime: Annotated[str, "infinite, or finite for the first order in 1/width"] = "infinite",
    learner: Annotated[str, "gradient_descent or bayes"] = "gradient_descent",
    samples: Annotated[int, "white training inputs"] = 20,
    n_in: Annotated[int, "entries of an input"] = 4,
    target: Annotated[str, "linear or quadratic in one direction of the inputs"] = "linear",
    tests: Annotated[int, "white test inputs"] = 50,
    seed: Annotated[int, "of the inputs"] = 0,
) -> dict[str, Any]:
    """Test error of networks trained to the end on a teacher: of their mean, and their spread about it."""
    from foretrain.theory.criticality.critical_initialisation import critical_unless_given
    from foretrain.theory.prediction.predict import predict as run

    teachers = {"linear": lambda u: u, "quadratic": lambda u: (u**2 - 1) / math.sqrt(2)}
    if target not in teachers:
        raise unknown_name("`target`", target, teachers)
    X = np.random.default_rng(seed).standard_normal((samples + tests, n_in))
    Y = teachers[target](X[:, :1])
    network = critical_unless_given(activation, depth, width, C_b, C_W)
    options: dict[str, Any] = {"regime": regime, "learner": learner, "spread": "variance"}
    found = run(network, X[:samples], Y[:samples], X[samples:], **options)
    squares = float(np.mean((np.asarray(found.mean) - Y[samples:]) ** 2))
    spread = float(np.mean(np.asarray(found.variance)))
    return {"test_error": squares + spread, "error_of_mean": squares, "variance": spread}


def _inputs(count: int, size: float) -> np.ndarray[Any, Any]:
    """Always the same generic directions, each of the same length."""
    if count < 1 or not size > 0:
        raise InputError(f"`inputs` is {count} and size {size:g}: both must be positive.")
    drawn = np.random.default_rng(1).standard_normal((count, _ENTRIES))
    return np.asarray(drawn * np.sqrt(size / np.mean(drawn**2, axis=1, keepdims=True)))


def _special(value: float, level: float) -> xarray.DataArray:
    """A number with the level at which something happens, which pictures mark."""
    import xarray

    return xarray.DataArray(value, attrs={"special": level})


_TABLE = (
    Observable("flow", "Tensors of the flow at a layer", flow),
    Observable("susceptibility", "chi_parallel and chi_perp at a kernel", susceptibility),
    Observable("criticality", "The critical point of an activation", criticality),
    Observable("phase", "Kernel, correlation and susceptibilities at infinite depth", phase),
    Observable("escape_time", "How long gradient flow stays near the saddle", escape_time),
    Observable("predict", "Test error of trained networks", predict),
    Observable("compare", "Theory beside real random networks: z-scores", compare),
    Observable("global_ntk", "Trace and ranks of a recurrent layer's global-state NTK", global_ntk),
)
_BY_NAME = {entry.name: entry for entry in _TABLE}


def names() -> tuple[str, ...]:
    """Names of all observables."""
    return tuple(_BY_NAME)


def get(name: str) -> Observable:
    """The observable with this name."""
    if name not in _BY_NAME:
        raise unknown_name("observable", name, _BY_NAME)
    return _BY_NAME[name]
