"""Loops over time that ``global_ntk`` reads without any preparation, and what it says of them."""

from __future__ import annotations

import pytest
import torch
from dense_dynamics import assert_close, normal
from graph_models import BATCH, INPUTS, TIMES, UNITS
from loop_models import LOOPS
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.global_ntk import GlobalNTK
from foretrain.operators import Space, SumSpace
from foretrain.support.errors import ForetrainError

X = normal(BATCH, TIMES, INPUTS)


def kernel_of(name: str, **options: object) -> GlobalNTK:
    return ft.global_ntk(LOOPS[name].model(), X, **options)  # type: ignore[arg-type]


def test_a_loop_by_hand_is_the_layer_of_torch() -> None:
    """The same weights in nn.RNN: P, K, its inverse and the sites are those of the sweeps."""
    found = kernel_of("tanh by hand, stack")
    weights = found.dynamics.parameters
    layer = nn.RNN(INPUTS, UNITS, bias=False, batch_first=True).double()
    layer.load_state_dict({"weight_hh_l0": weights["W"].detach(), "weight_ih_l0": weights["U"].detach()})
    expected = ft.global_ntk(layer, X)
    assert found.domain == expected.domain == Space.of(batch=BATCH, time=TIMES, unit=UNITS)
    pairs = [(found, expected)]
    pairs += [(getattr(found, part), getattr(expected, part)) for part in ("P", "K", "P_inverse", "core")]
    for mine, its in pairs:
        assert_close(mine.dense(), its.dense())
    assert found.sites["W"].parameters == ("W", "U")
    assert_close(found.sites["W"].inputs, expected.sites["weight_hh_l0"].inputs)
    assert f"{TIMES} steps are computed" in found.structure
    assert "from the one before it" in found.structure
    assert "one sweep through time" in expected.structure


@pytest.mark.parametrize("name", ["leaky and low-rank", "spiking", "two layers of torch", "Runge-Kutta"])
def test_products_of_the_parts_are_the_kernel(name: str) -> None:
    kernel = kernel_of(name, states=LOOPS[name].states)
    whole = kernel.full.dense()
    propagator = kernel.P.dense()
    assert_close(propagator @ kernel.K.dense() @ propagator.T, whole)
    assert_close(kernel.P_inverse.dense() @ propagator, torch.eye(len(whole), dtype=torch.float64))
    lifted = kernel.P_core.dense()
    assert_close(lifted @ kernel.site_gram.dense() @ lifted.T, whole)
    assert_close(kernel.core.dense(), whole)


def test_several_recurrent_layers_are_all_states() -> None:
    kernel = kernel_of("two layers of torch")
    each = Space.of(batch=BATCH, time=TIMES, unit=UNITS)
    assert kernel.domain == SumSpace({"lower": each, "upper": each})
    assert_close(kernel.dense(), kernel_of("two layers of torch", states=("lower", "upper")).dense())
    with pytest.raises(ForetrainError, match="several recurrent layers"):
        kernel_of("two layers of torch", states="hidden")


class Started(nn.Module):
    """A layer of torch whose first state is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.start = (
            nn.GRU(INPUTS, UNITS, batch_first=True),
            nn.Parameter(torch.ones(1, 1, UNITS)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, self.start.expand(1, len(x), -1).contiguous())[0]


def test_a_learned_first_state_of_a_layer_counts() -> None:
    torch.manual_seed(0)
    model = Started().double()
    kernel = ft.global_ntk(model, X)
    values = dict(model.named_parameters())
    jacobian = torch.func.jacrev(lambda p: torch.func.functional_call(model, p, X).flatten())(values)
    rows = torch.cat([part.flatten(1) for part in jacobian.values()], 1)
    assert_close(kernel.dense(), rows @ rows.T)
    assert "start" in kernel.loss_decrease(torch.ones(BATCH, TIMES, UNITS)).by_parameter
    held = ft.global_ntk(model, X, parameters="layer.*")
    assert_close(kernel.P.dense(), held.P.dense())


def test_states_that_do_not_follow_from_each_other_are_said_to() -> None:
    model = nn.Sequential(nn.Linear(INPUTS, UNITS), nn.Tanh()).double()
    kernel = ft.global_ntk(model, X)
    assert_close(kernel.P.dense(), torch.eye(kernel.size, dtype=torch.float64))
    assert "None follows from another" in kernel.structure
    assert "identity" in repr(kernel)


def test_noise_is_refused_or_frozen_by_a_seed() -> None:
    model = LOOPS["noise"].model()
    with pytest.raises(ForetrainError, match='noise="frozen"'):
        ft.global_ntk(model, X)
    before = torch.random.get_rng_state()
    first, again, other = (ft.global_ntk(model, X, noise="frozen", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert_close(first.dense(), again.dense())
    assert float((first.dense() - other.dense()).abs().max()) > 1e-3
    with pytest.raises(ForetrainError, match="noise"):
        ft.global_ntk(model, X, noise="melted")  # type: ignore[arg-type]


def test_noise_at_the_inputs_of_a_layer_is_refused_or_frozen() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.drop = nn.GRU(INPUTS, UNITS, batch_first=True), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.drop(x) + torch.randn_like(x))[0]

    model = Noisy().double()
    kernels = [ft.global_ntk(model, X, noise="frozen", seed=3) for _ in range(2)]
    assert_close(kernels[0].dense(), kernels[1].dense())
    with pytest.raises(ForetrainError, match="different outputs"):
        ft.global_ntk(model.eval(), X)
