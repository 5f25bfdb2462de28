"""Shampoo: against the published update, written out in a few lines."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.training.optimizers import shampoo

Array = NDArray[np.float64]


def inverse_root(matrix: Array, order: int) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * values ** (-1 / order)) @ vectors.T)


def by_hand(start: Array, gradients: list[Array], lr: float, epsilon: float) -> Array:
    """Gupta, Koren & Singer 2018, algorithm 1; a vector has its one preconditioner to the power -1/2."""
    W = start.copy()
    sums = [epsilon * np.eye(size) for size in W.shape]
    for G in gradients:
        if G.ndim == 1:
            sums[0] += np.outer(G, G)
            W -= lr * inverse_root(sums[0], 2) @ G
        else:
            sums[0] += G @ G.T
            sums[1] += G.T @ G
            W -= lr * inverse_root(sums[0], 4) @ G @ inverse_root(sums[1], 4)
    return W


@pytest.mark.parametrize("shape", [(3, 2), (2, 5), (4,)])
@pytest.mark.parametrize("epsilon", [1e-6, 0.3])
def test_steps_are_those_of_the_published_definition(shape: tuple[int, ...], epsilon: float) -> None:
    draw = np.random.default_rng(0)
    start, gradients = draw.normal(size=shape), [draw.normal(size=shape) for _ in range(3)]
    parameter = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = shampoo([parameter], lr=0.1, epsilon=epsilon)
    for count, gradient in enumerate(gradients, start=1):
        parameter.grad = torch.from_numpy(gradient.copy())
        optimizer.step()
        expected = by_hand(start, gradients[:count], 0.1, epsilon)
        np.testing.assert_allclose(parameter.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_the_first_step_turns_a_gradient_into_an_orthogonal_matrix() -> None:
    """With nothing before it, L^(-1/4) G R^(-1/4) has all singular values 1, whatever those of G are."""
    parameter = torch.nn.Parameter(torch.zeros(3, 3, dtype=torch.float64))
    optimizer = shampoo([parameter], lr=1.0, epsilon=1e-12)
    parameter.grad = torch.diag(torch.tensor([4.0, -1.0, 0.01], dtype=torch.float64))
    optimizer.step()
    expected = -torch.diag(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64))
    torch.testing.assert_close(parameter.detach(), expected, rtol=1e-7, atol=1e-7)


def test_steps_along_one_direction_shrink_like_one_over_the_root_of_their_number() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = shampoo([parameter], lr=0.1, epsilon=1e-12)
    moves = []
    for _ in range(4):
        before = parameter.detach().clone()
        parameter.grad = torch.tensor([3.0, 0.0], dtype=torch.float64)
        optimizer.step()
        moves.append(float((parameter.detach() - before)[0]))
    assert moves == pytest.approx([-0.1 / count**0.5 for count in range(1, 5)], rel=1e-6)


def test_what_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    with pytest.raises(InputError, match="lr is 0"):
        shampoo([parameter], lr=0.0)
    with pytest.raises(InputError, match="epsilon is 0"):
        shampoo([parameter], epsilon=0.0)
    monkeypatch.setitem(sys.modules, "pytorch_optimizer", None)
    with pytest.raises(NotSupportedError, match="pip install pytorch-optimizer"):
        shampoo([parameter])
