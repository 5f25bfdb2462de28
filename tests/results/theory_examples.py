"""One instance of every type of result of the rooms without torch, made by the calls that users make."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

import foretrain as ft
from foretrain.gaussian.cumulants import sample_two_point
from foretrain.saddle import modes
from foretrain.theory.complexity import model_complexity
from foretrain.theory.correlations import ntk_covariance
from foretrain.theory.couplings import layer_action
from foretrain.theory.criticality.critical_initialisation import critical_side
from foretrain.theory.criticality.fixed_points import fixed_points
from foretrain.theory.ensembles import Ensemble, sample_parameters
from foretrain.theory.finite_width import expansion_parameter, layer_statistics, mean_of
from foretrain.theory.gradient_step import kernel_step
from foretrain.theory.information import aspect_ratio, log_normal_law
from foretrain.theory.learning_rates import recommended
from foretrain.theory.linear import DeepLinear, perturbation_valid
from foretrain.theory.ntk_shares import equivalence
from foretrain.theory.prediction import bayes, infinite_width, linear_models, nearly_kernel
from foretrain.theory.prediction import finite_width as finite
from foretrain.theory.prediction.bayes import finite_log_evidence, importance_posterior

X = np.array([[1.0, 0.5], [0.2, -1.0], [-0.4, 0.3]])
Y = np.array([[1.0], [-0.5], [0.2]])
MLP = ft.MLP("tanh", depth=3, width=32, n_in=2, C_b=0.1, C_W=1.0)
DATA = (X[:2], Y[:2], X[2:])


@cache
def gaussian_process() -> infinite_width.GradientDescent:
    return infinite_width.GradientDescent.of(MLP, *DATA)


@cache
def one_network() -> finite.OneNetwork:
    H = np.eye(3)[:, :, None, None] + 0.1
    return finite.OneNetwork.of(0.1 * Y, Y[:2], H, np.full((3, 3, 3, 1, 1, 1), 0.01))


def features(x: Any) -> Any:
    return np.concatenate([x, x**2], axis=1)


def bent(x: Any) -> Any:
    return 0.1 * features(x)[:, :, None] * features(x)[:, None, :]


def quadratic() -> Any:
    return nearly_kernel.QuadraticModel.from_features(features, bent, epsilon=0.01)


@cache
def solved() -> Any:
    return nearly_kernel.solve(quadratic(), X, Y)


def between_flows() -> Any:
    field = modes.block_field("tanh", 3, (1.0, 0.5), 9)
    start = field.layout.from_scales(np.array([[0.3, 0.25], [0.35, 0.3], [0.4, 0.35]]))
    return modes.homotopy(modes.Exact(field), modes.Exact(field), start, threshold=0.45, nodes=1)


THEORY_EXAMPLES: dict[str, Callable[[], Any]] = {
    "activation": lambda: ft.activation("leaky_relu", slope=0.2),
    "estimate": lambda: sample_two_point(np.random.default_rng(0).normal(size=(50, 4))),
    "escape times": lambda: ft.saddle.escape_table("tanh", [0.01, 0.1], depth=[3, 4], threshold=0.3),
    "balanced expansion": lambda: ft.saddle.balanced_expansion("tanh", 0.1, 4, threshold=0.3),
    "shells": lambda: ft.saddle.shell_time(0.5, [0.01, 0.1, 0.3]),
    "grid": lambda: modes.gaussian_grid(ft.activation("tanh"), 2),
    "growth": lambda: modes.schur_perron([1.0], [[2.0]], [[2.0]], [1.0]),
    "homotopy": between_flows,
    "stage": lambda: modes.stage("tanh", 4, beta=1.0, rho=0.1, block_width=64),
    "fixed point": lambda: fixed_points("tanh", C_b=0.3, C_W=1.5)[0],
    "critical side": lambda: critical_side(ft.MLP.critical("gelu", 3, 10), X),
    "depths": lambda: ft.advise("relu", 64).depths,
    "complexity": lambda: model_complexity(1, n_data=10),
    "correlation of kernels": lambda: ntk_covariance(MLP, X, (0, 0, 0, 0), (0, 0, 0, 0)),
    "ensemble": lambda: Ensemble(MLP, X, 100),
    "parameters": lambda: sample_parameters(MLP, 2),
    "expansion parameter": lambda: expansion_parameter(ft.MLP.critical("tanh", 3, 100)),
    "action of a layer": lambda: layer_action(MLP, X[:1]),
    "statistics of a layer": lambda: layer_statistics(MLP, X[:2]),
    "mean to first order": lambda: mean_of(["cos"], MLP, X[:1]),
    "step": lambda: kernel_step(np.eye(3), 0.1 * Y, Y[:2], 0.1),
    "aspect ratio": lambda: aspect_ratio("relu", 5, 5),
    "law of the metric": lambda: log_normal_law(0.5),
    "rates": lambda: recommended(ft.MLP.critical("tanh", depth=4, width=100)),
    "deep linear network": lambda: DeepLinear([20, 20, 20, 1]),
    "validity": lambda: perturbation_valid(100, 5, 2),
    "equivalence": lambda: equivalence(MLP, X),
    "scaling of a group": lambda: equivalence(MLP, X).bias,
    "best point": lambda: bayes.best_point(bayes.evidence_scan(MLP, X, Y, C_W=[0.5, 1.0, 2.0])),
    "evidence": lambda: finite_log_evidence(MLP, X[:1], Y[:1]),
    "importance posterior": lambda: importance_posterior(MLP, *DATA, draws=800),
    "training": gaussian_process,
    "kernels": lambda: gaussian_process().kernels,
    "outputs": lambda: infinite_width.Outputs(0.1 * Y[:2], 0.1 * Y[2:]),
    "expected loss": lambda: infinite_width.expected_loss(gaussian_process().end(), Y[2:]),
    "sampled loss": lambda: infinite_width.sampled_loss(
        gaussian_process().end(), Y[2:], infinite_width.SQUARED_ERROR, draws=100
    ),
    "hidden update": lambda: infinite_width.hidden_update(MLP, *DATA),
    "one training input": lambda: infinite_width.one_training_input(MLP, X[0], X[1]),
    "robustness": lambda: infinite_width.robust_hyperparameters("tanh"),
    "series of the tangent kernel": lambda: infinite_width.tangent_series(MLP, X[0], 0.1 * X[1]),
    "finite width": lambda: finite.FiniteWidth.of(MLP, *DATA),
    "expansion": lambda: ft.predict(MLP, *DATA, regime="finite").expansion,
    "projectors": lambda: finite.algorithm_projectors("two_step", np.array([0.5, 1.0])),
    "one network": one_network,
    "one trained network": lambda: one_network().trained("flow"),
    "linear fit": lambda: linear_models.fit_features(X, Y),
    "kernel fit": lambda: linear_models.fit_kernel(X @ X.T + np.eye(3), Y),
    "features of a network": lambda: linear_models.network_features(MLP, X),
    "features of a kernel": lambda: linear_models.eigen_features(X @ X.T),
    "counts": lambda: nearly_kernel.counts(5),
    "solution": solved,
    "trained model": lambda: nearly_kernel.train(quadratic(), X, Y, "flow"),
    "descent in sample space": lambda: nearly_kernel.descend_in_sample_space(quadratic(), X, Y, X, steps=5),
}
