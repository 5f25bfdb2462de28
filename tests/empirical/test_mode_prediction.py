"""Forecasts of learned modes: exact for linear models, against dense kernels, and as wide networks are trained."""

from __future__ import annotations

import copy
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.global_ntk import global_ntk
from foretrain.empirical.mode_prediction import PREDICTORS, proxy_product
from foretrain.empirical.mode_prediction import predict_modes as forecast
from foretrain.empirical.target_modes import target_modes
from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.training.tasks.memory_pro import Cell, MemoryPro, Recurrent

Array = NDArray[np.float64]
TASK = MemoryPro(2, 1, 2)


predict_modes = partial(
    forecast, components="target", rehearsal=0
)  # frozen kernels and singular modes of the whole


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def memory_pro(count: int = 4, task: MemoryPro = TASK) -> tuple[Tensor, Tensor]:
    angles = task.angles(count)
    return task.inputs(angles, dtype=torch.float64), task.targets(angles, dtype=torch.float64)


def network(cell: Cell, units: int = 5, gain: float = 1.5, seed: int = 1) -> Recurrent:
    return Recurrent(3, units, 3, cell, gain=gain, seed=seed, dtype=torch.float64)


def trained(model: nn.Module, x: Tensor, y: Tensor, lr: float, steps: int, half_sum: bool = False) -> Tensor:
    """Outputs after plain gradient descent."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        squares = (model(x) - y).square()
        (squares.sum() / 2 if half_sum else squares.mean()).backward()
        optimizer.step()
    return model(x).detach()


def dense(model: nn.Module, x: Tensor) -> Array:
    """J J^T over all outputs, from a Jacobian written out."""
    parameters = dict(model.named_parameters())
    jacobian = torch.func.jacrev(lambda values: torch.func.functional_call(model, values, (x,)).flatten())(
        parameters
    )
    rows = torch.cat([part.detach().flatten(1) for part in jacobian.values()], 1).numpy()
    return np.asarray(rows @ rows.T)


def shares(y: Tensor, outputs: Tensor, modes: int = 3) -> Array:
    """By the singular value decomposition itself; targets here have no equal singular values."""
    left, values, right = np.linalg.svd(y.reshape(-1, y.shape[-1]).numpy(), full_matrices=False)
    misfit = (y - outputs).reshape(-1, y.shape[-1]).detach().numpy()
    return np.array([left[:, i] @ misfit @ right[i] / values[i] for i in range(modes)])


@pytest.mark.parametrize("half_sum", [False, True])
def test_a_linear_model_is_foretold_exactly(half_sum: bool) -> None:
    model, x, y = nn.Linear(4, 3).double(), drawn(10, 6, 4), drawn(10, 6, 3, seed=1)
    lr, steps = (0.004, 0.2)[not half_sum], (0, 1, 7, 60)
    loss = "squared_error" if half_sum else "mse"
    found = predict_modes(model, x, y, lr, steps, loss, accuracy=1e-12)
    for place, count in enumerate(steps):
        expected = shares(y, trained(model, x, y, lr, count, half_sum))
        np.testing.assert_allclose(found.residual["linearised"][:, place], expected, atol=1e-8)
    assert abs(found.residual["linearised"][0, -1]) < abs(found.initial[0])
    np.testing.assert_allclose(found.residual["flow"][:, 0], found.initial, atol=1e-12)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
def test_products_give_what_the_dense_kernel_gives(cell: Cell) -> None:
    model, (x, _), lr, steps = network(cell), memory_pro(), 0.05, np.array([1, 20, 3000])
    y = drawn(*x.shape, seed=3)
    found = predict_modes(model, x, y, lr, steps.tolist(), accuracy=1e-11)
    kernel, misfit = dense(model, x), (y - model(x)).detach().numpy().ravel()
    values, vectors = np.linalg.eigh(kernel)
    rates = 2 / y.numel() * lr * np.maximum(values, 0)
    assert found.largest_rate == pytest.approx(y.numel() / values[-1])
    for name, factors in (
        ("linearised", (1 - rates[:, None]) ** steps),
        ("flow", np.exp(-rates[:, None] * steps)),
    ):
        left = vectors @ (factors * (vectors.T @ misfit)[:, None])
        for place in range(3):
            expected = shares(y, y - torch.from_numpy(left[:, place].reshape(y.shape)))
            np.testing.assert_allclose(found.residual[name][:, place], expected, atol=1e-8)
    modes = target_modes(y.reshape(-1, 3).numpy()).vectors
    np.testing.assert_allclose(found.rayleigh, np.einsum("mi,ij,mj->m", modes, kernel, modes), rtol=1e-10)
    alone = found.initial[:, None] * np.exp(-2 / y.numel() * lr * found.rayleigh[:, None] * steps)
    np.testing.assert_allclose(found.residual["rayleigh"], alone, rtol=1e-9)
    half = found.initial[:, None] * 0.5 ** (steps / found.half_time[:, None])
    np.testing.assert_allclose(found.residual["rayleigh"], half, rtol=1e-9)


@pytest.mark.parametrize("cell", ["rnn", "gru"])
def test_the_rate_of_a_mode_is_the_self_referential_form(cell: Cell) -> None:
    """<m, Theta m> = sum over weight sites of |(V* (x) I) adj|^2 (Cor. 2), and the readout's part."""
    model, (x, y) = network(cell), memory_pro()
    found = predict_modes(model, x, y, 0.1, 1)
    modes = torch.from_numpy(target_modes(y.reshape(-1, 3).numpy()).vectors).reshape(3, *y.shape)
    kernel = global_ntk(model, x)
    recurrent = [name for name in found.by_parameter if name.startswith("recurrent.")]
    for place, mode in enumerate(modes):
        err = (mode @ model.readout.weight.detach()).reshape(1, -1)
        rate = 0.0
        for site in kernel.sites.values():
            adjoint = site.propagate_adjoint(err).reshape(len(site.inputs), -1)
            rate += float((site.inputs.T @ adjoint).square().sum())
        assert rate == pytest.approx(sum(found.by_parameter[name][place] for name in recurrent))
        assert rate == pytest.approx(kernel.loss_decrease(err.reshape(kernel.states.shape)).total)
        states = kernel.states.flatten(0, 1)
        own = (states.T @ mode.flatten(0, 1)).square().sum()
        assert found.by_parameter["readout.weight"][place] == pytest.approx(float(own))


def test_a_mode_by_itself_is_not_faster_than_its_rate() -> None:
    """Jensen's inequality, for a target of one mode and outputs that are zero at the start."""
    model, (x, _) = network("gru"), memory_pro()
    nn.init.zeros_(model.readout.weight)
    y = drawn(*x.shape[:2], 1, seed=5) * drawn(3, seed=6)
    found = predict_modes(model, x, y, 0.5, [1, 10, 100, 1000])
    assert found.initial == pytest.approx([1])
    assert (found.residual["flow"] > found.residual["rayleigh"]).all()


@pytest.mark.parametrize("last", [False, True])
def test_the_proxy_is_its_kronecker_products(last: bool) -> None:
    class Answer(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            found = super().forward(x)
            return found[:, -1] if last else found

    model, (x, y) = Answer(3, 5, 3, "gru", gain=1.5, dtype=torch.float64), memory_pro()
    y = y[:, -1] if last else y
    states = model.recurrent(x)[0].detach()
    before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
    ones = torch.ones_like(states[..., :1])
    kept = slice(-1, None) if last else slice(None)
    sites = torch.cat([before, ones, x, ones], -1)[:, kept].flatten(0, 1).numpy()
    own = torch.cat([states, ones], -1)[:, kept].flatten(0, 1).numpy()
    weight = model.readout.weight.detach().numpy()
    expected = np.kron(sites @ sites.T, weight @ weight.T) + np.kron(own @ own.T, np.eye(3))
    product = proxy_product(model, x, (len(sites), 3))
    assert product is not None
    np.testing.assert_allclose(product(np.eye(len(expected))), expected, atol=1e-12)
    found = predict_modes(model, x, y, 0.1, 50, accuracy=1e-10)
    values, vectors = np.linalg.eigh(expected)
    misfit = (y - model(x)).detach().numpy().ravel()
    left = vectors @ (np.exp(-0.1 * 50 * 2 / y.numel() * np.maximum(values, 0)) * (vectors.T @ misfit))
    told = target_modes(y.reshape(-1, 3).numpy()).shares(left)
    np.testing.assert_allclose(found.residual["proxy"][:, 0], told, atol=1e-8)


def test_frozen_weights_do_not_count() -> None:
    model, (x, y) = network("rnn"), memory_pro()
    model.readout.requires_grad_(False)
    found = predict_modes(model, x, y, 0.1, [5])
    assert not any(name.startswith("readout") for name in found.by_parameter)
    states = model.recurrent(x)[0].detach()
    before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
    ones = torch.ones_like(states[..., :1])
    sites = torch.cat([before, x, ones, ones], -1).flatten(0, 1).numpy()
    product = proxy_product(model, x, (len(sites), 3))
    assert product is not None
    weight = model.readout.weight.numpy()
    np.testing.assert_allclose(
        product(np.eye(3 * len(sites))), np.kron(sites @ sites.T, weight @ weight.T), atol=1e-12
    )


def test_models_without_a_linear_readout_have_no_proxy() -> None:
    model = nn.Sequential(network("rnn"), nn.Tanh())
    found = predict_modes(model, *memory_pro(), 0.1, [5, 10])
    assert np.isnan(found.residual["proxy"]).all()
    assert not found.learned["proxy"].any()
    assert np.isfinite(found.residual["flow"]).all()


def test_a_wide_spectrum_does_not_end_the_search_early() -> None:
    """Long before small eigenvalues are found, the large ones say that nothing is left."""
    scales = torch.logspace(3, -2, 60, dtype=torch.float64)
    model, x, y = nn.Linear(60, 1, bias=False).double(), torch.diag(scales), torch.ones(60, 1).double()
    nn.init.zeros_(model.weight)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        found = predict_modes(model, x, y, 1.0, 1000, "squared_error", accuracy=1e-9)
    expected = float(torch.exp(-scales.square() * 1000).mean())
    assert expected > 0.05
    assert found.residual["flow"][0, 0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_above_the_largest_rate_descent_diverges_and_flow_does_not() -> None:
    model, (x, y) = network("gru"), memory_pro()
    edge = predict_modes(model, x, y, 0.1, 1).largest_rate
    below, above = (predict_modes(model, x, y, factor * edge, 100_000) for factor in (0.99, 1.01))
    assert np.abs(below.residual["linearised"]).max() < 1 < np.abs(above.residual["linearised"]).min()
    assert not above.learned["linearised"].any()
    assert np.abs(above.residual["flow"]).max() < 1
    assert "diverges" in repr(above)
    assert "diverges" not in repr(below)


@pytest.mark.statistical
def test_wide_networks_follow_the_forecast() -> None:
    """The gap between the forecast and gradient descent falls as one over the width."""
    (x, y), gaps = memory_pro(), []
    target = target_modes(y.reshape(-1, 3).numpy())
    for units in (16, 64, 256):
        single = []
        for seed in range(4):
            model = network("rnn", units, 1.5, seed)
            lr = 0.3 * predict_modes(model, x, y, 1.0, 1).largest_rate
            found = predict_modes(model, x, y, lr, 60).residual["linearised"][:, 0]
            left = target.shares((y - trained(model, x, y, lr, 60)).numpy().ravel())
            single.append(np.abs(found - left).max())
            assert np.abs(left).max() < 0.7  # something was learned, so that there is something to foretell
        gaps.append(np.mean(single))
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2]
    assert gaps[2] < 0.01


def test_modes_of_the_task_lie_along_its_outputs() -> None:
    _, y = memory_pro(8, MemoryPro(3, 2, 3))
    found = target_modes(y.reshape(-1, 3).numpy())
    np.testing.assert_allclose(np.abs(found.right), np.eye(3)[[2, 0, 1]], atol=1e-12)
    np.testing.assert_allclose(found.values, [np.sqrt(8 * 5), np.sqrt(4 * 3), np.sqrt(4 * 3)])
    np.testing.assert_allclose(found.left @ found.left.T, np.eye(3), atol=1e-12)


def test_modes_of_any_target_are_singular_vectors() -> None:
    matrix = drawn(7, 4).numpy()
    found = target_modes(matrix, 4)
    np.testing.assert_allclose(found.left.T * found.values @ found.right, matrix, atol=1e-12)
    np.testing.assert_allclose(found.vectors @ found.vectors.T, np.eye(4), atol=1e-12)
    np.testing.assert_allclose(found.shares(matrix.ravel()), 1)
    assert len(target_modes(np.outer([1.0, 2], [1.0, 0, 1])).values) == 1
    assert repr(target_modes(np.diag([3.0, 2.0]))).startswith(
        "TargetModes of 2 places x 2 outputs: singular values 3, 2\n"
    )


def test_labels_and_words() -> None:
    found = predict_modes(network("gru"), *memory_pro(), 0.1, [10, 1000], threshold=0.3)
    data = found.to_dataset()
    assert data.residual.dims == ("predictor", "mode", "steps")
    assert tuple(data.predictor.values) == PREDICTORS == tuple(found.residual)
    np.testing.assert_array_equal(
        data.residual.sel(predictor="flow", steps=1000), found.residual["flow"][:, 1]
    )
    np.testing.assert_allclose(data.rayleigh.sum("parameter"), found.rayleigh)
    assert data.attrs["threshold"] == 0.3
    assert "mode 1" in repr(found)
    expected = np.where(
        found.learned["flow"], "learned", "undecided"
    )  # kernels grow: what is not learned yet may be
    np.testing.assert_array_equal(found.verdict, np.where(np.array([[True, False]]), found.verdict, expected))


def test_modes_by_trial_are_orthogonal_and_add_up() -> None:
    """A contrast between trials that singular vectors of the whole mix with what trials share."""
    share, contrast = drawn(1, 5, 2), drawn(6, 1, 1, seed=1)
    y = (share + (contrast - contrast.mean()) * torch.tensor([1.0, -1.0])).numpy()
    found = target_modes(y, 2, "trials")
    assert found.names == ("mean 1", "mean 2", "deviation")
    assert found.values[:2] == pytest.approx(np.sqrt(6) * np.linalg.svd(share[0].numpy())[1])
    np.testing.assert_allclose(found.vectors @ found.vectors.T, np.eye(3), atol=1e-12)
    np.testing.assert_allclose((found.vectors.T * found.values).sum(1), y.ravel(), atol=1e-12)
    np.testing.assert_allclose(found.shares(y), 1)
    parts = {"share": share.expand(6, 5, 2), "contrast": y - share.numpy()}
    own = target_modes(y, 2, parts)
    assert own.names == ("share 1", "share 2", "contrast")
    np.testing.assert_allclose(np.abs(own.vectors @ found.vectors.T), np.eye(3), atol=1e-12)
    assert target_modes(y, 1, [y, parts["contrast"]]).names == ("component 1", "component 2")
    with pytest.raises(InputError, match="nothing of the component 'other'"):
        target_modes(y, 1, {"other": (contrast - contrast.mean()).numpy() * np.ones((6, 5, 2))})
    with pytest.raises(InputError, match="did you mean 'trials'"):
        target_modes(y, 1, "trial")


def test_a_mask_is_a_loss_over_some_places() -> None:
    """A linear model on counted entries alone, and weights as repeated samples."""
    model, x, y = nn.Linear(4, 3).double(), drawn(10, 4), drawn(10, 3, seed=1)
    mask = torch.tensor([1.0, 1, 0, 1, 0, 1, 1, 1, 0, 1])
    kept = mask > 0
    missing = torch.where(kept[:, None], y, torch.nan)
    found = predict_modes(model, x, missing, 0.2, 30, mask=mask)
    alone = predict_modes(model, x[kept], y[kept], 0.2, 30)
    for name in ("linearised", "flow", "rayleigh"):
        np.testing.assert_allclose(found.residual[name], alone.residual[name], rtol=1e-6)
    twice = torch.cat([torch.arange(10), torch.tensor([0, 3])])
    weights = torch.ones(10)
    weights[[0, 3]] = 2
    weighed = forecast(model, x, y, 0.2, 30, mask=weights, modes=1)
    repeated = forecast(model, x[twice], y[twice], 0.2, 30, modes=1)
    assert weighed.modes == repeated.modes == ("mean", "deviation")
    for name in ("linearised", "rayleigh", "rehearsal"):
        np.testing.assert_allclose(np.abs(weighed.residual[name]), np.abs(repeated.residual[name]), rtol=1e-6)
    for wrong in (torch.ones(9), -mask, 0 * mask):
        with pytest.raises(InputError, match="mask"):
            predict_modes(model, x, y, 0.2, 30, mask=wrong)


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_what_is_rehearsed_in_single_steps_is_the_training(kind: str) -> None:
    model, (x, y) = network("gru"), memory_pro()
    options = {"adam": {"optimizer": "adam"}, "momentum": {"momentum": 0.9}}.get(kind, {})
    lr, steps = {"sgd": 0.5, "momentum": 0.05, "adam": 0.01}[kind], [3, 30]
    before = copy.deepcopy(model.state_dict())
    found = forecast(model, x, y, lr, steps, rehearsal=31, **options)
    assert all(bool((before[name] == value).all()) for name, value in model.state_dict().items())
    private = copy.deepcopy(model)
    make = torch.optim.Adam if kind == "adam" else torch.optim.SGD
    optimizer = make(private.parameters(), lr=lr, **({"momentum": 0.9} if kind == "momentum" else {}))
    target = target_modes(y.numpy(), components="trials")
    for step in range(31):
        outputs = private(x)
        if step in steps:
            left = target.shares((y - outputs.detach()).numpy())
            np.testing.assert_allclose(found.residual["rehearsal"][:, steps.index(step)], left, rtol=1e-9)
        optimizer.zero_grad()
        (outputs - y).square().mean().backward()
        optimizer.step()
    np.testing.assert_array_equal(found.verdict == "learned", found.learned["rehearsal"])
    assert found.rehearsed == 30
    assert np.isnan(found.residual["flow"]).all() == (kind == "adam")


def test_momentum_of_a_frozen_kernel_is_exact_for_linear_models() -> None:
    model, x, y = nn.Linear(4, 3).double(), drawn(10, 6, 4), drawn(10, 6, 3, seed=1)
    found = predict_modes(model, x, y, 0.02, [1, 40], momentum=0.8, accuracy=1e-12)
    seen = forecast(model, x, y, 0.02, [1, 40], momentum=0.8, components="target", rehearsal=41)
    np.testing.assert_allclose(found.residual["linearised"], seen.residual["rehearsal"], atol=1e-8)
    assert found.largest_rate == pytest.approx(1.8 * predict_modes(model, x, y, 0.02, 1).largest_rate)


def test_longer_steps_follow_the_training_and_turn_back_where_they_climb() -> None:
    model, (x, y) = network("gru", 16), memory_pro()
    edge = predict_modes(model, x, y, 0.1, 1).largest_rate
    found = forecast(model, x, y, 0.02 * edge, 400, rehearsal=40)
    whole = forecast(model, x, y, 0.02 * edge, 400, rehearsal=401)
    assert found.gradients <= 40
    assert found.rehearsed >= 400
    np.testing.assert_allclose(found.residual["rehearsal"], whole.residual["rehearsal"], atol=0.02)
    steep = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(steep.weight)
    lost = forecast(steep, torch.ones(1, 1), torch.ones(1, 1), 3.0, 500, rehearsal=400)
    assert lost.verdict.tolist() == [["not learned"]]  # plain descent diverges, and that is seen


def test_beyond_the_horizon_nothing_is_decided_but_what_is_learned() -> None:
    layer = nn.Linear(2, 2, bias=False).double()
    nn.init.zeros_(layer.weight)
    x, y = torch.diag(torch.tensor([1.0, 0.01])).double(), torch.diag(torch.tensor([2.0, 1.0])).double()
    edge = predict_modes(layer, x, y, 0.1, 1).largest_rate
    found = forecast(layer, x, y, 0.9 * edge, [10, 45, 100_000], components="target", rehearsal=11)
    assert (found.rehearsed, found.horizon) == (10, 50)
    assert found.verdict.tolist() == [["learned"] * 3, ["not learned", "not learned", "undecided"]]
    assert found.kernel_holds == 10  # of a linear model it never moves
    assert "1 undecided" in repr(found)


def test_a_fitted_target_has_nothing_left() -> None:
    model, (x, _) = network("rnn"), memory_pro()
    found = predict_modes(model, x, model(x).detach(), 0.1, 3)
    np.testing.assert_allclose(found.residual["linearised"], 0, atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"y": torch.zeros(4, 5, 3)}, "zero everywhere"),
        ({"y": torch.ones(4, 5, 2)}, "one target"),
        ({"y": torch.full((4, 5, 3), torch.nan)}, "nan or infinite"),
        ({"lr": 0.0}, "positive"),
        ({"steps": -1}, "whole number"),
        ({"steps": 2.5}, "whole number"),
        ({"steps": []}, "whole number"),
        ({"loss": "squared_eror"}, "did you mean 'squared_error'"),
        ({"threshold": 1.0}, "between 0 and 1"),
        ({"modes": 0}, "modes is 0"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"optimizer": "adam", "momentum": 0.5}, "betas"),
        ({"rehearsal": -1}, "rehearsal"),
    ],
)
def test_bad_input(changes: dict[str, object], words: str) -> None:
    x, y = memory_pro()
    given = {"x": x, "y": y, "lr": 0.1, "steps": 5} | changes
    with pytest.raises(InputError, match=words):
        predict_modes(network("rnn"), **given)
