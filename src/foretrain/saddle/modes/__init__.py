"""Several modes of the teacher at once (App. E): which escapes first, and how the modes help each other."""

from foretrain.saddle.modes.block_field import BlockField, block_field
from foretrain.saddle.modes.block_flow import block_escape, block_flow
from foretrain.saddle.modes.block_state import BlockLayout
from foretrain.saddle.modes.gaussian_grid import (
    GaussianGrid,
    gaussian_grid,
    hermite_grid,
    midpoint_grid,
    sobol_grid,
)
from foretrain.saddle.modes.laws import (
    chain_moment,
    critical_depth,
    critical_scale,
    fitted_product,
    fitted_scales,
    mode_coupling,
    mode_times,
    transit_integral,
)
from foretrain.saddle.modes.stage import Stage, stage

__all__ = [
    "BlockField",
    "BlockLayout",
    "GaussianGrid",
    "Stage",
    "block_escape",
    "block_field",
    "block_flow",
    "chain_moment",
    "critical_depth",
    "critical_scale",
    "fitted_product",
    "fitted_scales",
    "gaussian_grid",
    "hermite_grid",
    "midpoint_grid",
    "mode_coupling",
    "mode_times",
    "sobol_grid",
    "stage",
    "transit_integral",
]
