"""The NTK or NNGP of a network as a covariance function of scikit-learn's Gaussian processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from foretrain.activations import activation as find_activation
from foretrain.compare.estimators.network import NetworkKernels, in_parts
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError

# Of logarithms: the error of a slope by its curvature is then 1e-8 of it, that by the 1e-10 of kernels which are
# integrated 1e-6, and that by rounding of closed forms 1e-11.
_STEP = 1e-4
_TOGETHER = 64  # inputs whose kernel is made for its diagonal


@dataclass(kw_only=True, eq=False, repr=False)
class NTKKernel(NetworkKernels, Kernel):
    """The kernel of a network of infinite width, for ``sklearn.gaussian_process`` and to be combined by + and *.

    With kernel="nngp" a Gaussian process is the network's prior, and its posterior exact Bayesian inference; with
    kernel="ntk" its posterior mean is what gradient descent ends at.

    Parameters
    ----------
    activation, depth, C_W, C_b, fixed_layers, kernel, network, init, rates, input_shape
        As in ``ft.NTKRegressor``. C_W and C_b are hyperparameters where they are one positive number for all layers;
        what is zero or given layer by layer stays, as all of a ``network`` does.
    C_W_bounds, C_b_bounds
        Bounds of these, or "fixed".

    Gradients are central differences of the exact kernels, to about 1e-8, or 1e-6 for activations without closed
    forms. The moments of which exact slopes consist would cost ten times as much and more.

    Examples
    --------
    >>> import foretrain as ft
    >>> from sklearn.gaussian_process import GaussianProcessRegressor
    >>> from sklearn.gaussian_process.kernels import WhiteKernel
    >>> kernel = ft.NTKKernel(depth=2, kernel="nngp", C_W=1.5) + WhiteKernel(0.01)
    >>> process = GaussianProcessRegressor(kernel, optimizer=None).fit([[0.0], [1.0]], [0.0, 1.0])
    >>> process.kernel_
    NTKKernel(relu, depth=2, kernel='nngp', C_W=1.5, C_b=0.1) + WhiteKernel(noise_level=0.01)
    >>> process.predict([[1.0]]).round(3)
    array([0.99])
    """

    C_W_bounds: Any = (0.1, 10.0)
    C_b_bounds: Any = (1e-3, 10.0)

    @property
    def hyperparameter_C_W(self) -> Any:
        """C_W, with its bounds."""
        return self._hyperparameter("C_W", self.C_W_bounds)

    @property
    def hyperparameter_C_b(self) -> Any:
        """C_b, with its bounds."""
        return self._hyperparameter("C_b", self.C_b_bounds)

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """The kernel (N, M) between rows of X and of Y, or of X alone.

        ``eval_gradient`` adds its slopes (N, N, hyperparameters) in the logarithms of the hyperparameters.
        """
        rows = np.atleast_2d(np.asarray(X, dtype=np.float64))
        columns = None if Y is None else np.atleast_2d(np.asarray(Y, dtype=np.float64))
        values = self._kernels(rows, columns)[1]
        if not eval_gradient:
            return values
        if Y is not None:
            raise InputError("`eval_gradient` is for one set of inputs: leave `Y` out.")
        slopes = np.empty((*values.shape, self.n_dims))
        for place, step in enumerate(_STEP * np.eye(self.n_dims)):
            above, below = (self.clone_with_theta(self.theta + move)(rows) for move in (step, -step))
            slopes[..., place] = (above - below) / (2 * _STEP)
        return values, slopes

    def diag(self, X: Any) -> Array:
        """The kernel of each row of X with itself: (N,)."""
        rows = np.atleast_2d(np.asarray(X, dtype=np.float64))
        return np.concatenate([np.diagonal(self._kernels(part)[1]) for part in in_parts(rows, _TOGETHER)])

    def is_stationary(self) -> bool:
        """It depends on the inputs themselves, not on their difference alone."""
        return False

    def _hyperparameter(self, name: str, bounds: Any) -> Any:
        value = getattr(self, name)
        free = self.network is None and np.ndim(value) == 0 and value > 0
        return Hyperparameter(name, "numeric", bounds if free else "fixed")

    def __repr__(self) -> str:
        if self.network is not None:
            return f"NTKKernel({type(self.network).__name__}, kernel={self.kernel!r})"
        sizes = ", ".join(f"{name}={np.round(getattr(self, name), 4)}" for name in ("C_W", "C_b"))
        label = find_activation(self.activation).label
        return f"NTKKernel({label}, depth={self.depth}, kernel={self.kernel!r}, {sizes})"
