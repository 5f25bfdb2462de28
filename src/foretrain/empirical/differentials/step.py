"""One step of gradient descent on outputs and tangent kernel, predicted by the differentials and really made.

With ε = dL/dz of the training samples and rates λ,

    dz_a  = −η H_ab ε_b + η²/2 dH_abc ε_b ε_c − η³/6 ddI_abcd ε_b ε_c ε_d                       (11.9), (∞.4)
    dH_ab = −η (dH_abc + dH_bac) ε_c + η²/2 (ddI_abcd + ddI_bacd + 2 ddII_abcd) ε_c ε_d         (11.10), (∞.6)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from foretrain.empirical.differentials.derivatives import Directions
from foretrain.empirical.differentials.kernel_differentials import Options, Preparation, prepared
from foretrain.empirical.kernel_operator.passes import Linearised
from foretrain.empirical.models.model import unchanged
from foretrain.support.answers import Answer, Axis, Figure, Result, Table, labelled, log
from foretrain.support.errors import InputError


@dataclass(frozen=True, repr=False, eq=False)
class StepPrediction(Result):
    """Outputs (N, C) and kernels (N, N, C, C) before and after one step; predictions by their order in η."""

    lr: float
    outputs_before: Tensor
    outputs_after: Tensor
    predicted_outputs: dict[int, Tensor]
    ntk_before: Tensor
    ntk_after: Tensor
    predicted_ntk: dict[int, Tensor]

    @property
    def output_errors(self) -> dict[int, float]:
        """Largest difference from the step really made, by order; it falls like η^(order + 1)."""
        return {
            order: float((self.outputs_after - value).abs().max())
            for order, value in self.predicted_outputs.items()
        }

    @property
    def ntk_errors(self) -> dict[int, float]:
        """The same for the kernel."""
        return {
            order: float((self.ntk_after - value).abs().max()) for order, value in self.predicted_ntk.items()
        }

    def answer(self) -> Answer:
        """How far the step moves outputs and kernel, and by how much each order misses it."""
        moved = float((self.outputs_after - self.outputs_before).abs().max())
        turned = float((self.ntk_after - self.ntk_before).abs().max())
        changes = f"outputs by up to {moved:.3g} and the kernel by up to {turned:.3g}"
        statement = f"One step with lr = {self.lr:g} changes {changes}."
        orders = [f"order {order}" for order in self.output_errors]
        ntk = [self.ntk_errors.get(order) for order in self.output_errors]
        errors = {
            "prediction": orders,
            "largest error of outputs": self.output_errors.values(),
            "of the kernel": ntk,
        }
        variables: dict[str, Any] = {
            f"outputs_{when}": ("sample output", getattr(self, f"outputs_{when}"))
            for when in ("before", "after")
        }
        pairs = "sample sample_2 output output_2"
        variables |= {f"ntk_{when}": (pairs, getattr(self, f"ntk_{when}")) for when in ("before", "after")}
        variables |= {
            f"outputs_order_{n}": ("sample output", one) for n, one in self.predicted_outputs.items()
        }
        variables |= {f"ntk_order_{n}": (pairs, one) for n, one in self.predicted_ntk.items()}
        data = labelled(variables, {"lr": self.lr})
        return Answer(statement, [Table.of(errors), self._figure], data)

    def _figure(self) -> Figure:
        figure = Figure("Largest error of the predicted step", size=(5.6, 4.0))
        panel = figure.panel("", Axis("order in the learning rate", whole=True), log("largest error"))
        for name, errors in (("outputs", self.output_errors), ("kernel", self.ntk_errors)):
            panel.curve(list(errors), list(errors.values()), "o-", name)
        return figure


def step_prediction(
    model: Any,
    x: Any,
    y: Any = None,
    lr: float = 0.1,
    *,
    cotangents: Any = None,
    order: int = 2,
    **options: Unpack[Options],
) -> StepPrediction:
    """Predict what one step of gradient descent does to outputs and kernel, and make it on a copy of the parameters.

    Parameters
    ----------
    y
        Targets (N, C) of the loss ½ Σ (z − y)², a sum over samples and outputs.
    cotangents
        Instead of ``y``: dL/dz (N, C) of any other loss; zeros for samples that are only watched.
    lr
        Learning rate η, on top of ``rates``.
    order
        2 predicts outputs to η² and the kernel to η by the dNTK; 3 adds one order to both by the ddNTKs.

    Other arguments are those of ``dntk``.

    Examples
    --------
    >>> import torch
    >>> from foretrain.empirical.differentials import step_prediction
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    >>> found = step_prediction(net, torch.ones(1, 3).double(), torch.zeros(1, 1), lr=0.01)
    >>> found.output_errors[2] < found.output_errors[1]
    True
    """
    if order not in (2, 3):
        raise InputError(f"order is {order!r}: give 2, by the dNTK, or 3, by the ddNTKs too.")
    if not (isinstance(lr, int | float) and math.isfinite(lr)):
        raise InputError(f"`lr` is {lr!r}: give a finite learning rate.")
    with unchanged(model):
        job = prepared(model, x, **options)
        before = job.directions.linear.rows(job.directions.batch).detach()
        error = _error(before, y, cotangents)
        kernel = _kernel(job.directions)
        changes, kernel_changes = _series(job, kernel, error.flatten(), float(lr), order)
        # The step itself, on a copy of the parameters.
        directions, linear = job.directions, job.directions.linear
        moved = {
            name: (value - lr * torch.tensordot(error.flatten(), directions.steps[name], 1)).requires_grad_()
            for name, value in directions.at.items()
        }
        changed = Linearised(linear.changed(moved), moved, linear.outputs)
        after = changed.rows(directions.batch).detach()
        kernel_after = _kernel(replace(directions, linear=changed))
    legs = before.shape
    return StepPrediction(
        lr=float(lr),
        outputs_before=before,
        outputs_after=after,
        predicted_outputs={k: before + value.view(legs) for k, value in changes.items()},
        ntk_before=_by_sample(kernel, legs),
        ntk_after=_by_sample(kernel_after, legs),
        predicted_ntk={k: _by_sample(kernel + value, legs) for k, value in kernel_changes.items()},
    )


def _error(before: Tensor, y: Any, cotangents: Any) -> Tensor:
    if (y is None) == (cotangents is None):
        raise InputError("give either targets y or cotangents=dL/dz, of the shape of the outputs.")
    given = torch.as_tensor(cotangents if y is None else y).detach().to(before)
    if given.numel() != before.numel():
        name = "cotangents" if y is None else "y"
        raise InputError(
            f"`{name}` has shape {tuple(given.shape)}, but the outputs that count are {tuple(before.shape)}."
        )
    given = given.reshape(before.shape)
    return given if y is None else before - given


def _kernel(directions: Directions) -> Tensor:
    """H of legs."""
    legs = directions.legs
    parts = [
        directions.gradients[name].reshape(legs, -1) @ directions.steps[name].reshape(legs, -1).mT
        for name in directions.at
    ]
    return torch.stack(parts).sum(dim=0)


def _series(
    job: Preparation, kernel: Tensor, error: Tensor, lr: float, order: int
) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
    """Changes of outputs and kernel up to each order in η."""
    first = job.dntk().joint()
    outputs = {1: -lr * kernel @ error}
    outputs[2] = outputs[1] + lr**2 / 2 * (first @ error @ error)
    turned = first @ error
    kernels = {1: -lr * (turned + turned.mT)}
    if order == 3:
        second = job.ddntk()
        dd_I, dd_II = (part.joint() @ error @ error for part in (second.dd_I, second.dd_II))
        outputs[3] = outputs[2] - lr**3 / 6 * (dd_I @ error)
        kernels[2] = kernels[1] + lr**2 / 2 * (dd_I + dd_I.mT + 2 * dd_II)
    return outputs, kernels


def _by_sample(kernel: Tensor, shape: torch.Size) -> Tensor:
    """(N, N, C, C), as ``ntk`` has it."""
    return kernel.view(*shape, *shape).permute(0, 2, 1, 3)
