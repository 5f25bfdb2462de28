"""Small layers hold a network on a plateau: the wait is predicted, found at all places, and removed."""

from __future__ import annotations

import math

import pytest
import torch
import xarray
from mlp_networks import final_loss
from planted_networks import chain, default_mlp, digits, mlp, regression
from torch import Tensor, nn

from foretrain.doctor.checks import plateau
from foretrain.doctor.checks.plateau import check
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Finding, Severity, counted
from foretrain.doctor.setup import Case, Setup
from foretrain.support.errors import NotSupportedError

Data = tuple[Tensor, Tensor]
GAINS = {nn.Tanh: 1.0, nn.ReLU: 2.0, nn.GELU: 2.0}


def planted(
    activation: type[nn.Module], data: Data, places: range, width: int = 48, seed: int = 0
) -> nn.Module:
    outputs = 10 if not data[1].is_floating_point() else 1
    model = mlp(chain(data[0].shape[1], width, 7, outputs), activation, GAINS[activation], seed=seed)
    with torch.no_grad():
        for place in places:
            model[2 * place].weight.mul_(0.1)
    return model


def examined(model: nn.Module, data: Data, **options: object) -> tuple[Setup, Finding]:
    setup = make_setup(model, *data, Training(**options))
    return setup, check(Case(setup)).findings[0]


@pytest.mark.parametrize("scale", [0.1, 0.4])
def test_the_figure_has_the_steps_that_the_finding_tells(scale: float) -> None:
    data = regression(100)
    model = mlp(chain(data[0].shape[1], 32, 7, 1), nn.Tanh, 1.0)
    with torch.no_grad():
        for place in range(1, 7):
            model[2 * place].weight.mul_(scale)
    # A rate far below the stable one, so that steps at the one and at the other differ.
    examination = check(Case(make_setup(model, *data, Training(optimizer=1e-4))))
    (finding,), measured = examination.findings, examination.data
    assert measured is not None
    followed = float(measured["given_step"][-1])
    assert f"{counted(followed)} steps of rate" in finding.evidence
    assert f"after {counted(float(measured['rescaled_step'][-1]))} steps." in finding.evidence
    assert finding.numbers["steps"] == followed
    assert measured.attrs["predicted_steps"] == finding.numbers["predicted_steps"]


@pytest.mark.parametrize(
    ("activation", "data", "places"),
    [
        (nn.Tanh, regression(100), range(1, 6)),
        pytest.param(nn.ReLU, digits(100), range(1, 6), marks=pytest.mark.statistical),
        pytest.param(nn.GELU, regression(200), range(3, 8), marks=pytest.mark.statistical),
        pytest.param(nn.Tanh, digits(200), range(3, 8), marks=pytest.mark.statistical),
        pytest.param(nn.ReLU, regression(200), range(2, 7), marks=pytest.mark.statistical),
    ],
)
def test_five_small_layers_of_eight_are_found_and_rescaled(activation, data, places) -> None:
    setup, found = examined(planted(activation, data, places), data, optimizer=0.02)
    assert found.severity <= Severity.WARNING, found
    assert found.where == tuple(f"{2 * place}.weight" for place in places)
    assert found.treatment is not None
    treated = found.treatment.apply(setup)
    again = check(Case(treated)).findings[0]
    assert again.severity is Severity.GOOD, again
    assert final_loss(treated, 60) < 0.9 * final_loss(setup, 60)


@pytest.mark.slow
def test_the_code_does_what_the_treatment_does() -> None:
    data = regression(100)
    model = planted(nn.Tanh, data, range(1, 6))
    setup, found = examined(model, data, optimizer=0.02)
    exec(found.code, {"torch": torch, "model": model})
    assert found.treatment is not None
    treated = found.treatment.apply(setup).model
    for given, wanted in zip(model.parameters(), treated.parameters(), strict=True):
        torch.testing.assert_close(given, wanted)


def test_the_wait_is_that_of_real_descent() -> None:
    data = regression(100)
    model = mlp(chain(10, 24, 2, 1), nn.Tanh, 1.0, seed=1)
    with torch.no_grad():
        for place in (0, 2, 4):
            model[place].weight.mul_(0.15)
            model[place].bias.requires_grad_(False)
    setup, found = examined(model, data, optimizer=0.02)
    copy = setup.with_weights(lambda _: None).model
    optimizer, level = torch.optim.SGD([p for p in copy.parameters() if p.requires_grad], lr=0.02), math.inf
    for step in range(20_000):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(copy(setup.task.x), setup.task.y)
        if loss.item() < 0.9 * found.numbers["level"]:
            level = step
            break
        loss.backward()
        optimizer.step()
    # Adaptive steps at a tolerance of a percent; on a saddle errors of the start are amplified.
    assert found.numbers["steps"] == pytest.approx(level, rel=0.1)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
@pytest.mark.parametrize("hidden", [1, pytest.param(4, marks=pytest.mark.statistical)])
def test_usual_networks_have_no_plateau(activation, hidden) -> None:
    for data, outputs in ((digits(100), 10), (regression(100), 1)):
        sizes = chain(data[0].shape[1], 64, hidden, outputs)
        for model in (default_mlp(sizes, activation), mlp(sizes, activation, GAINS[activation])):
            _, found = examined(model, data, optimizer=0.05)
            assert found.severity is Severity.GOOD, found


@pytest.mark.statistical
def test_adam_is_told_what_descent_would_do() -> None:
    data = regression(200)
    model = planted(nn.GELU, data, range(1, 6))
    adam = torch.optim.Adam(model.parameters(), lr=1e-3)
    setup, found = examined(model, data, optimizer=adam)
    assert found.severity is Severity.WARNING
    assert "plain descent" in found.title
    assert found.treatment is not None
    assert final_loss(found.treatment.apply(setup), 60) < final_loss(setup, 60)
    usual = default_mlp(chain(10, 64, 7, 1), nn.GELU)
    _, mild = examined(usual, data, optimizer=torch.optim.Adam(usual.parameters(), lr=1e-3))
    assert mild.severity >= Severity.NOTE, mild


@pytest.mark.slow
def test_measurements_are_labelled() -> None:
    data = regression(100)
    setup = make_setup(planted(nn.Tanh, data, range(1, 6)), *data, Training(optimizer=0.02))
    seen = check(Case(setup)).data
    assert seen is not None
    assert seen["relative_scale"].sel(layer="2.weight") == pytest.approx(0.07, abs=0.02)
    assert int(seen["at_bottleneck"].sum()) == 5
    assert seen["given_loss"].values[0] == pytest.approx(setup.task.value(setup.model), rel=1e-4)


def test_what_does_not_apply_is_refused_in_a_sentence() -> None:
    x = torch.randn(8, 5, 3)
    with pytest.raises(NotSupportedError, match="memory"):
        examined(nn.GRU(3, 4, batch_first=True), (x, torch.randn(8, 5, 4)), optimizer=0.1)
    normalised = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    with pytest.raises(NotSupportedError, match="normalisation"):
        examined(normalised, (torch.randn(8, 3), torch.randn(8, 1)), optimizer=0.1)


def test_frozen_parameters_and_a_half_trained_network() -> None:
    data = regression(100)
    model = default_mlp(chain(10, 32, 2, 1), nn.Tanh)
    model[0].weight.requires_grad_(False)
    setup, found = examined(model, data, optimizer=0.1)
    assert found.severity is Severity.GOOD
    optimizer = setup.recipe.build(setup.model)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.mse_loss(setup.model(data[0]), data[1]).backward()
        optimizer.step()
    _, later = examined(setup.model, data, optimizer=0.1)
    assert later.severity is Severity.GOOD
    assert later.numbers["steps"] == 0


def test_a_flow_in_two_parts_is_that_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = regression(60)
    case = Case(make_setup(mlp(chain(10, 16, 3, 1), nn.Tanh, 0.2), *data, Training(optimizer=0.02)))
    task, below = case.chosen(60), 0.3
    whole = plateau._flow(case, task, below, plateau._EVALUATIONS)
    monkeypatch.setattr(plateau, "_FIRST_EVALUATIONS", 30)
    parts = plateau._flow(case, task, below, plateau._EVALUATIONS)
    assert whole[2], "it leaves within the first part"
    assert parts[2]
    assert len(parts[0]) == len(parts[1])
    assert (parts[0][1:] > parts[0][:-1]).all()
    assert parts[0][-1] == pytest.approx(whole[0][-1], rel=0.1)


@pytest.mark.slow
def test_where_larger_layers_wait_as_well_their_scale_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plateau, "_EVALUATIONS", 30)
    monkeypatch.setattr(plateau, "_FIRST_EVALUATIONS", 30)
    _, found = examined(mlp(chain(10, 16, 20, 1), nn.Tanh, 0.2), regression(60), optimizer=0.02)
    assert found.severity is Severity.GOOD
    assert "not why" in found.title
    assert "not left" in found.evidence


@pytest.mark.parametrize(("rate", "still"), [(-1e-11, True), (-1e-3, False), (0.0, True)])
def test_a_flow_that_stands_still_is_given_up(rate: float, still: bool) -> None:
    """After a time of 100 at a distance of 0.3: the first would need 3e10."""
    flow = xarray.Dataset(
        {"time": ("step", [0.0, 100.0]), "loss": ("step", [2.4, 2.3]), "loss_rate": ("step", [-1.0, rate])}
    )
    assert plateau._stands_still(flow, 2.0) is still
