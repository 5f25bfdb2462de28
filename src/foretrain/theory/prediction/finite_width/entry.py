"""The function :func:`finite_prediction`."""

from __future__ import annotations

from numpy.typing import ArrayLike

from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.prediction.finite_width.projectors import Algorithm, require_algorithm
from foretrain.theory.prediction.finite_width.result import FinitePrediction
from foretrain.theory.prediction.finite_width.store import check_kind
from foretrain.theory.prediction.finite_width.tensors import require_resources
from foretrain.theory.prediction.finite_width.training import TOLERANCE, FiniteWidth
from foretrain.theory.prediction.kernels import Spread


def finite_prediction(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    algorithm: Algorithm = "gradient_descent",
    eta: float | None = None,
    time: float | None = None,
    *,
    spread: Spread = "covariance",
    seed: Seed = 0,
    draws: int | None = None,
    tolerance: float = TOLERANCE,
) -> FinitePrediction:
    """The mean over trained networks of finite width, to order 1/n, split by origin (∞.160)-(∞.165).

    The activation must be smooth, and the network without skip connections. Unlike at infinite width, the end depends
    on the algorithm. For many algorithms, rates or targets on the same inputs use :class:`FiniteWidth`.

    Parameters
    ----------
    algorithm
        ``gradient_descent`` in steps, ``flow`` in continuous time, ``two_step``, a giant leap and a small step, or
        :class:`Projectors` of any other algorithm, or a function of the eigenvalues of Theta_AA that returns them.
    eta
        Overall learning rate: of steps by default the best constant one, of the flow 1.
    time
        Number of steps, or flow time; None is the end of training.
    spread
        Of the covariance at infinite width: "covariance" of all pairs of test inputs, "variance" of each, or "none".
    draws, seed
        For more training inputs than N^4 entries allow: sums over triples of them are sampled, with a
        ``standard_error``. The work grows with draws times inputs, and the scatter with the number of inputs.
    tolerance
        Of the integrals; 1e-7 is several times faster for activations without closed forms.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("sin", depth=2, width=100, C_b=0.1, C_W=1.3, lambda_b=0.5)
    >>> finite_prediction(mlp, [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]], "two_step")
    Networks of width 100 to the end of two-step training: mean over networks to order 1/n, by origin
                              test 0
      infinite width         -0.5994
      ntk_mean                     0
      ntk_variance        -0.0031864
      dntk                 -0.002313
      ddntk_1             -0.0025516
      ddntk_2                      0
      mean                  -0.60745
      terms together 0.013 of the mean; about the square of that is left out
      .covariance: at infinite width; .covariance_correction, .ntk_change: of order 1/n; .expansion
    """
    require_algorithm(algorithm)
    check_network(mlp)
    check_kind(mlp)
    if draws is None:  # before the kernels of inputs that are too many
        require_resources(
            mlp, len(mlp.check_inputs(X_train, "X_train")), len(mlp.check_inputs(X_test, "X_test"))
        )
    ensemble = FiniteWidth.of(mlp, X_train, Y_train, X_test, spread=spread, tolerance=tolerance)
    return ensemble.predict(algorithm, eta, time, draws=draws, seed=seed)
