"""What each operation of torch does to a signal; the rules register themselves where their module is imported."""

from foretrain.compare.infinite_width.operations import (
    arithmetic,
    nonlinearities,
    norms,
    position_maps,
    views,
    weighted_layers,
)

__all__ = ["arithmetic", "nonlinearities", "norms", "position_maps", "views", "weighted_layers"]
