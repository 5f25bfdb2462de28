"""A model linearised at its present weights: J t and J^T v, each one backward pass over a graph that is kept.

J t is the gradient of <J^T u, t> by u, exact because J^T u is linear in u; it needs no forward-mode derivatives, so
recurrent layers have it too.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.support.errors import NotSupportedError


class Tangent:
    """Outputs of a model for ``x``, and their linear response to the parameters of these names.

    A context manager: inside, attention is written out, because its fused kernels have no second derivative.
    """

    def __init__(self, model: nn.Module, x: Tensor, names: Collection[str]) -> None:
        self.model, self.x = model, x
        self.weights = {name: p for name, p in model.named_parameters() if name in names}
        self._kernels = differentiable_kernels()

    def __enter__(self) -> Tangent:
        self._kernels.__enter__()
        with torch.enable_grad():
            self.outputs: Tensor = self.model(self.x)
            if not self.outputs.requires_grad:
                raise NotSupportedError(
                    "no trained parameter reaches the outputs: there is nothing to train."
                )
            self._probe = torch.zeros_like(self.outputs, requires_grad=True)
            pulled = torch.autograd.grad(
                self.outputs,
                list(self.weights.values()),
                self._probe,
                create_graph=True,
                allow_unused=True,
            )
        self._used = [place for place, part in enumerate(pulled) if part is not None and part.requires_grad]
        self._pulled = [pulled[place] for place in self._used]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._kernels.__exit__(kind, error, trace)

    def push(self, changes: Sequence[Tensor]) -> Tensor:
        """J t: the change of the outputs when the parameters change by t."""
        chosen = [changes[place] for place in self._used]
        (found,) = torch.autograd.grad(self._pulled, self._probe, chosen, retain_graph=True)
        return found

    def pull(self, vector: Tensor) -> list[Tensor]:
        """J^T v, by parameter."""
        found = torch.autograd.grad(
            self.outputs, list(self.weights.values()), vector, retain_graph=True, allow_unused=True
        )
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.weights.values(), found)]
