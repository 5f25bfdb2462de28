"""A network with one hidden layer that trains without weights: its fields carry all that gradient descent changes.

The overlap Q^0 of the inputs never changes, and one step moves the preactivations by exactly

    v(t+1) = v(t) - (2 lr / M) sum over trained inputs of Q^0 (a * b_1) r     (47)

for any activation, so evolving v reproduces weight-space training for all time, up to round-off. Evolving u (50),
with masks read from u > 0 (32), is exact only until a dead unit should revive: u = 0 hides how negative v is.
A trained last layer closes as well: its rows are the conjugate fields b_1, which move by -(2 lr / M) sum r u_1.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from foretrain.empirical.fields.state import (
    FieldState,
    Readout,
    ReadoutLike,
    check_loss_scale,
    check_rate,
    check_targets,
    find_state,
    joined,
)
from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr

Field = Literal["preactivation", "activation"]
Activation = Callable[[Tensor], tuple[Tensor, Tensor]]  # v -> sigma(v), sigma'(v)
_FIELDS = ("preactivation", "activation")


@dataclass(eq=False, repr=False)
class WeightFreeNetwork(Result):
    """The fields of a network with one hidden layer, ready to be evolved; trained inputs come first.

    ``gram`` (inputs, trained) is what the hidden layer sees of the inputs: Q^0, plus 1 for a trained bias, zero for
    a frozen layer. ``readout`` (C, n) and ``offset`` (C,) include all factors.
    """

    gram: Tensor
    field: Tensor  # v, or u if activations are evolved
    activation: Activation
    readout: Tensor
    offset: Tensor
    targets: Tensor  # of the trained inputs
    evolve: Field = "preactivation"
    trains_readout: bool = False
    trains_offset: bool = False
    steps: int = 0

    @property
    def activations(self) -> Tensor:
        """u_1 of all inputs (inputs, n)."""
        return self._evaluate()[0]

    @property
    def outputs(self) -> Tensor:
        """Y of all inputs (inputs, C)."""
        return self._read(self.activations)

    def step(self, lr: float, loss_scale: float) -> float:
        """One step of gradient descent on loss_scale times the sum of squares (47), (50); the loss before it."""
        u, slope = self._evaluate()
        seen = u[: len(self.targets)]
        residual = self._read(seen) - self.targets
        rate = 2 * lr * loss_scale
        change = -rate * self.gram @ (slope[: len(self.targets)] * (residual @ self.readout))
        if self.evolve == "preactivation":
            self.field = self.field + change
        else:
            self.field = torch.relu(self.field + slope * change)
        if self.trains_readout:
            self.readout = self.readout - rate * residual.T @ seen
        if self.trains_offset:
            self.offset = self.offset - rate * residual.sum(dim=0)
        self.steps += 1
        return float(loss_scale * (residual**2).sum())

    def _evaluate(self) -> tuple[Tensor, Tensor]:
        if self.evolve == "preactivation":
            return self.activation(self.field)
        return self.field, (self.field > 0).to(self.field)

    def _read(self, u: Tensor) -> Tensor:
        return u @ self.readout.T + self.offset

    def answer(self) -> Answer:
        """What is evolved, and the loss before its next step."""
        inputs, trained = self.gram.shape
        by_v = self.evolve == "preactivation"
        exact = "exact for all time" if by_v else "exact until a dead unit should revive"
        loss = float(((self.outputs[:trained] - self.targets) ** 2).sum())
        statement = (
            f"Weight-free network of {self.field.shape[1]} hidden units after {self.steps} steps: {trained} trained "
            f"inputs, {inputs - trained} only watched, {len(self.readout)} outputs, readout "
            f"{'trained' if self.trains_readout else 'fixed'}; sum of squared residuals {loss:.6g}. It evolves the "
            f"{self.evolve}s, {exact}: step(lr, loss_scale), then .outputs, .activations, .field."
        )
        variables = {"outputs": ("input output", self.outputs), "field": ("input unit", self.field)}
        return Answer(
            statement, data=lambda: labelled(variables, {"steps": self.steps, "evolved": self.evolve})
        )


def weight_free(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    unseen: Tensor | None = None,
    readout: ReadoutLike = None,
    evolve: Field = "preactivation",
) -> WeightFreeNetwork:
    """The weight-free twin of a model with one hidden layer.

    The model is one ``nn.Linear`` with an activation and a fixed ``readout``, or two with nothing after the second.
    ``unseen`` inputs are followed without being trained on (62)-(64). ``evolve="activation"`` is for ReLU only.
    """
    if evolve not in _FIELDS:
        raise unknown_name("field to evolve", str(evolve), _FIELDS)
    trained = len(x)
    everything = torch.as_tensor(x) if unseen is None else joined(x, unseen)
    state = find_state(model, everything, readout)
    matrix, offset, trains_matrix, trains_offset = _head(state)
    chain = state.chain
    below = chain.u(0)
    gram = chain.layer(1).driven_by(below @ below[:trained].T)
    if evolve == "activation" and not torch.equal(chain.u(1), torch.relu(chain.v(1))):
        raise NotSupportedError(
            "only ReLU can be evolved by its activations, which tell the mask: use `evolve='preactivation'`."
        )
    return WeightFreeNetwork(
        gram=gram,
        field=chain.v(1) if evolve == "preactivation" else chain.u(1),
        activation=lambda v: chain.derivative(1, v),
        readout=matrix,
        offset=offset,
        targets=check_targets(y, state.outputs[:trained]),
        evolve=evolve,
        trains_readout=trains_matrix,
        trains_offset=trains_offset,
    )


def simulate(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    steps: int,
    lr: float,
    *,
    every: int = 1,
    unseen: Tensor | None = None,
    readout: ReadoutLike = None,
    loss_scale: float | None = None,
    evolve: Field = "preactivation",
    keep_fields: bool = False,
) -> xr.Dataset:
    """Train a one-hidden-layer network without its weights: ``outputs`` and ``loss`` over ``step`` (0..steps).

    ``keep_fields`` adds the evolved field (step, input, unit). The loss is loss_scale times the sum of squares, 1/M
    if None.
    """
    network = weight_free(model, x, y, unseen=unseen, readout=readout, evolve=evolve)
    scale, rate = check_loss_scale(loss_scale, len(x)), check_rate(lr)
    times = recorded_steps(steps, every)
    if keep_fields:
        require_memory(
            len(times) * network.field.numel() * network.field.element_size(),
            f"the field at {len(times)} times",
            "record less often with every=",
        )
    outputs: list[Tensor] = []
    fields: list[Tensor] = []

    def look() -> None:
        outputs.append(network.outputs)
        if keep_fields:
            fields.append(network.field)

    _follow(times, look, lambda: network.step(rate, scale), "steps without weights")
    found = _trajectory(times, outputs, network.targets, scale)
    if keep_fields:
        name = {"preactivation": "v_1", "activation": "u_1"}[evolve]
        found[name] = (
            ("step", "input", "unit"),
            torch.stack(fields).cpu().numpy(),
            {"meaning": f"the {evolve}s"},
        )
    return found.assign_attrs(lr=rate, loss_scale=scale, evolved=evolve)


def weight_training(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    steps: int,
    lr: float,
    *,
    every: int = 1,
    unseen: Tensor | None = None,
    readout: ReadoutLike = None,
    loss_scale: float | None = None,
) -> xr.Dataset:
    """The same trajectory by gradient descent on the weights of a copy, to hold :func:`simulate` against."""
    state = find_state(model, x, readout)
    scale, rate = check_loss_scale(loss_scale, len(x)), check_rate(lr)
    targets = check_targets(y, state.outputs)
    descent = Descent(model, state.chain.x, targets, state.readout, rate, scale)
    everything = state.chain.x if unseen is None else joined(state.chain.x, unseen)
    times = recorded_steps(steps, every)
    outputs: list[Tensor] = []
    _follow(times, lambda: outputs.append(descent.outputs(everything)), descent.step, "steps of weights")
    return _trajectory(times, outputs, targets, scale).assign_attrs(lr=rate, loss_scale=scale)


def _follow(times: list[int], look: Callable[[], None], advance: Callable[[], object], what: str) -> None:
    """Look at the recorded times, and advance between them."""
    wanted = set(times)
    for step in track(range(times[-1] + 1), what):
        if step in wanted:
            look()
        if step < times[-1]:
            advance()


def _head(state: FieldState) -> tuple[Tensor, Tensor, bool, bool]:
    """What reads the hidden layer, a fixed readout or the second linear layer: matrix, offset, and which learn."""
    chain, readout = state.chain, state.readout
    if chain.depth == 1:
        fixed = readout.scale * readout.matrix
        return fixed, fixed.new_zeros(len(fixed)), False, False
    if chain.depth > 2:
        raise NotSupportedError(
            f"the model has {chain.depth} layers: only one hidden layer closes on its own fields; follow deeper ones "
            "with record_fields."
        )
    if not state.has_plain_output:
        raise NotSupportedError(
            "something follows the second nn.Linear: the outputs must be what it gives; take the activation and the "
            "readout off."
        )
    last = chain.layer(2)
    zero = last.weight.new_zeros(len(last.weight))
    return last.weight, zero if last.bias is None else last.bias, last.trains_weight, last.trains_bias


def _trajectory(times: list[int], outputs: list[Tensor], targets: Tensor, loss_scale: float) -> xr.Dataset:
    values, trained = torch.stack(outputs), len(targets)
    losses = loss_scale * ((values[:, :trained] - targets) ** 2).sum(dim=(1, 2))
    return labelled(
        {
            "outputs": ("step input output", values, "outputs before the step"),
            "loss": ("step", losses, "loss on the trained inputs"),
        },
        step=times,
        training=("input", [row < trained for row in range(values.shape[1])]),
    )


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
