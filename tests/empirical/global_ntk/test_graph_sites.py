"""Weight sites read from a graph: their direct sum is NTK_S, their rows are what the weights multiply."""

from __future__ import annotations

import pytest
import torch
from dense_dynamics import assert_close, check_sites, normal
from graph_models import BATCH, CASES, TIMES, UNITS
from loop_models import LOOPS
from torch import nn

from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics


@pytest.mark.parametrize("name", [*CASES, *LOOPS])
def test_the_direct_sum_over_sites_is_the_kernel(name: str) -> None:
    case = (CASES | LOOPS)[name]
    dynamics = case.dynamics()
    check_sites(dynamics, case.dense(dynamics), case.without)
    assert dynamics.without_site == case.without


def test_weights_that_feed_the_same_sum_are_one_site() -> None:
    dynamics = CASES["tanh loop"].dynamics()
    (site,) = dynamics.sites
    assert site.parameters == ("step.recurrent.weight", "step.input.weight", "step.recurrent.bias")
    assert site.space.axes == (("batch", BATCH), ("time", TIMES), ("feature", UNITS))
    states = dynamics.values.view(BATCH, TIMES, UNITS)
    before = torch.cat([torch.zeros(BATCH, 1, UNITS), states[:, :-1]], 1)
    ones = torch.ones(BATCH, TIMES, 1)
    assert_close(site.inputs, torch.cat([before, CASES["tanh loop"].x, ones], -1).flatten(0, 1))


def test_the_gates_of_a_gru_keep_their_weights_apart() -> None:
    sites = CASES["GRU cell"].dynamics().sites
    assert [site.parameters for site in sites] == [
        ("step.weight_ih", "step.bias_ih"),
        ("step.weight_hh", "step.bias_hh"),
    ]


def test_a_weight_used_twice_is_one_site_with_the_rows_of_both_uses() -> None:
    (weight,) = [site for site in CASES["tied layers"].dynamics().sites if "inside.weight" in site.parameters]
    assert weight.space.axes == (("batch", BATCH), ("use", 2), ("feature", 4))
    assert_close(weight.inputs.view(BATCH, 2, 4)[:, 0], CASES["tied layers"].x)


def test_each_group_of_a_convolution_is_a_site() -> None:
    sites = [site for site in CASES["images"].dynamics().sites if "2.weight" in site.parameters]
    assert [site.space.axes for site in sites] == [(("batch", BATCH), ("position", 4), ("feature", 1))] * 2
    assert [site.inputs.shape for site in sites] == [(12, 5)] * 2


def test_many_groups_are_left_without_site() -> None:
    model = nn.Sequential(nn.Conv2d(20, 20, 1, groups=20), nn.Tanh()).double()
    assert GraphDynamics(model, normal(2, 20, 2, 2), "1").without_site == ("0.weight", "0.bias")


def test_coupled_samples_have_rows_without_an_axis_of_samples() -> None:
    sites = CASES["coupled samples"].dynamics().sites
    assert ("row", BATCH) in sites[0].space.axes


def test_a_table_has_a_column_for_every_row_that_occurs() -> None:
    (table,) = [site for site in CASES["words"].dynamics().sites if "table.weight" in site.parameters]
    assert table.inputs.shape == (8, 5)
    assert table.inputs.sum() == 8


def test_a_transposed_convolution_and_its_norm() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.ConvTranspose2d(1, 2, 2, stride=2), nn.GroupNorm(1, 2), nn.Tanh()).double()
    dynamics = GraphDynamics(model, normal(2, 1, 2, 2), "2")
    units = torch.eye(dynamics.space.size, dtype=torch.float64)
    assert dynamics.without_site == ("1.weight",)
    scale = dynamics.pull(units)["1.weight"]
    total = sum(site.product(units) for site in dynamics.sites) + scale @ scale.T
    assert isinstance(total, torch.Tensor)
    assert_close(total, dynamics.product(units))


class _BothIn(nn.Module):
    """One weight twice in one sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.sum = nn.Linear(3, 3), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sum(self.weight(x) + self.weight(x**2))


def test_a_weight_twice_in_one_sum() -> None:
    dynamics = GraphDynamics(_BothIn().double(), normal(2, 3), ("weight", "sum"))
    units = torch.eye(dynamics.space.size, dtype=torch.float64)
    (site,) = dynamics.sites
    assert len(site.inputs) == 4
    assert_close(site.product(units), dynamics.product(units))
