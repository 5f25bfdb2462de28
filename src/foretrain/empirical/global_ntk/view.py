"""One member of a model's states, as its global-state NTK sees it: modes in time, ranks, core, and a target."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.empirical.global_ntk.alignment import StateAlignment
from foretrain.empirical.global_ntk.parameter_shares import LossDecrease
from foretrain.operators.estimators import Estimate
from foretrain.support.answers import (
    PALETTE,
    Answer,
    Axis,
    Figure,
    Part,
    Result,
    Table,
    labelled,
    picked,
    with_error,
)
from foretrain.support.answers.tables import cell_text

Array = NDArray[np.float64]
ESTIMATE = "value standard_error products method"  # what machines get of one
_MOST_SAMPLES = 24  # thin lines of one mode


@dataclass(frozen=True, repr=False, eq=False)
class View(Result):
    """One plain member of the states: its reduced kernels (15), its core, and its alignment with a target.

    ``temporal_modes`` are eigenvectors of NTK_temp, shaped as the places, such as (mode, batch, time), and
    ``temporal_shares`` its leading eigenvalues over its trace. ``core_shares`` are those of V V*, empty without sites
    side by side. ``readout`` says what brings the target to the states; None: the temporal kernel was asked.
    """

    name: str
    axes: Mapping[str, int]
    temporal_rank: Estimate
    spatial_rank: Estimate
    temporal_error: float
    temporal_modes: Array
    temporal_shares: Array
    core_shares: Array
    core_cosine: Estimate | None
    alignment: StateAlignment | None
    loss_decrease: LossDecrease | None
    readout: str | None

    @property
    def along(self) -> str:
        """What the temporal kernel is about: time, or all axes but the last where there is none."""
        places = list(self.axes)[:-1]
        return "time" if "time" in places else " x ".join(places) or "one place"

    def answer(self) -> Answer:
        """Its ranks, its modes, and what can be learned of a target."""
        *places, units = self.axes.values()
        subject = "The states change" if self.name == "states" else f"The state {self.name} changes"
        text = (
            f"{subject} with an effective rank of {said(self.temporal_rank)} in {self.along} ({math.prod(places)} "
            f"places) and {said(self.spatial_rank)} in space ({units} {list(self.axes)[-1]}s)."
        )
        if self.core_cosine is not None:
            text += f" Cosine with the core V V* (x) I: {said(self.core_cosine)}."
        shown = slice(len(self.temporal_modes))
        columns: dict[str, Any] = {f"mode in {self.along}": range(1, len(self.temporal_modes) + 1)}
        columns |= {"share of the temporal kernel": self.temporal_shares[shown]}
        columns |= {"share of the core V V*": self.core_shares[shown]} if len(self.core_shares) else {}
        parts: list[Part] = [Table.of(columns), self.draw]
        if self.alignment is not None:
            through = (
                f"through {self.readout}" if self.readout else "by the temporal kernel, without a readout"
            )
            parts += [f"Modes of the target in {self.name}, {through}.", self.alignment.answer()]
        return Answer(text, parts, self._data, self._record())

    def _data(self) -> Any:
        variables: dict[str, Any] = {
            "temporal_mode": (["mode", *list(self.axes)[:-1]], self.temporal_modes),
            "temporal_share": ("rank", self.temporal_shares),
            "core_share": ("core_rank", self.core_shares),
            **picked(self, "temporal_rank spatial_rank core_cosine"),
        }
        notes = picked(self, "temporal_error readout")
        found = labelled(variables, notes, ["mode", "rank", "core_rank"])
        if self.alignment is not None:
            aligned = self.alignment.to_dataset()
            found = found.merge(aligned.rename({key: f"target_{key}" for key in aligned.variables}))
        if self.loss_decrease is not None:
            found = found.merge(self.loss_decrease.to_dataset())
        return found

    def _record(self) -> dict[str, Any]:
        names = "axes temporal_error temporal_shares temporal_modes core_shares readout"
        record = picked(self, names)
        for name, estimate in picked(self, "temporal_rank spatial_rank core_cosine").items():
            record[name] = None if estimate is None else picked(estimate, ESTIMATE)
        for name, found in picked(self, "alignment loss_decrease").items():
            record |= {} if found is None else {name: found.answer().document()}
        return record

    def draw(self, figure: Figure | None = None, ending: str = "") -> Figure:
        """Draw a row for each mode: thin lines are samples, over time or the last of the places."""
        figure = figure or Figure(size=(9.0, 4.4))
        shape = self.temporal_modes.shape[1:]
        along, steps = list(self.axes)[len(shape) - 1], shape[-1]
        modes = self.temporal_modes.reshape(len(self.temporal_modes), -1, steps)
        picked_samples = np.linspace(0, modes.shape[1] - 1, min(_MOST_SAMPLES, modes.shape[1])).astype(int)
        few = len(picked_samples) < modes.shape[1]
        count = f", {len(picked_samples)} of {modes.shape[1]} samples" if few else ", all samples"
        panel = figure.panel(
            f"Modes of the temporal kernel{ending}{count if len(shape) > 1 else ''}; right: shares of its trace",
            Axis(along, low=0.0, high=max(steps - 1, 1), whole=True),
            Axis(
                "mode",
                low=0.45 - len(modes),
                high=0.55,
                ticks={-row: str(row + 1) for row in range(len(modes))},
            ),
        )
        places = np.tile(np.arange(steps + 1), len(picked_samples))
        for row, (mode, share) in enumerate(zip(modes, self.temporal_shares)):
            heights = mode[picked_samples] * 0.46 / max(float(np.abs(mode).max()), 1e-300) - row
            line = np.pad(heights, ((0, 0), (0, 1)), constant_values=np.nan).ravel()  # broken between samples
            style = "." if along == "batch" else "-"  # samples have no order
            panel.level(y=-row, width=0.6)
            panel.curve(places, line, style, color=PALETTE[row % len(PALETTE)], width=0.8, alpha=0.7)
            panel.note(max(steps - 1, 1), -row, f"{100 * max(share, 0.0):.2g} %")
        return figure


def said(estimate: Estimate) -> str:
    """A number with its error."""
    return cell_text(with_error(estimate.value, estimate.standard_error))
