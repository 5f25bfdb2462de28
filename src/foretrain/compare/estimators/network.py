"""The network that an estimator stands for, as parameters that can be searched over, and its kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.support.arguments import Array, whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP
from foretrain.theory.layers import Signal
from foretrain.theory.layers import kernels as signal_kernels
from foretrain.theory.prediction.kernels import Inputs, check_slopes, pair_kernels
from foretrain.theory.recursions.kinks import inputs_on_kinks, warn_of_kinks

_TOLERANCE = 1e-10  # of expectations without a closed form
_OF_THE_MLP = ("activation", "depth", "C_W", "C_b", "fixed_layers")
_OF_A_MODULE = ("init", "rates")


def in_parts(X: Array, rows: int) -> Iterator[Array]:
    """So many rows of X at a time."""
    return (X[start : start + rows] for start in range(0, len(X), rows))


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkKernels:
    """A network of infinite width: an MLP by its constants, or any ``network`` that is given."""

    activation: Any = "relu"
    depth: int = 3
    C_W: Any = 2.0
    C_b: Any = 0.1
    fixed_layers: int = 0
    kernel: str = "ntk"
    network: Any = None
    init: Any = "module"
    rates: Any = "ntk"
    input_shape: tuple[int, ...] | None = None

    def _kernels(self, X: Array, X2: Array | None = None) -> tuple[Array, Array]:
        """The NNGP, and the kernel that predicts (the NNGP again, or the NTK), between the rows of X and X2 or X."""
        network = self._network()
        columns = X if X2 is None else X2
        require_memory(
            16.0 * len(X) * len(columns),
            f"two kernels of {len(X):,} x {len(columns):,} inputs",
            "use fewer training inputs, or predict fewer test inputs at a time",
        )
        if isinstance(network, MLP):
            every = network.check_inputs(X if X2 is None else np.concatenate([X, X2]))
            if self.kernel == "ntk":
                check_slopes(network)
                warn_of_kinks(network, inputs_on_kinks(network, every))
            orders = (0,) if self.kernel == "nngp" else (0, 1)
            inputs = Inputs.of(network, every, orders)
            rows, others = (inputs, inputs) if X2 is None else (inputs[: len(X)], inputs[len(X) :])
            pair = pair_kernels(network, rows, others, orders, _TOLERANCE)
        elif isinstance(network, Signal):
            pair = list(signal_kernels(network, self._shaped(X), None if X2 is None else self._shaped(X2)))
        else:
            from foretrain.compare.infinite_width import infinite_width

            second = None if X2 is None else self._shaped(X2)
            read = infinite_width(network, self._shaped(X), second, init=self.init, rates=self.rates)
            pair = [read.nngp.values, read.ntk.values]
        if pair[0].ndim > 2:
            raise InputError("the output of `network` keeps positions: give one that picks or averages them.")
        return pair[0], pair[0 if self.kernel == "nngp" else 1]

    def _network(self) -> Any:
        """The network itself; an error where parameters are given that it would not look at."""
        if self.kernel not in ("ntk", "nngp"):
            raise unknown_name("`kernel`", str(self.kernel), ("ntk", "nngp"))
        known = self.network is None or isinstance(self.network, MLP | Signal)
        unused = (() if self.network is None else _OF_THE_MLP) + (_OF_A_MODULE if known else ())
        for name in unused:
            if not np.array_equal(getattr(self, name), getattr(NetworkKernels, name)):
                whose = "a torch module" if name in _OF_A_MODULE else "an MLP that is not given as `network`"
                raise InputError(f"`{name}` is a constant of {whose}, and has no effect here: leave it out.")
        if self.network is not None:
            return self.network
        mlp = MLP(self.activation, self.depth, width=1, C_b=self.C_b, C_W=self.C_W)
        still = whole_number("fixed_layers", self.fixed_layers, least=0)
        if still >= mlp.depth:
            raise InputError(
                f"`fixed_layers` is {still}, but the network has {mlp.depth} layers: let at least one of them train."
            )
        rates = [(0.0,) * still + constants[still:] for constants in (mlp.C_b, mlp.C_W)]
        return mlp.replace(lambda_b=rates[0], lambda_W=rates[1])

    def _shaped(self, X: Array) -> Array:
        """Rows in the shape that the network takes."""
        if self.input_shape is None:
            return X
        if np.prod(self.input_shape) != X.shape[1]:
            raise InputError(
                f"`input_shape` is {self.input_shape}, but rows have {X.shape[1]} numbers: give a shape of as many."
            )
        return X.reshape(len(X), *self.input_shape)
