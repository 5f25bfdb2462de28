"""How much memory a flow takes, said before anything is computed."""

from __future__ import annotations

from foretrain.support.memory import require_memory
from foretrain.theory.flow.request import Request
from foretrain.theory.recursions.full_tensors import carried

_TABLES = 120  # up to six products of four, their index sets, and what a rule holds at once
_PAIRWISE = {"G1", "norm_covariance", "entry_variance"}


def require_memory_for(depth: int, size: int, request: Request, *, residual: bool) -> None:
    """Refuse a flow of ``size`` inputs that does not fit, with its estimate and a way out."""
    pairs = size * (size + 1) // 2
    entries = (depth * len(request.names) + 12) * size**2
    if _PAIRWISE & {*request.names}:
        entries += 40 * pairs
    if "H1" in request.names:
        entries += 160 * pairs  # of which 40 for nearly parallel ones
    whole = request.tensors if residual and request.matrices is not None else request.full_tensors
    if whole:
        kinds, moving = len(whole), len(carried(whole))
        entries += kinds * depth * size**4 + 4 * moving * size**4 + 4 * kinds * pairs**2
        entries += residual * depth * pairs**2
        if request.differentials:
            entries += _TABLES * size**4
    pulled = [name for name in request.tensors if name not in whole]
    if request.matrices is not None and pulled:
        forms, kinds = 2 * len(request.matrices), len(pulled)
        entries += depth * (kinds * forms * (4 * pairs + 3 * size**2) + (2 + 3 * kinds) * size**2)
        entries += 4 * depth * kinds * pairs**2 if request.draws == 0 else 0
    if "three_point" in request.names:
        entries += depth * size**3
    way_out = "use fewer inputs or layers"
    if request.full_tensors:
        way_out = (
            "ask for tensors on chosen `quadruples=` or contracted with `contract=`, or use fewer inputs"
        )
    if request.differentials:
        way_out = "ask for tensors on chosen `quadruples=`, or use fewer inputs"
    require_memory(8 * entries, f"{', '.join(request.names)} of {size:,} inputs at {depth:,} layers", way_out)
