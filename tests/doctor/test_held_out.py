"""Networks that learn by heart are judged by samples held out of the training."""

from __future__ import annotations

import pytest
import torch
from planted_networks import chain, digits, mlp
from torch import nn

import foretrain as ft
from foretrain.doctor.finding import Severity
from foretrain.doctor.stability import divided


def test_a_fifth_is_held_out() -> None:
    ours, theirs = divided(52, 0)
    assert len(theirs) == 10
    assert torch.equal(torch.cat([ours, theirs]).sort().values, torch.arange(52))


@pytest.mark.slow
def test_weights_that_are_too_large_are_told_by_what_they_make_of_unseen_samples() -> None:
    x, y = digits(200)
    found = ft.doctor(mlp(chain(64, 48, 11, 10), nn.Tanh, 4.0, seed=13), x, y, checks=["initialisation"])
    (finding,) = found.examinations["initialisation"].findings
    assert finding.severity is Severity.WARNING
    assert finding.numbers["held_out_loss_treated"] < 0.7 * finding.numbers["held_out_loss"]
    trained = found.verify(100)
    assert trained.unseen
    assert trained.samples == 40
    assert trained.improvement > 1.2
    assert "held out" in trained.verdict


@pytest.mark.slow
def test_a_network_without_a_living_unit_is_brought_to_life() -> None:
    x, y = digits(100)
    found = ft.doctor(mlp(chain(64, 30, 3, 10), nn.ReLU, 2.0, bias=-50.0), x, y, checks=["dead_units"])
    (finding,) = found.examinations["dead_units"].findings
    assert finding.severity is Severity.CRITICAL
    assert finding.where == ("0", "2", "4")
    assert found.verify(60).improvement > 2
