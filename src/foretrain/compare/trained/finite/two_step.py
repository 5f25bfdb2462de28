"""Many networks trained in two updates, a giant leap and a small step, by their own kernels (∞.68)-(∞.79)."""

from __future__ import annotations

import numpy as np
import torch

from foretrain.compare.trained.ensemble import TrainedEnsemble, draw_ensemble
from foretrain.compare.trained.networks import Networks, draw_networks, group_size, groups_of
from foretrain.compare.trained.training import Training
from foretrain.support.seeds import Seed, spawn
from foretrain.support.threads import torch_over_cores
from foretrain.theory.architecture import MLP, FloatArray

Kept = tuple[FloatArray, FloatArray]  # outputs at the end, and tangent kernels


def two_step_ensemble(
    mlp: MLP, X_train: FloatArray, X_test: FloatArray, targets: FloatArray, draws: range, *, seed: Seed = 0
) -> TrainedEnsemble:
    """Mirrored networks before and after the two updates, with ``free``, ``kernel_before`` and ``kernel_after``.

    They are the networks of :func:`foretrain.compare.trained.train_ensemble` with the same seed.
    """
    before = draw_ensemble(
        mlp,
        X_train,
        X_test,
        Training(targets, eta=1.0),
        draws,
        seed=seed,
        mirrored=True,
        keep=("free", "kernel_before"),
    )
    inputs, own = np.concatenate([X_train, X_test]), spawn(seed, 2)[0]

    def trained(numbers: range) -> Kept:
        with torch.no_grad():
            networks = draw_networks(before.mlp, numbers, own, mirrored=True)
            leap_and_step(networks, X_train, targets)
            z = networks.forward(networks.entry(inputs)).output.mT
            return z.numpy(), networks.kernel(inputs).numpy()

    size = 2 * max(1, group_size(before.mlp) // 2)  # mirrored networks together
    found = torch_over_cores(trained, groups_of(draws, size), "leaps of networks", uses_blas=True)
    end, after = map(np.concatenate, zip(*found, strict=True))
    return TrainedEnsemble(
        **vars(before),
        end=end,
        steps=np.full(len(end), 2.0),
        diverged=~np.isfinite(end).all(axis=(1, 2)),
        kernel_after=after,
    )


def leap_and_step(networks: Networks, X: FloatArray, targets: FloatArray) -> None:
    """Two updates, in place, by θ − λ Σ c ∇z with c = Ĥ⁻¹ (z − y), and Ĥ the kernel before the first."""
    kernel = networks.kernel(X).transpose(2, 3)  # (networks, i, a, j, b)
    legs = targets.size
    factor = torch.linalg.lu_factor(kernel.reshape(len(networks), legs, legs))
    y = torch.from_numpy(np.ascontiguousarray(targets.T))
    entry = networks.entry(X)
    for _ in range(2):
        trace = networks.forward(entry)
        error = trace.output - y
        coefficients = torch.linalg.lu_solve(*factor, error.reshape(len(networks), legs, 1))
        fields = networks.sensitivities(trace, coefficients.reshape(error.shape))
        for layer, field in zip(reversed(networks.mlp.layers), fields):
            place = layer.number - 1
            signal = trace.signals[place]
            networks.weights[place].baddbmm_(field, signal.mT, alpha=-layer.lambda_W / signal.shape[1])
            networks.biases[place].sub_(field.sum(dim=2, keepdim=True), alpha=layer.lambda_b)
