"""The picture of figure 3."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure


def draw(data: xarray.Dataset) -> Figure:
    """All panels."""
    raise NotImplementedError
