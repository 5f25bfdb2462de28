"""Several modes of the teacher at once (App. E): which escapes first, and what the modes do to each other.

``mode_times``      each mode by itself: t_k = I_L / Gamma_k, the order, critical depths; ``stage`` (65-68)
``block_escape``    when every mode escapes in the exact flow of block-symmetric networks; ``block_flow`` trajectories
``coefficients``    drive and damping of rotations and off-block entries (62), (64), from the exact flow
``schur_perron``    whether two damped groups of amplitudes feed each other enough to grow (Prop. 24)
``homotopy``        what makes the time of one flow that of another (Prop. 23), between any two of
                    ``Decoupled``, ``LinearClosure`` and ``Exact``
"""

from foretrain.saddle.modes.blocks import BlockField, BlockLayout, block_escape, block_field, block_flow
from foretrain.saddle.modes.closure import (
    Coefficients,
    Decoupled,
    Exact,
    LinearClosure,
    ModeField,
    SchurPerron,
    coefficients,
    duhamel,
    graded_example,
    schur_perron,
    truncated_growth,
)
from foretrain.saddle.modes.gaussian_grid import (
    GaussianGrid,
    gaussian_grid,
    hermite_grid,
    midpoint_grid,
    sobol_grid,
)
from foretrain.saddle.modes.homotopy import HomotopyTimes, channels, homotopy
from foretrain.saddle.modes.laws import (
    DriveAndDamping,
    Stage,
    chain_moment,
    critical_depth,
    critical_scale,
    fitted_product,
    fitted_scales,
    mode_coupling,
    mode_times,
    printed_damping,
    product_coefficients,
    stage,
    transit_integral,
)

__all__ = [
    "BlockField",
    "BlockLayout",
    "Coefficients",
    "Decoupled",
    "DriveAndDamping",
    "Exact",
    "GaussianGrid",
    "HomotopyTimes",
    "LinearClosure",
    "ModeField",
    "SchurPerron",
    "Stage",
    "block_escape",
    "block_field",
    "block_flow",
    "chain_moment",
    "channels",
    "coefficients",
    "critical_depth",
    "critical_scale",
    "duhamel",
    "fitted_product",
    "fitted_scales",
    "gaussian_grid",
    "graded_example",
    "hermite_grid",
    "homotopy",
    "midpoint_grid",
    "mode_coupling",
    "mode_times",
    "printed_damping",
    "product_coefficients",
    "schur_perron",
    "sobol_grid",
    "stage",
    "transit_integral",
    "truncated_growth",
]
