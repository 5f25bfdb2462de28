"""The layer-to-layer recursions at leading order in 1/n, one family of tensors after the other.

Preactivations

``preactivation``      K (4.118), V (4.119) and G1, and the expectations of pairs of inputs that all families share
``pair_blocks``        what G1, the variances of the metric and H1 need inside every pair of inputs
``single_input``       one input to any depth: K, V, G1 (5.108)-(5.110), tangent kernel (9.6)-(9.21), P to U
``six_point``          the third cumulant of the metric of one input
``residual``           V and the three-point function with skip connections (B.24)
``contraction``        sums over V without its entries

Tangent kernel

``ntk``                Theta (8.63), and the responses that carry its fluctuations
``ntk_contraction``    sums over D, F, A, B without their entries

Tensors of four inputs, of any family

``full_tensors``       with all their entries
``quadruples``         on chosen inputs
``rules``              F (8.79), B (8.89), P, Q (11.45)-(11.52), R, S, T, U (∞.177)-(∞.181); written in ``legs``
``kinks``              activations whose slope jumps, and what becomes of the delta functions

Pairs of inputs

``pairs``              unordered pairs, what metrics are indexed by; copies, which one variable describes
``nearly_parallel``    those whose difference would drown in rounding
"""
