"""Learning rates at which training by gradient descent is exact Bayesian inference at infinite width."""

from __future__ import annotations

from foretrain.theory.architecture import MLP, check_network


def bayes_equivalent_rates(mlp: MLP) -> MLP:
    """The same network with lambda = C in the output layer and zero in all others, so that Theta = K (10.46)-(10.49).

    Gradient descent then trains the output layer alone, on random features; over initialisations its end has mean
    and covariance of the posterior without noise.

    Examples
    --------
    >>> bayes_equivalent_rates(MLP("tanh", depth=3, width=100, C_b=0.1, C_W=1.5))
    MLP tanh, depth 3, n_in left to the data, depth/width 0.03
    layer  fan-in  width  C_b  C_W  lambda_b  lambda_W
        1    data    100  0.1  1.5         0         0
        2     100    100  0.1  1.5         0         0
        3     100      1  0.1  1.5       0.1       1.5
    """
    check_network(mlp)
    still = (0.0,) * (mlp.depth - 1)
    return mlp.replace(lambda_b=(*still, mlp.C_b[-1]), lambda_W=(*still, mlp.C_W[-1]))
