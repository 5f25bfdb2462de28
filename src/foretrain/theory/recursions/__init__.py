"""The layer-to-layer recursions at leading order in 1/n, one family of tensors after the other.

What all share

``expectations``       averages over one layer, and its kernels K (4.118) and Theta (8.63)
``pairs``              closed sets of pairs of inputs, and the one step of V, D and A on them (4.119), (8.77), (8.97)
``rules``              F (8.79), B (8.89), P, Q (11.45)-(11.52), R, S, T, U (∞.177)-(∞.181), entry by entry
``kinks``              activations whose slope jumps, and what becomes of the delta functions

What a flow asks for

``tensors``            tensors of four inputs, with all their entries or on chosen quadruples
``contraction``        sums over V, D, F, A, B without their entries
``pair_blocks``        G1, the variances of the metric and H1, which need entries inside every pair of inputs only
``nearly_parallel``    pairs whose difference would drown in rounding
``single_input``       one input to any depth: K, V, G1 (5.108)-(5.110), tangent kernel (9.6)-(9.21), P to U
``six_point``          the third cumulant of the metric of one input
``residual``           V and the three-point function with skip connections (B.24)
"""
