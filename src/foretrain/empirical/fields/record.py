"""Fields while a network learns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.chain import find_chain
from foretrain.empirical.fields.collective import Fields
from foretrain.empirical.fields.one_hidden_layer import Descent, recorded_steps
from foretrain.empirical.fields.spectra import observe
from foretrain.empirical.fields.state import (
    FieldState,
    ReadoutLike,
    check_loss_scale,
    check_rate,
    check_targets,
    find_state,
)
from foretrain.support.answers import INK, PALETTE, Answer, Axis, Figure, Panel, Result, Table, scale_for
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import NDArray

_SHOWN = 12  # steps of a table


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
    ``FieldRecord(record)`` shows and draws it.
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


@dataclass(frozen=True, repr=False, eq=False)
class FieldRecord(Result):
    """What ``record_fields`` saw, to be shown: loss, layers' shares of the kernel, their drive, and alignment."""

    data: xr.Dataset

    def answer(self) -> Answer:
        """The course of the loss and of the layers' shares of tr K."""
        steps, loss = self.data["step"].values, self.data["loss"].values
        columns = {"step": steps, "loss": loss}
        columns |= {f"share of layer {layer}": share for layer, share in self._shares().items()}
        statement = (
            f"Fields of {self.data.sizes['layer']} layers over {steps[-1]} steps, loss {loss[0]:.4g} to "
        )
        statement += f"{loss[-1]:.4g}."
        return Answer(statement, [Table.of(columns).thinned(_SHOWN), self._figure], self.data)

    def _shares(self) -> dict[int, NDArray[np.float64]]:
        traces = self.data["kernel_trace"].transpose("layer", "step").values
        return dict(zip(self.data["layer"].values.tolist(), traces / traces.sum(axis=0)))

    def _figure(self) -> Figure:
        record, steps = self.data, self.data["step"].values
        figure = Figure("Fields during training", columns=2)

        def panel(title: str, y: Axis) -> Panel:
            return figure.panel(title, Axis("training step", low=float(steps[0]), high=float(steps[-1])), y)

        panel("Loss", Axis("", scale_for(record["loss"], 20.0))).curve(steps, record["loss"], color=INK)
        stacked, low = (
            panel(r"Share of each layer in $\mathrm{tr} K$", Axis("", low=0.0, high=1.0)),
            np.zeros(len(steps)),
        )
        stacked.legend, stacked.legend_columns = "below", 4
        for color, (layer, share) in zip(cycle(PALETTE), self._shares().items()):
            stacked.region(steps, low, low + share, f"layer {layer}", color, alpha=0.85)
            low = low + share
        drives = panel("Drive on the residual, $r^T K r / r^T r$", Axis("", low=0.0))
        for color, layer in zip(cycle(PALETTE), record["layer"].values):
            drives.curve(steps, record["kernel_drive"].sel(layer=layer), "-", f"layer {layer}", color)
        aligned = panel(
            r"Alignment of $G$ with the gradient, $g^T G g / |g|^2 \lambda_{max}$", Axis("", low=0.0)
        )
        for color, layer in zip(cycle(PALETTE), record["metric_layer"].values):
            values = record["metric_alignment"].sel(metric_layer=layer).transpose("step", "followed")
            for one in values.values.T:
                aligned.curve(steps, one, color=color, width=0.6, alpha=0.5)
            # The mean is over inputs that have a gradient.
            aligned.curve(steps, values.mean("followed"), "-", f"$G$ of layer {layer}", color, width=2.0)
        return figure
