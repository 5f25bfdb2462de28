"""The multilayer perceptron, plain or residual, and the hyperparameters of its initialisation and training.

Conventions: layers 1..L, widths n_0..n_L, the output is z^(L) with no activation after it (2.5), (2.6);
biases have variance C_b, weights C_W / n_{l-1} (2.19)-(2.22); learning rates of biases and weights are
lambda_b and lambda_W / n_{l-1}; a residual layer adds gamma times the previous preactivation (B.3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.answers import Answer, Result, Table
from foretrain.support.arguments import real_array, whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.theory.arguments import PerLayer, is_list, per_layer

FloatArray = NDArray[np.float64]
_BYTES_PER_LAYER = 400


class Layer(NamedTuple):
    """Width and hyperparameters of one layer, as :attr:`MLP.layers` lists them."""

    number: int
    width: int
    C_b: float
    C_W: float
    lambda_b: float
    lambda_W: float
    gamma: float


@dataclass(frozen=True, init=False, repr=False)
class MLP(Result):
    """A multilayer perceptron with ``depth`` layers of weights, hence ``depth - 1`` hidden layers.

    ``width`` is one number for all hidden layers or the list n_1..n_{L-1}; ``C_b``, ``C_W``, ``lambda_b`` and
    ``lambda_W`` are one number or a list with one entry per layer. ``n_in`` may be left to the data. C_b = 0
    means that biases start at zero. ``gamma`` couples a hidden layer to the hidden layer before it; the first
    and the output layer have no skip connection, so a list must be zero there.
    """

    activation: Activation
    depth: int
    hidden_widths: tuple[int, ...]
    n_in: int | None
    n_out: int
    C_b: tuple[float, ...]
    C_W: tuple[float, ...]
    lambda_b: tuple[float, ...]
    lambda_W: tuple[float, ...]
    gamma: tuple[float, ...]

    def __init__(
        self,
        activation: str | Activation | Callable[[FloatArray], FloatArray],
        depth: int,
        width: int | Sequence[int] | None = None,
        n_in: int | None = None,
        n_out: int = 1,
        C_b: PerLayer = 0.0,
        C_W: PerLayer = 1.0,
        lambda_b: PerLayer = 1.0,
        lambda_W: PerLayer = 1.0,
        gamma: PerLayer | None = None,
    ) -> None:
        layers = whole_number("depth", depth)
        require_memory(_BYTES_PER_LAYER * layers, f"a network of {layers:,} layers", "use fewer layers")
        hidden = _hidden_widths(width, layers)
        fields: dict[str, object] = {
            "activation": find_activation(activation),
            "depth": layers,
            "hidden_widths": hidden,
            "n_in": None if n_in is None else whole_number("n_in", n_in),
            "n_out": whole_number("n_out", n_out),
            "C_b": _not_negative("C_b", per_layer("C_b", C_b, layers)),
            "C_W": _not_negative("C_W", per_layer("C_W", C_W, layers)),
            "lambda_b": _not_negative("lambda_b", per_layer("lambda_b", lambda_b, layers)),
            "lambda_W": _not_negative("lambda_W", per_layer("lambda_W", lambda_W, layers)),
            "gamma": _skip_couplings(gamma, layers, hidden),
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def critical(
        cls,
        activation: str | Activation | Callable[[FloatArray], FloatArray],
        depth: int,
        width: int | Sequence[int] | None = None,
        n_in: int | None = None,
        n_out: int = 1,
        gamma: PerLayer | None = None,
        X: ArrayLike | None = None,
        tuned: bool = False,
        lambda_b: float = 1.0,
        lambda_W: float = 1.0,
    ) -> MLP:
        """A network at criticality, with learning rates by which all layers learn at the same order.

        C_b and C_W are those of :func:`foretrain.criticality`; layers with a skip connection have 1 - gamma^2 times
        them, the first and the output layer the plain values. ``lambda_b`` and ``lambda_W`` are the overall rates,
        spread over layers by the equivalence principle so that the tangent kernel is of order one (9.94)-(9.96).
        ``tuned`` adds the correction of order 1/width to C_W (5.142). With inputs ``X`` a warning says which of them
        start on the side of the fixed point that repels, and at a half-stable point the rates are balanced for those
        that flow to it.

        Examples
        --------
        >>> MLP.critical("tanh", depth=3, width=100)
        MLP tanh, depth 3, n_in left to the data, depth/width 0.03
        <BLANKLINE>
        layer  fan-in  width  C_b  C_W  lambda_b  lambda_W
        -----  ------  -----  ---  ---  --------  --------
            1  data      100    0    1         1         1
            2  100       100    0    1       0.5         1
            3  100         1    0    1  0.333333         1
        """
        from foretrain.theory.criticality.critical_initialisation import critical_network

        plain = cls(activation, depth, width, n_in=n_in, n_out=n_out, gamma=gamma)
        return critical_network(plain, X, tuned, lambda_b, lambda_W)

    @property
    def widths(self) -> tuple[int, ...]:
        """Widths n_0..n_L; needs ``n_in``."""
        if self.n_in is None:
            raise InputError(
                "n_in is not set: give MLP(..., `n_in=`...) or take it from data with with_inputs(X)."
            )
        return (self.n_in, *self.hidden_widths, self.n_out)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers 1..L with their widths and hyperparameters."""
        columns = (
            range(1, self.depth + 1),
            (*self.hidden_widths, self.n_out),
            self.C_b,
            self.C_W,
            self.lambda_b,
            self.lambda_W,
            self.gamma,
        )
        return tuple(Layer(*row) for row in zip(*columns, strict=True))

    @property
    def parameter_count(self) -> int:
        """Number of biases and weights (2.7); biases count also where C_b = 0, since they can be trained."""
        return sum(n + n * fan_in for fan_in, n in pairwise(self.widths))

    @property
    def depth_to_width(self) -> float:
        """L over the harmonic mean of the hidden widths: r = L / n if they are equal, 0 if there are none."""
        if not self.hidden_widths:
            return 0.0
        return self.depth * float(np.mean([1.0 / n for n in self.hidden_widths]))

    @property
    def is_residual(self) -> bool:
        """Whether any layer has a skip connection."""
        return any(self.gamma)

    def replace(self, **changes: Any) -> MLP:
        """The same network with some arguments changed, named as in the constructor.

        What is equal in every layer carries over to a new depth; what differs must then be given again.
        """
        skips = _collapse(self.gamma[1:-1]) if self.is_residual else None
        arguments: dict[str, Any] = {
            "activation": self.activation,
            "depth": self.depth,
            "width": _collapse(self.hidden_widths),
            "n_in": self.n_in,
            "n_out": self.n_out,
            "C_b": _collapse(self.C_b),
            "C_W": _collapse(self.C_W),
            "lambda_b": _collapse(self.lambda_b),
            "lambda_W": _collapse(self.lambda_W),
            "gamma": self.gamma if isinstance(skips, tuple) else skips,
        }
        for name in changes:
            if name not in arguments:
                raise unknown_name("argument of MLP", name, arguments)
        return MLP(**{**arguments, **changes})

    def with_inputs(self, X: ArrayLike) -> MLP:
        """The same network with ``n_in`` taken from the data, or checked against it."""
        inputs = self.check_inputs(X)
        return self if self.n_in is not None else self.replace(n_in=inputs.shape[1])

    def check_inputs(self, X: ArrayLike, name: str = "X") -> FloatArray:
        """``X`` as a float64 array of shape (inputs, n_in), or an error that says what is wrong with ``name``."""
        inputs = real_array(name, X)
        if inputs.ndim != 2:
            raise InputError(
                f"`{name}` has shape {inputs.shape}: give shape (inputs, n_in), for one input x the row x[None, :]."
            )
        if 0 in inputs.shape:
            raise InputError(
                f"`{name}` has shape {inputs.shape}: give at least one input with at least one component."
            )
        if self.n_in is not None and inputs.shape[1] != self.n_in:
            raise InputError(
                f"`{name}` has {inputs.shape[1]} components per input but n_in is {self.n_in}: change one of them."
            )
        return inputs

    def check_layer(self, layer: int | None = None) -> int:
        """The number of a layer, the output by default, or an error if there is none such."""
        if layer is None:
            return self.depth
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not 1 <= layer <= self.depth:
            raise InputError(f"layer is {layer!r}: choose from 1 to {self.depth}.")
        return int(layer)

    def first_kernel(self, X: ArrayLike) -> FloatArray:
        """Covariance of the first layer's preactivations over inputs, C_b + C_W x·x' / n_0 (4.8)."""
        inputs = self.check_inputs(X)
        kernel: FloatArray = self.C_b[0] + self.C_W[0] * (inputs @ inputs.T) / inputs.shape[1]
        return kernel

    @property
    def headline(self) -> str:
        """Activation, sizes and variances of the hidden layers on one line."""
        widths = sorted(set(self.hidden_widths))
        size = "no hidden layer" if not widths else f"width {widths[0]}"
        if len(widths) > 1:
            size = f"widths {widths[0]} to {widths[-1]}"
        inner = self.layers[min(1, self.depth - 1)]
        skip = f", gamma = {max(self.gamma, key=abs):g}" if self.is_residual else ""
        variances = f"C_b = {inner.C_b:.6g}, C_W = {inner.C_W:.6g}"
        return f"{self.activation.label}, depth {self.depth}, {size}, {variances}{skip}"

    def answer(self) -> Answer:
        """Its layers, runs of equal ones in one row."""
        size = "n_in left to the data" if self.n_in is None else f"{self.parameter_count} parameters"
        kind = "residual MLP" if self.is_residual else "MLP"
        shape = f"depth {self.depth}, {size}, depth/width {self.depth_to_width:.4g}"
        names = Layer._fields[2:] if self.is_residual else Layer._fields[2:-1]
        runs: list[list[Any]] = []
        for layer, fan_in in zip(self.layers, (self.n_in or "data", *self.hidden_widths), strict=True):
            cells = [fan_in, layer.width, *layer[2 : 2 + len(names)]]
            if runs and runs[-1][2:] == cells:
                runs[-1][1] = layer.number
            else:
                runs.append([layer.number, layer.number, *cells])
        rows = [[first if first == last else f"{first}-{last}", *cells] for first, last, *cells in runs]
        record = {
            "activation": self.activation.label,
            "n_in": self.n_in,
            "layers": [layer._asdict() for layer in self.layers],
        }
        return Answer(
            f"{kind} {self.activation.label}, {shape}",
            [Table(("layer", "fan-in", "width", *names), rows)],
            record=record,
        )


def check_network(mlp: object) -> None:
    """An error if the network is no MLP."""
    if not isinstance(mlp, MLP):
        raise InputError(f"`mlp` is {mlp!r}: give an MLP, such as ft.MLP('tanh', `depth=5`, `width=100`).")


def _hidden_widths(width: int | Sequence[int] | None, depth: int) -> tuple[int, ...]:
    hidden = depth - 1
    if width is None:
        if hidden:
            raise InputError(f"width is missing: depth {depth} has {hidden} hidden layers that need one.")
        return ()
    if not is_list(width):
        return (whole_number("width", width),) * hidden
    widths = tuple(whole_number("width", value) for value in width)
    if len(widths) != hidden:
        raise InputError(
            f"`width` lists {len(widths)} layers but depth {depth} has {hidden} hidden layers: give one each."
        )
    return widths


def _not_negative(name: str, values: tuple[float, ...]) -> tuple[float, ...]:
    for value in values:
        if value < 0:
            raise InputError(f"`{name}` contains {value:g}: give zero or a positive number.")
    return values


def _skip_couplings(gamma: PerLayer | None, depth: int, hidden: tuple[int, ...]) -> tuple[float, ...]:
    """Couplings of layers 1..L; a single number is spread over layers 2..L-1 (B.3)."""
    if gamma is None:
        return (0.0,) * depth
    couplings = per_layer("gamma", gamma, depth)
    if not is_list(gamma):
        if couplings[0] and depth < 3:
            raise InputError(
                f"`gamma` is {couplings[0]:g} but depth {depth} has no hidden layer after the first: "
                "use depth 3 or more, or leave `gamma` out."
            )
        couplings = tuple(value if 0 < index < depth - 1 else 0.0 for index, value in enumerate(couplings))
    if couplings[0] or couplings[-1]:
        raise InputError(
            "`gamma` must be zero in the first and in the output layer, which have no skip connection."
        )
    for index, value in enumerate(couplings):
        if value and hidden[index - 1] != hidden[index]:
            raise InputError(
                f"`gamma` is {value:g} at layer {index + 1} but its width {hidden[index]} differs from the "
                f"{hidden[index - 1]} before it: a skip connection needs equal widths."
            )
    return couplings


def _collapse(values: tuple[Any, ...]) -> Any:
    """The common value if all are equal, None if there are none, else the tuple itself."""
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else values
