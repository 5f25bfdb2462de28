"""Initialisation against criticality: found by its consequence over depth, mended by the advice, else silent."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from mlp_networks import Erf, Sine, network, only, run_code, same_weights, setup_of, task, with_and_without
from torch import nn

from foretrain.doctor.checks.initialisation import check
from foretrain.doctor.finding import Severity
from foretrain.doctor.mlp_chain import chain_of, find_wanted, measure, predict
from foretrain.doctor.setup import Case, Setup
from foretrain.support.errors import NotSupportedError

X, Y = task()
Make = Callable[[], nn.Module]

# activation, depth, width, C_W (None: as torch makes it), seed
FAULTS: list[tuple[Make, int, int, float | None, int]] = [
    (nn.Tanh, 30, 64, 0.25, 0),
    (nn.Tanh, 30, 64, 4.0, 0),
    (nn.Tanh, 50, 32, 4.0, 1),
    (nn.Tanh, 15, 128, 0.25, 2),
    (nn.Tanh, 30, 256, None, 0),
    (nn.ReLU, 20, 64, 1.0, 0),
    (nn.ReLU, 30, 128, 1.0, 3),
    (nn.ReLU, 15, 64, 6.0, 0),
    (nn.GELU, 20, 64, 0.7, 0),
    (nn.SELU, 30, 32, 0.25, 0),
    (Erf, 20, 64, math.pi, 0),
    (Sine, 20, 64, 4.0, 0),
    (Sine, 12, 64, 0.2, 1),
    (nn.Sigmoid, 8, 64, 1.0, 0),
    (nn.Softplus, 20, 64, 1.0, 0),
]
HEALTHY: list[tuple[Make, int, int, float | None, int]] = [
    (nn.Tanh, 30, 64, 1.0, 0),
    (nn.Tanh, 50, 64, 1.0, 1),
    (nn.ReLU, 10, 32, 2.0, 0),
    (nn.ReLU, 30, 64, 2.0, 1),
    (nn.SELU, 30, 64, 1.0, 0),
    *[(make, depth, 64, None, depth) for make in (nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU) for depth in (2, 3, 4)],
]


def case_of(make: Make, depth: int, width: int, C_W: float | None, seed: int) -> Case:
    return Case(setup_of(network(make, depth, width, C_W, seed=seed), X, Y))


QUICK = {
    0,
    5,
    7,
    8,
    12,
    13,
}  # of the faults: small, falling, growing, saturating; the others are more of the same


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=() if place in QUICK else pytest.mark.statistical)
        for place, fault in enumerate(FAULTS)
    ],
    ids=str,
)
def test_planted_faults_are_found(fault: tuple[Make, int, int, float | None, int]) -> None:
    finding = check(case_of(*fault)).findings[0]
    assert finding.severity <= Severity.WARNING
    assert finding.treatment is not None
    assert finding.advice


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("healthy", HEALTHY, ids=str)
def test_healthy_networks_pass(healthy: tuple[Make, int, int, float | None, int]) -> None:
    finding = only(check(case_of(*healthy)))
    assert finding.severity > Severity.WARNING
    assert not finding.code


def test_the_same_weights_are_harmless_in_three_layers_and_fatal_in_thirty() -> None:
    severities = [only(check(case_of(nn.Tanh, depth, 64, None, 0))).severity for depth in (3, 10, 30)]
    assert severities == [Severity.GOOD, Severity.WARNING, Severity.CRITICAL]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "labels"),
    [
        ((nn.Tanh, 30, 32, 4.0, 0), True),
        ((nn.Sigmoid, 8, 64, 1.0, 0), False),
        *[
            pytest.param(fault, labels, marks=pytest.mark.statistical)
            for fault, labels in [
                ((nn.Tanh, 30, 64, 0.25, 0), False),
                ((nn.Tanh, 30, 64, 4.0, 0), False),
                ((nn.ReLU, 20, 64, 1.0, 0), True),
                ((nn.GELU, 20, 64, 0.7, 0), False),
                ((Erf, 20, 64, math.pi, 0), True),
                ((Sine, 20, 64, 0.25, 0), False),
            ]
        ],
    ],
    ids=str,
)
def test_the_advice_trains_better(fault: tuple[Make, int, int, float | None, int], labels: bool) -> None:
    make, depth, width, C_W, seed = fault
    x, y = task(labels)
    model = network(make, depth, width, C_W, outputs=3 if labels else 1, seed=seed)
    given, treated = with_and_without(check, model, x, y)
    assert treated < 0.75 * given


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("fault", [FAULTS[0], FAULTS[5], FAULTS[8], FAULTS[13]], ids=str)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_the_code_does_what_the_treatment_does(
    fault: tuple[Make, int, int, float | None, int], bias: bool, fresh: bool
) -> None:
    make, depth, width, C_W, seed = fault
    model = network(make, depth, width, C_W, seed=seed, bias=bias)
    plain = setup_of(model, X, Y)
    setup = Setup(plain.model, plain.task, plain.recipe, fresh=fresh)
    finding = check(Case(setup)).findings[0]
    assert finding.treatment is not None
    assert same_weights(run_code(finding, model, X), finding.treatment.apply(setup).model)


def test_half_trained_weights_are_rescaled_and_not_drawn() -> None:
    model = network(nn.Tanh, 20, 32, None)
    plain = setup_of(model, X, Y)
    setup = Setup(plain.model, plain.task, plain.recipe, fresh=False)
    treatment = check(Case(setup)).findings[0].treatment
    assert treatment is not None
    for name, after in treatment.apply(setup).model.named_parameters():
        before = model.get_parameter(name)
        ratio = (after / before).detach()
        assert float(ratio.std() if ratio.numel() > 1 else 0) < 1e-4 * float(ratio.mean())


@pytest.mark.statistical
def test_treated_layers_pass_gradients_at_their_size() -> None:
    for make, C_W in ((nn.Tanh, 0.25), (nn.ELU, 0.3), (Sine, 4.0)):
        case = case_of(make, 30, 128, C_W, 0)
        treatment = check(case).findings[0].treatment
        assert treatment is not None
        after = measure(chain_of(Case(treatment.apply(case.setup))), 0)
        assert 0.3 < after.gradient_ratio < 3
        assert after.distance_ratio > 0.3


def test_wanted_variances_of_known_activations() -> None:
    relu = find_wanted(chain_of(case_of(nn.ReLU, 5, 32, 1.0, 0)), True)
    assert [plan.C_W for plan in relu.layers[1:-1]] == pytest.approx([2.0] * 3, rel=1e-4)
    assert all(plan.C_b == 0 for plan in relu.layers)
    gelu = find_wanted(chain_of(case_of(nn.GELU, 5, 32, 1.0, 0)), True)
    assert pytest.approx(1.98306, rel=1e-4) == gelu.layers[1].C_W
    assert gelu.layers[1].C_b == pytest.approx(0.172922, rel=1e-4)
    sigmoid = find_wanted(chain_of(case_of(nn.Sigmoid, 5, 32, 1.0, 0)), True)
    assert not sigmoid.exists
    assert sigmoid.layers[1].centre == pytest.approx(0.5)


def test_predicted_signals_are_those_of_wide_networks() -> None:
    """Means over draws of wide networks within a few standard errors, gradients and distances alike."""
    found = [measure(chain_of(case_of(nn.Tanh, 8, 256, 0.6, seed)), seed) for seed in range(8)]
    chain = chain_of(case_of(nn.Tanh, 8, 256, 0.6, 0))
    theory = predict(chain.mlp, chain.inputs[:20]).signals
    for name in ("distance", "gradient"):
        values = np.array([getattr(one, name) / getattr(one, name)[0] for one in found])
        expected = getattr(theory, name) / getattr(theory, name)[0]
        error = values.std(0, ddof=1) / np.sqrt(len(values)) + 0.03 * expected
        assert np.all(np.abs(values.mean(0) - expected)[1:] < 4 * error[1:])


def test_measurements_are_labelled_and_near_the_theory() -> None:
    data = check(case_of(nn.Tanh, 12, 128, 1.0, 0)).data
    assert data is not None
    assert list(data["layer"].values) == list(range(1, 13))
    assert float(np.sqrt((data["K_z"] ** 2).mean())) < 3
    assert data["chi_perpendicular"].sizes == {"layer": 12}
    assert {"C_b", "C_W", "C_W_wanted", "K_measured", "K_theory", "K_deviation"} <= set(data)


def test_outputs_far_beyond_the_targets_are_told() -> None:
    model = network(nn.ReLU, 3, 64, 2.0)
    with torch.no_grad():
        model[4].weight.mul_(200)  # type: ignore[operator, union-attr]
    findings = check(Case(setup_of(model, X, Y))).findings
    assert [finding.severity for finding in findings] == [Severity.GOOD, Severity.WARNING]
    assert same_weights(
        run_code(findings[1], model, X), findings[1].treatment.apply(setup_of(model, X, Y)).model
    )  # type: ignore[union-attr]


def test_a_single_layer_is_not_judged() -> None:
    with pytest.raises(NotSupportedError, match="single linear layer"):
        check(Case(setup_of(nn.Linear(10, 1), X, Y)))
