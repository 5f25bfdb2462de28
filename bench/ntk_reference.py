"""The tangent kernel by its definition in float64: some of its rows, each complete.

Row (n, c) is the gradient g of output c of input n, then the derivative of all outputs along g. No route of ours or
of a peer takes that way, and no jacobian is held. Inputs that have a ReLU within rounding of its kink are left out:
the ReLU may be off in float32 and on in float64, and both kernels are right.
"""

from __future__ import annotations

from contextlib import ExitStack
from copy import deepcopy
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.harness.jobs import Arrays

ROWS = 3
KINK = 1e-6  # of the standard deviation of a layer's preactivations


class Reference:
    """Rows of the kernel of the first, a middle and the last input; computed when first asked for."""

    def __init__(self, model: nn.Module, inputs: Tensor, outputs: str) -> None:
        self._model = deepcopy(model).double()
        self._inputs = inputs.double() if inputs.is_floating_point() else inputs
        self._outputs = outputs

    def error(self, arrays: Arrays) -> float:
        """Largest difference in these rows, and of the kernel to its transpose, over their largest entry."""
        kernel = np.asarray(arrays["ntk"], np.float64)
        transpose = kernel.transpose(1, 0, *reversed(range(2, kernel.ndim)))
        rows = kernel[np.ix_(self._chosen, self._compared)]
        difference = max(np.abs(rows - self._rows).max(), np.abs(kernel - transpose).max())
        return float(difference / np.abs(self._rows).max())

    @cached_property
    def _rows(self) -> npt.NDArray[np.float64]:
        return np.stack([self._row(int(index))[self._compared] for index in self._chosen])

    @cached_property
    def _chosen(self) -> npt.NDArray[np.intp]:
        return self._compared[np.linspace(0, len(self._compared) - 1, ROWS).astype(int)]

    @cached_property
    def _compared(self) -> npt.NDArray[np.intp]:
        """Inputs that are clear of every kink."""
        near = torch.zeros(len(self._inputs), dtype=torch.bool)

        def watch(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            near.logical_or_((given[0].abs() < KINK * given[0].std()).flatten(1).any(1))

        relus = [module for module in self._model.modules() if isinstance(module, nn.ReLU)]
        with ExitStack() as hooks, torch.no_grad():
            for relu in relus:
                hooks.enter_context(relu.register_forward_pre_hook(watch))
            self._model(self._inputs)
        return np.flatnonzero(~near.numpy())

    def _row(self, index: int) -> npt.NDArray[np.float64]:
        """(N, C, C) of one input, or (N,) if only the trace over outputs is asked for."""
        outputs = self._model(self._inputs[index : index + 1])[0]
        block = np.stack([self._along_gradient(output) for output in outputs], axis=1)
        return block if self._outputs == "full" else np.trace(block, axis1=1, axis2=2)

    def _along_gradient(self, output: Tensor) -> npt.NDArray[np.float64]:
        """(N, C): the derivative of all outputs along the gradient of this one."""
        parameters = dict(self._model.named_parameters())
        gradients = torch.autograd.grad(output, list(parameters.values()), retain_graph=True)
        weights = {name: value.detach() for name, value in parameters.items()}

        def all_outputs(given: dict[str, Tensor]) -> Tensor:
            return functional_call(self._model, given, (self._inputs,))

        with sdpa_kernel(SDPBackend.MATH):  # the fused implementation has no forward derivative
            _, derivative = jvp(all_outputs, (weights,), (dict(zip(weights, gradients)),))
        return derivative.detach().numpy()
