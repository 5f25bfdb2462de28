"""The picture of figure 3: cosines over training, spectra in time, modes as images, and targets with their losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.global_ntk.core_of_the_ntk.measurements import modes_needed
from foretrain.support.drawing import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, RED, new_mosaic

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_SHOWN_VALUES = 1e-6  # of the largest singular value
_VIEWS = {"NTK": (BLUE, "NTK_S"), "core": (ORANGE, "core V V*"), "K": (GREEN, "K"), "P": (PURPLE, "P")}
_TARGETS = {"aligned": BLUE, "response, angle": RED, "response, constant": ORANGE}


def draw(data: xarray.Dataset) -> Figure:
    """All panels."""
    layout = [
        ["cosine", "cosine", "spectra", "spectra"],
        [f"NTK {number}" for number in range(1, 5)],
        [f"core {number}" for number in range(1, 5)],
        ["aligned", "response, angle", "losses", "losses"],
    ]
    title = f"The core of the global-state NTK: a GRU of {data.attrs['units']} units on Memory-Pro"
    figure, panels = new_mosaic(title, layout, [1.5, 1, 1, 1.3], (14, 13))
    _draw_cosines(panels["cosine"], data)
    _draw_spectra(panels["spectra"], data)
    for view, told in (("NTK", "NTK_S"), ("core", "core")):
        for number in range(1, 5):
            image = data["mode"].sel(when="start", shown_view=view, number=number).values
            _draw_image(panels[f"{view} {number}"], image, data.attrs["periods"])
            panels[f"{view} {number}"].set_title(
                f"{told}, mode {number}: {_response(image, data)}", fontsize=10
            )
    for name in ("aligned", "response, angle"):
        _draw_image(panels[name], data.target.sel(target_name=name).values, data.attrs["periods"])
        panels[name].set_title(f"target: {name}", fontsize=10)
    _draw_losses(panels["losses"], data)
    return figure


def _response(image: Array, data: xarray.Dataset) -> str:
    """How much of a mode lies in the response period."""
    start = sum(data.attrs["periods"][:2])
    return f"{float((image[:, start:] ** 2).sum() / (image**2).sum()):.0%} in response"


def _draw_cosines(panel: Axes, data: xarray.Dataset) -> None:
    told = {
        "direct sum": (GREEN, "direct sum over weights"),
        "proxy": (BLUE, "proxy V V* ⊗ I"),
        "identity": (FAINT, "identity"),
    }
    for name, (color, label) in told.items():
        own = data.sel(operator=name)
        panel.errorbar(
            own.checkpoint, own.cosine, own.cosine_error, fmt="o-", color=color, markersize=4, label=label
        )
    loss = data.loss.mean("output")
    panel.plot(loss.step, loss / loss[0], color=INK, linewidth=1, linestyle=":", label="loss / first loss")
    panel.set(xlabel="step of Adam", ylabel="cosine with NTK_S", ylim=(0, 1.08))
    panel.set_title("Cosine with NTK_S on all states, over training", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="center right")


def _draw_spectra(panel: Axes, data: xarray.Dataset) -> None:
    for view, (color, label) in _VIEWS.items():
        before, after = (data.singular_value.sel(when=when, view=view).values for when in ("start", "end"))
        label = f"{label}: 95 % in {modes_needed(before)} before, {modes_needed(after)} after"
        _draw_spectrum(panel, before, color, "-", label)
        _draw_spectrum(panel, after, color, "--", None)
    panel.set(xscale="log", yscale="log", ylim=(_SHOWN_VALUES, 2))
    panel.set(xlabel="mode", ylabel="singular value / largest")
    panel.set_title("Views in time, before (solid) and after training (dashed)", fontsize=11)
    panel.legend(frameon=False, fontsize=8, loc="lower left")


def _draw_spectrum(panel: Axes, values: Array, color: str, style: str, label: str | None) -> None:
    """Relative to the largest, with a point where the modes reach 95 %."""
    shown = values[values > _SHOWN_VALUES * values[0]] / values[0]
    needed = modes_needed(values)
    panel.plot(np.arange(1, len(shown) + 1), shown, style, color=color, linewidth=1.3, label=label)
    panel.plot(needed, shown[needed - 1], "o", color=color, markersize=5)


def _draw_image(panel: Axes, image: Array, periods: list[int]) -> None:
    reach = float(np.abs(image).max())
    panel.imshow(image, aspect="auto", cmap="RdBu_r", vmin=-reach, vmax=reach, interpolation="nearest")
    for boundary in np.cumsum(periods)[:-1]:
        panel.axvline(boundary - 0.5, color=INK, linewidth=1, linestyle="--")
    panel.grid(False)
    panel.set(xlabel="time: stimulus | memory | response", ylabel="trial")
    panel.set_yticks(np.arange(0, len(image), max(1, len(image) // 4)))


def _draw_losses(panel: Axes, data: xarray.Dataset) -> None:
    for name, color in _TARGETS.items():
        own = data.sel(target_name=name)
        steps = np.arange(own.sizes["descent_step"])
        label = f"{name}: Rayleigh quotient {float(own.rayleigh):.2g}"
        panel.plot(steps, own.target_loss, color=color, linewidth=2, label=label)
        panel.plot(steps, own.frozen_loss, color=INK, linewidth=1, linestyle=":")
    panel.plot([], [], color=INK, linewidth=1, linestyle=":", label="frozen kernel")
    panel.set(xlabel="step of gradient descent", ylabel="loss / first loss", yscale="log")
    panel.set_xscale("symlog", linthresh=10)
    panel.set_xlim(0, data.sizes["descent_step"])
    panel.set_title("Learning single targets from the same start", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.95))
