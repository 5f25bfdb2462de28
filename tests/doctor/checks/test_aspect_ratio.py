"""Depth over width: the predicted scatter between initialisations, and what it would take to reduce it."""

from __future__ import annotations

import numpy as np
import pytest
from mlp_networks import network, only, setup_of, task
from torch import nn

from foretrain.doctor.checks.aspect_ratio import check
from foretrain.doctor.finding import Severity
from foretrain.doctor.mlp_chain import chain_of
from foretrain.doctor.setup import Case
from foretrain.support.errors import NotSupportedError

X, Y = task()


def test_rectifiers_follow_five_depth_over_width() -> None:
    """V / (n K^2) = 5 (L - 1) / n for critical rectifiers (5.116)."""
    finding = only(check(Case(setup_of(network(nn.ReLU, 9, 40, 2.0), X, Y))))
    assert finding.numbers["fluctuation"] == pytest.approx(5 * 8 / 40, rel=1e-6)
    assert finding.severity in (Severity.GOOD, Severity.NOTE)


@pytest.mark.parametrize(
    ("depth", "width", "severity"),
    [
        (10, 64, Severity.GOOD),
        (20, 32, Severity.NOTE),
        (50, 32, Severity.WARNING),
        (30, 16, Severity.WARNING),
    ],
)
def test_severity_rises_with_depth_over_width(depth: int, width: int, severity: Severity) -> None:
    finding = only(check(Case(setup_of(network(nn.ReLU, depth, width, 2.0), X, Y))))
    assert finding.severity == severity
    assert bool(finding.advice) == (severity < Severity.GOOD)
    assert finding.treatment is None


def test_the_advised_width_would_do() -> None:
    finding = only(check(Case(setup_of(network(nn.ReLU, 20, 16, 2.0), X, Y))))
    width = int(finding.advice.split("width ")[1].split(" ")[0])
    assert "skip connections" in finding.advice
    wider = only(check(Case(setup_of(network(nn.ReLU, 20, width, 2.0), X, Y))))
    assert wider.severity == Severity.GOOD


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU, nn.Sigmoid])
@pytest.mark.parametrize("depth", [2, 3, 4])
def test_small_networks_pass(activation: type[nn.Module], depth: int) -> None:
    for width in (16, 64):
        finding = only(check(Case(setup_of(network(activation, depth, width, None), X, Y))))
        assert finding.severity == Severity.GOOD


@pytest.mark.slow
def test_the_prediction_is_the_scatter_of_real_networks() -> None:
    """The variance of ln K over draws, which for rectifiers is 5 (L - 1) / n with the last layer's own 2 / n_out."""
    depth, width, outputs = 7, 60, 40
    kernels = []
    for seed in range(60):
        model = network(nn.ReLU, depth, width, 2.0, outputs=outputs, seed=seed)
        case = Case(setup_of(model, X, X[:, :1].expand(-1, outputs)))
        chain = chain_of(case)
        # Variances of the very weights are part of the draw.
        kernels.append(chain.kernels[-1, 0])
    variance = np.var(np.log(kernels), ddof=1)
    expected = 5 * (depth - 1) / width + 2 / outputs
    # The first layer's fan-in adds nothing, because its neurons are Gaussian given the input; 60 draws know the
    # variance to 18 percent, and the expansion in depth over width to about as much.
    assert abs(variance - expected) < 0.5 * expected


def test_measurements_are_labelled_by_layer() -> None:
    data = check(Case(setup_of(network(nn.Tanh, 6, 32, 1.0), X, Y))).data
    assert data is not None
    np.testing.assert_allclose(data["inverse_widths"].values, np.arange(6) / 32)
    assert data["fluctuation"].values[0] == 0
    assert data.attrs["best_depth_to_width"] == pytest.approx(4 / 23 * 1.5)


def test_models_that_are_no_mlp_are_not_judged() -> None:
    with pytest.raises(NotSupportedError):
        check(Case(setup_of(nn.Linear(10, 1), X, Y)))
    normalised = nn.Sequential(nn.Linear(10, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 1))
    with pytest.raises(NotSupportedError):
        check(Case(setup_of(normalised, X, Y)))


def test_biases_do_not_hide_that_a_network_is_deeper_than_wide() -> None:
    """As torch makes it, the last layer's signal is that of its biases and hardly scatters."""
    finding = only(check(Case(setup_of(network(nn.Tanh, 60, 32, None), X, Y))))
    assert finding.severity == Severity.NOTE
    assert "1.8 times its width" in finding.title
