"""The layer-to-layer recursions at leading order in 1/n, one family of tensors after the other.

Preactivations

``preactivation``      K (4.118), V (4.119) and G1, and the expectations of pairs of inputs that all families share
``pair_blocks``        V inside every pair of inputs: all that G1 and the variances of the metric need
``single_input``       K, V, G1 of one input, to any depth (5.108)-(5.110)
``six_point``          the third cumulant of the metric of one input
``residual``           V and the three-point function with skip connections (B.24)
``contraction``        sums over V without its entries

Tangent kernel

``ntk``                Theta (8.63), and the responses that carry its fluctuations
``ntk_cross``          the rules of F (8.79) and B (8.89)
``ntk_blocks``         H1, from the entries inside every pair of inputs
``ntk_single_input``   all of them for one input (9.6)-(9.21)
``ntk_contraction``    sums over D, F, A, B without their entries

Its differentials

``dntk``, ``ddntk``    the rules of P, Q (11.45)-(11.52) and of R, S, T, U (∞.177)-(∞.181)
``dntk_single_input``  one input (11.55), (11.56), (∞.14)-(∞.18), from the functions of K in ``dntk_functions``

Tensors of four inputs, of any family

``full_tensors``       with all their entries
``quadruples``         on chosen inputs; ``ruled_quadruples`` those that follow rules
``legs``               what a rule is written in; ``rules`` which tensor needs which
``kinks``              activations whose slope jumps, and what becomes of the delta functions

Pairs of inputs

``pairs``              unordered pairs, what metrics are indexed by
``tied_pairs``         copies and multiples of each other, which one variable describes
``nearly_parallel``    those whose difference would drown in rounding
"""
