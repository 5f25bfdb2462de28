"""Ratios of tensors to powers of K, Theta and n against depth."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import dimensionless_ratios, dntk_laws, ntk_laws


def test_reference_values_of_tanh_at_depth_1000() -> None:
    mlp = MLP("tanh", 1000, 1000, lambda_b=list(1 / np.arange(1.0, 1001)))
    last = {name: float(ratio[-1]) for name, ratio in dimensionless_ratios(mlp, [1.0]).items()}
    expected = {
        "A/(nTheta^2)": 0.0648237,
        "B/(nTheta^2)": 0.331563,
        "P/(nTheta^2)": -0.0829582,
        "Q/(nTheta^2)": -0.0413048,
        "RK/(nTheta^3)": -0.0691333,
        "SK/(nTheta^3)": 0.0278767,
        "TK/(nTheta^3)": 0.0136661,
        "UK/(nTheta^3)": 4.95412e-7,
    }
    for name, value in expected.items():
        assert last[name] == pytest.approx(value, rel=1e-5)


def test_the_exact_rows_of_the_laws_are_the_same() -> None:
    mlp = MLP("sin", 12, 30, lambda_b=list(0.4 / np.arange(1.0, 13)))
    found = dimensionless_ratios(mlp, [0.3, 1.2])
    for laws in (ntk_laws(mlp, [0.3, 1.2]), dntk_laws(mlp, [0.3, 1.2])):
        for name in set(laws.data_vars) & set(found.data_vars):
            np.testing.assert_allclose(found[name], laws[name].sel(law="exact"), rtol=1e-12)


def test_any_hyperparameters_widths_and_targets() -> None:
    mlp = MLP(
        "gelu", 4, [10, 30, 20], C_b=0.1, C_W=[1.0, 1.4, 1.2, 1.3], lambda_b=0.5, lambda_W=[1, 2, 1, 0.5]
    )
    tensors = ft.flow(mlp, [[1.0, 0.5]], ["K", "Theta", "F", "T"])
    K, Theta, F, T = (tensors[name].values.reshape(4) for name in ("K", "Theta", "F", "T"))
    found = dimensionless_ratios(mlp, [1.0, 0.5], target_square=2.0)
    before = np.array([10, 30, 20])
    np.testing.assert_allclose(found["TK/(nTheta^3)"][1:], (T * (K + 2) / Theta**3)[1:] / before)
    np.testing.assert_allclose(found["F/(nKTheta)"][1:], (F / (K * Theta))[1:] / before)


def test_kinks_and_wrong_arguments() -> None:
    assert {name[0] for name in dimensionless_ratios(MLP("relu", 3, 10, C_W=2.0), [1.0])} == set("VDFABPQ")
    with pytest.raises(InputError, match="one input"):
        dimensionless_ratios(MLP("tanh", 3, 10), [[1.0], [2.0]])
    with pytest.raises(InputError, match="target_square"):
        dimensionless_ratios(MLP("tanh", 3, 10), [1.0], target_square=-1.0)
