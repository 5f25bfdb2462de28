"""Losses in the units of the given targets, where a treatment has shifted or scaled them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.compare.task import Task
from foretrain.support.errors import NotSupportedError

_EXACT = 1e-3  # of the targets' size: how well scale and shift must explain the change, in float32


@dataclass(frozen=True)
class Units:
    """Takes treated values back: values * scale + shift for each output."""

    scale: Tensor | float = 1.0
    shift: Tensor | float = 0.0

    def back(self, values: Tensor) -> Tensor:
        """In the units of the given targets; labels and values that were not treated stay as they are."""
        untouched = isinstance(self.scale, float) and self.scale == 1.0
        return values if untouched else values * self.scale + self.shift


def units_between(treated: Task, given: Task) -> Units:
    """From the two targets of the same samples."""
    if treated.y is given.y or not given.y.is_floating_point() or torch.equal(treated.y, given.y):
        return Units()
    ours, theirs = treated.y.double(), given.y.double()
    mean_ours, mean_theirs = ours.mean(0, keepdim=True), theirs.mean(0, keepdim=True)
    spread = (ours - mean_ours).square().mean(0, keepdim=True)
    shared = ((ours - mean_ours) * (theirs - mean_theirs)).mean(0, keepdim=True)
    scale = torch.where(spread > 0, shared / spread.clamp_min(1e-300), torch.ones_like(spread))
    shift = mean_theirs - scale * mean_ours
    missed = (ours * scale + shift - theirs).abs().max()
    if missed > _EXACT * theirs.abs().max():
        raise NotSupportedError(
            "the targets were changed by more than scale and shift, so losses before and after cannot be compared: "
            "leave out that treatment."
        )
    return Units(scale.to(given.y), shift.to(given.y))
