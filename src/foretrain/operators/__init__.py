"""Matrix-free linear operators between named tensor spaces, and what can be asked of them.

Spaces: ``Space``, ``SumSpace``. Operators from data: ``identity``, ``zero``, ``diagonal``, ``dense_operator``,
``from_functions``, ``from_scipy``, ``span``, or a subclass of ``Operator``. From other operators: ``@``, ``+``,
``-``, numbers, ``.T``, ``gram``, ``kron``, ``lift``, ``direct_sum``, ``row``, ``column``, ``block_operator``,
``select``, ``op.restrict``, ``op.compress``, ``op.partial_trace``, ``op.pair_sum``. Questions: ``op.trace``,
``op.top_modes``, ``op.dense``, ``compare``, ``op.check`` and the others in ``foretrain.operators.estimators``.
"""

from foretrain.operators.algebra import add, compose, compress, declare, gram
from foretrain.operators.basic import (
    dense_operator,
    diagonal,
    from_functions,
    from_scipy,
    identity,
    span,
    zero,
)
from foretrain.operators.checks import OperatorCheck, OperatorComparison, check, compare
from foretrain.operators.composites import block_operator, column, direct_sum, kron, lift, row
from foretrain.operators.operator import Operator
from foretrain.operators.reductions import pair_sum, partial_trace
from foretrain.operators.spaces import Space, SumSpace, Vector, VectorSpace
from foretrain.operators.subspaces import rearrange, select, select_member, select_where
from foretrain.operators.vectors import tensor_like

__all__ = [
    "Operator",
    "OperatorCheck",
    "OperatorComparison",
    "Space",
    "SumSpace",
    "Vector",
    "VectorSpace",
    "add",
    "block_operator",
    "check",
    "column",
    "compare",
    "compose",
    "compress",
    "declare",
    "dense_operator",
    "diagonal",
    "direct_sum",
    "from_functions",
    "from_scipy",
    "gram",
    "identity",
    "kron",
    "lift",
    "pair_sum",
    "partial_trace",
    "rearrange",
    "row",
    "select",
    "select_member",
    "select_where",
    "span",
    "tensor_like",
    "zero",
]
