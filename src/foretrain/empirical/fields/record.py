"""Fields while a network learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor, nn

from foretrain.empirical.fields.descent import Descent, recorded_steps
from foretrain.empirical.fields.entry import Fields
from foretrain.empirical.fields.observation import observe
from foretrain.empirical.fields.readout import ReadoutLike
from foretrain.empirical.fields.recognition import find_chain
from foretrain.empirical.fields.state import (
    FieldState,
    check_loss_scale,
    check_rate,
    check_targets,
    find_state,
)
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr


def record_fields(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    steps: int,
    lr: float,
    *,
    every: int = 1,
    readout: ReadoutLike = None,
    loss_scale: float | None = None,
    modes: int = 8,
    inputs: Sequence[int] | None = None,
    watch: Callable[[Fields], Mapping[str, xr.DataArray]] | None = None,
) -> xr.Dataset:
    """Train a copy by plain gradient descent and observe its fields at steps 0, every, ... and at the end.

    ``modes`` eigenvalues of each kind are kept; metrics are followed for ``inputs`` (the first four if None). What is
    observed is said in :func:`observe`; ``fields(model, x).observe(y)`` gives the same in your own training loop.
    ``watch`` adds any other field under a name, such as ``lambda found: {"Q1": found.overlap(1)}``.
    """
    import xarray as xr

    first = find_state(model, x, readout)
    targets = check_targets(y, first.outputs)
    scale, rate = check_loss_scale(loss_scale, len(targets)), check_rate(lr)
    descent = Descent(model, first.chain.x, targets, first.readout, rate, scale)
    times = recorded_steps(steps, every)
    wanted, found = set(times), []
    for step in track(range(steps + 1), "training steps"):
        if step in wanted:
            state = FieldState(find_chain(descent.model, first.chain.x), first.readout)
            observed = observe(state, targets, scale, modes=modes, inputs=inputs)
            found.append(observed if watch is None else observed.assign(watch(Fields(state))))
        if step < steps:
            descent.step()
    record = xr.concat(found, dim="step", coords="minimal", compat="override")
    return record.assign_coords(step=times).assign_attrs(lr=rate)
