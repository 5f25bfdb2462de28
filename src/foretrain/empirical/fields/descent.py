"""Plain gradient descent (12) on a copy of a model: what the predictions are held against."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from foretrain.empirical.fields.readout import Readout
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError


class Descent:
    """A copy of a model that learns by ``torch.optim.SGD`` in its own dtype; the original is not touched.

    The loss is loss_scale times the sum of squared residuals of all inputs.
    """

    def __init__(
        self, model: nn.Module, x: Tensor, y: Tensor, readout: Readout, lr: float, loss_scale: float
    ) -> None:
        self.model = copy.deepcopy(model)
        self._x, self._y, self._readout, self._loss_scale = x, y, readout, loss_scale
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not trained:
            raise InputError("no parameter of the model is trained: set requires_grad_(True) on some.")
        self._optimizer = torch.optim.SGD(trained, lr=lr)

    def outputs(self, x: Tensor) -> Tensor:
        """Y (inputs, C) of the copy as it is now."""
        with torch.no_grad():
            return self._outputs(x)

    def step(self) -> float:
        """One step; the loss before it."""
        self._optimizer.zero_grad()
        with torch.enable_grad():
            loss = self._loss_scale * ((self._outputs(self._x) - self._y) ** 2).sum()
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return float(loss.detach())

    def _outputs(self, x: Tensor) -> Tensor:
        # A copy of the inputs, because a model may work in place.
        return self._readout(self.model(x.clone()).reshape(len(x), -1))


def recorded_steps(steps: int, every: int) -> list[int]:
    """0, every, 2 every, ... and the last step."""
    last, stride = whole_number("steps", steps), whole_number("every", every)
    return sorted({*range(0, last + 1, stride), last})
