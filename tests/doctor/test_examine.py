"""What the doctor takes, what it refuses and how, and that it changes nothing."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import foretrain as ft
from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.examine import Training, chosen_checks, diagnose, make_setup
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.proof import spare
from foretrain.doctor.setup import Case
from foretrain.support.errors import ForetrainError, InputError, NotSupportedError

X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
Y = X[:, :1] - X[:, 1:2]
RATE = 0.1


def network(outputs: int = 1) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, outputs))


def test_the_package_is_the_function_and_its_findings_are_sorted() -> None:
    found = ft.doctor(network(), X, Y, optimizer=RATE)
    severities = [finding.severity for finding in found.findings]
    assert severities == sorted(severities)
    assert len(found.examinations) == len(chosen_checks(None))
    assert all(one.findings or one.skipped for one in found.examinations.values())


def test_nothing_is_changed() -> None:
    model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 1))
    model.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    before, options = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.param_groups)
    x, y = X.clone(), Y.clone()
    state = torch.random.get_rng_state()
    found = ft.doctor(model, x, y, optimizer=optimizer)
    found.verify(steps=5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not model.training
    assert not optimizer.state
    assert [g["lr"] for g in optimizer.param_groups] == [g["lr"] for g in options]
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not model._forward_hooks
    assert all(parameter.grad is None for parameter in model.parameters())


def test_numpy_arrays_loaders_and_tensors_are_the_same_data() -> None:
    setups = [
        make_setup(network(), X, Y, Training(optimizer=RATE)),
        make_setup(network(), X.double().numpy(), Y.double().numpy(), Training(optimizer=RATE)),
        make_setup(
            network(), DataLoader(TensorDataset(X, Y), batch_size=8), training=Training(optimizer=RATE)
        ),
    ]
    for setup in setups:
        assert torch.allclose(setup.task.x, X)
        assert torch.allclose(setup.task.y, Y)
    assert [setup.batch_size for setup in setups] == [None, None, 8]


def test_numbers_may_be_of_numpy() -> None:
    own = make_setup(network(), X, Y, Training(optimizer=RATE, batch_size=8, seed=3))
    setup = make_setup(
        network(),
        X,
        Y,
        Training(optimizer=np.float64(RATE), batch_size=np.int64(8), seed=np.int64(3)),  # type: ignore[arg-type]
    )
    assert (
        (setup.batch_size, setup.seed, setup.recipe.rate) == (8, 3, RATE) == (own.batch_size, own.seed, RATE)
    )
    assert make_setup(network(), X, Y, Training(optimizer=np.float32(0.5))).recipe.rate == 0.5  # type: ignore[arg-type]


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("batch_size", "samples"), [(None, 5000), (50, 50)])
def test_half_the_sum_of_squares_is_that_of_a_step_however_few_samples_are_looked_at(
    batch_size: int | None, samples: int
) -> None:
    x = torch.randn(5000, 5, generator=torch.Generator().manual_seed(1))
    y = torch.cat([x[:, :1], x[:, :1] * x[:, 1:2]], 1)
    means, sums = (
        ft.doctor(
            network(2),
            x,
            y,
            loss=loss,
            optimizer=rate,
            batch_size=batch_size,
            checks=["learning_rate", "inputs"],
        )
        for loss, rate in (("mse", 0.1), ("squared_error", 0.1 / samples))  # 2 outputs, half
    )
    found, expected = (dict(d.examinations["learning_rate"].findings[0].numbers) for d in (sums, means))
    scale = {
        name: 1 / samples if name in ("rate", "recommended", "largest_rate") else 1.0 for name in expected
    }
    scaled = {name: scale[name] * value for name, value in expected.items()}
    assert found.pop("recommended") == pytest.approx(scaled.pop("recommended"), rel=1e-2)  # of three digits
    assert found == pytest.approx(scaled, rel=1e-3)
    assert [finding.severity for finding in sums.findings] == [finding.severity for finding in means.findings]
    assert "half the sum" in sums.setup.task.loss_name


def test_of_many_samples_a_part_is_taken_and_that_is_told() -> None:
    x = torch.randn(5000, 5)
    setup = make_setup(network(), x, x[:, :1], Training(optimizer=RATE))
    assert len(setup.task.x) == 4096
    (note,) = setup.notes
    assert "4096 of 5000 samples" in note
    assert torch.equal(setup.task.x[:, :1], setup.task.y)
    loader = DataLoader(TensorDataset(x, x[:, :1]), batch_size=1000)
    assert "first 5000" not in "".join(make_setup(network(), loader, training=Training(optimizer=RATE)).notes)
    longer = DataLoader(TensorDataset(torch.randn(6000, 5), torch.randn(6000, 1)), batch_size=1000)
    (note,) = make_setup(network(), longer, training=Training(optimizer=RATE)).notes
    assert "first 5000 samples" in note


def test_labels_choose_cross_entropy_and_numbers_the_mean_square() -> None:
    labels = torch.arange(40) % 3
    assert make_setup(network(3), X, labels, Training(optimizer=RATE)).task.loss_name == "cross-entropy"
    assert make_setup(network(), X, Y, Training(optimizer=RATE)).task.loss_name == "mean squared error"
    assert (
        make_setup(network(3), X, labels, Training(loss="cross-entropy", optimizer=RATE)).task.y.dtype
        == torch.int64
    )
    own = make_setup(network(), X, Y, Training(loss=lambda out, y: (out - y).abs().mean(), optimizer=RATE))
    assert own.task.value(own.model) == pytest.approx((network()(X) - Y).abs().mean().item())


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> dict[str, Any]:
        out = self.inner(x)
        return {"hidden": [x], "logits": out, "double": 2 * out}


def test_the_tensor_that_counts_is_chosen() -> None:
    model = Several()
    expected = model.inner(X)
    assert torch.equal(make_setup(model, X, Y, Training(optimizer=RATE)).model(X), expected)
    assert torch.equal(
        make_setup(model, X, Y, Training(optimizer=RATE, output="double")).model(X), 2 * expected
    )
    with pytest.raises(InputError, match="has no entry 'triple'"):
        make_setup(model, X, Y, Training(optimizer=RATE, output="triple"))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_alone_return_their_states(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    model = kind(3, 6, batch_first=True)
    x, y = torch.randn(7, 4, 3), torch.randn(7, 4, 6)
    setup = make_setup(model, x, y, Training(optimizer=RATE))
    assert torch.allclose(setup.model(x), model(x)[0])
    raw = Case(setup).raw_model(x)
    assert isinstance(raw, tuple)
    assert torch.allclose(raw[0], model(x)[0], atol=1e-6)


def test_time_first_modules_get_their_samples_first() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 7, 8), torch.randn(4, 7, 8)  # 4 steps of 7 samples
    for model in (
        nn.GRU(8, 8),
        nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 1, enable_nested_tensor=False),
    ):
        setup = make_setup(model.eval(), x, y, Training(optimizer=RATE))
        assert setup.task.x.shape == (7, 4, 8)
        result = model(x)
        expected = (result[0] if isinstance(result, tuple) else result).transpose(0, 1)
        assert torch.allclose(setup.model.eval()(setup.task.x), expected, atol=1e-6)


def test_language_models_have_their_classes_last() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(11, 6), nn.Linear(6, 11))
    tokens = torch.randint(11, (9, 5))
    setup = make_setup(model, tokens, tokens.roll(1, 1), Training(optimizer=RATE))
    expected = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
    assert setup.task.value(setup.model) == pytest.approx(expected.item())
    assert setup.task.x.dtype == torch.int64


def test_whole_numbers_go_into_a_network_of_real_ones() -> None:
    x = np.arange(200, dtype=np.uint8).reshape(40, 5)
    assert make_setup(network(), x, Y, Training(optimizer=RATE)).task.x.dtype == torch.float32


def test_what_has_begun_is_not_fresh() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    assert make_setup(model, X, Y, Training(optimizer=optimizer)).fresh
    nn.functional.mse_loss(model(X), Y).backward()
    optimizer.step()
    assert not make_setup(model, X, Y, Training(optimizer=optimizer)).fresh
    assert make_setup(model, X, Y, Training(optimizer=optimizer, fresh=True)).fresh
    normalised = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    assert make_setup(normalised, X, Y, Training(optimizer=RATE)).fresh
    normalised(X)
    assert not make_setup(normalised, X, Y, Training(optimizer=RATE)).fresh


def test_without_an_optimizer_the_rate_is_half_the_largest_stable_one() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(5, 1, bias=False).double()
    x = X.double()
    setup = make_setup(linear, x, Y)
    curvature = float(torch.linalg.eigvalsh(2 * x.T @ x / len(x))[-1])
    assert setup.recipe.chosen
    assert setup.recipe.rate == pytest.approx(1 / curvature, rel=0.02)


def test_the_same_seed_gives_the_same_findings() -> None:
    x = torch.randn(600, 5)
    for seed in (3, np.random.default_rng(3), None):
        setup = make_setup(network(), x, x[:, :1], Training(optimizer=RATE, seed=seed))
        assert torch.equal(Case(setup).chosen(50).x, Case(setup).chosen(50).x)


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such thing")


class Whole(Raises):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum() * self.weight.sum()


class Rounded(Raises):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(1)


def frozen() -> nn.Module:
    return network().requires_grad_(False)


def broken() -> nn.Module:
    model = network()
    model[0].weight.data[0, 0] = math.nan
    return model


def with_nan(values: Tensor) -> Tensor:
    changed = values.clone()
    changed[3] = math.nan
    return changed


LABELS = torch.arange(40) % 3
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not a module": ({"model": "resnet"}, "model is a str: give a torch.nn.Module"),
    "a function": ({"model": network}, "model is a function: give a torch.nn.Module"),
    "a lazy module": ({"model": nn.LazyLinear(1)}, "has no shape yet"),
    "nothing to train": ({"model": frozen()}, "nothing to train"),
    "no parameters": ({"model": nn.Tanh()}, "nothing to train"),
    "a broken weight": ({"model": broken()}, "0.weight has values that are infinite or not a number"),
    "on no device": ({"model": nn.Linear(5, 1, device="meta")}, "meta"),
    "a forward that raises": ({"model": Raises()}, "does not take x of shape"),
    "one number for all": ({"model": Whole()}, "one entry for each sample"),
    "whole-number outputs": ({"model": Rounded()}, "let it return real numbers"),
    "wrong inputs": ({"x": torch.randn(40, 7)}, r"does not take x of shape \(40, 7\)"),
    "different lengths": ({"y": Y[:30]}, "y has 30 samples and x 40"),
    "wrong targets": ({"y": torch.randn(40, 3)}, r"target has shape \(3,\) but an output \(1,\)"),
    "nothing": ({"x": X[:0], "y": Y[:0]}, "x is empty"),
    "text": ({"x": ["a", "b"]}, "x is a list: give an array"),
    "a number": ({"x": 3.0}, "x is a float"),
    "no targets": ({"y": None}, "y is missing"),
    "nan in x": ({"x": with_nan(X)}, "x has values that are infinite or not a number"),
    "nan in y": ({"y": with_nan(Y)}, "y has values that are infinite or not a number"),
    "labels out of range": (
        {"model": network(2), "y": LABELS},
        "labels run from 0 to 2, but the model has 2",
    ),
    "negative labels": (
        {"model": network(3), "y": LABELS - 1, "loss": "cross_entropy"},
        "labels run from -1",
    ),
    "a loss of that name": ({"loss": "mean"}, "unknown loss 'mean'"),
    "no loss": ({"loss": 3}, "loss is a int"),
    "a loss of many numbers": ({"loss": lambda out, y: (out - y) ** 2}, "average it over the data"),
    "a rate of nan": ({"optimizer": math.nan}, "optimizer is nan"),
    "a negative rate": ({"optimizer": -0.1}, "optimizer is -0.1"),
    "a rate that is true": ({"optimizer": True}, "optimizer is True"),
    "an optimizer's name": ({"optimizer": "adam"}, "optimizer is 'adam'"),
    "another's optimizer": (
        {"optimizer": torch.optim.SGD(network().parameters(), lr=0.1)},
        "not the model's",
    ),
    "no batch": ({"batch_size": 0}, "batch_size is 0"),
    "half a batch": ({"batch_size": 2.5}, "batch_size is 2.5"),
    "an unknown check": ({"checks": ["initialization"]}, "did you mean 'initialisation'"),
    "a negative seed": ({"seed": -1}, "seed is -1"),
    "a loader and targets": ({"x": DataLoader(TensorDataset(X, Y))}, "leave out y"),
    "several inputs of a model with one": ({"x": {"a": X}}, r"does not take x of shape a \(40, 5\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_sentence_that_says_what_to_do(case: str) -> None:
    changes, expected = REFUSED[case]
    arguments: dict[str, Any] = {"model": network(), "x": X, "y": Y, "optimizer": RATE} | changes
    with pytest.raises((InputError, NotSupportedError), match=expected) as caught:
        ft.doctor(arguments.pop("model"), arguments.pop("x"), arguments.pop("y"), **arguments)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "?"))


def test_loaders_without_pairs_or_samples_are_refused() -> None:
    with pytest.raises(InputError, match="pairs"):
        make_setup(network(), DataLoader(TensorDataset(X)), training=Training(optimizer=RATE))
    with pytest.raises(InputError, match="empty"):
        make_setup(network(), DataLoader(TensorDataset(X[:0], Y[:0])), training=Training(optimizer=RATE))


def test_a_check_that_does_not_apply_or_fails_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from foretrain.doctor.checks import inputs, modes

    def refuses(case: Case) -> Any:
        raise NotSupportedError("this is not for such models.")

    def fails(case: Case) -> Any:
        raise ZeroDivisionError("division by zero")

    monkeypatch.setattr(inputs, "check", refuses)
    monkeypatch.setattr(modes, "check", fails)
    setup = make_setup(network(), X, Y, Training(optimizer=RATE))
    with pytest.warns(RuntimeWarning, match="modes: This check failed") as warned:
        found = diagnose(setup, chosen_checks("modes, plateau,inputs")).examinations
    assert warned[0].filename == __file__
    assert list(found) == ["inputs", "plateau", "modes"]
    assert found["inputs"].skipped == "this is not for such models."
    (told,) = found["modes"].findings
    assert found["modes"].failed
    assert told.severity is Severity.NOTE
    assert "ZeroDivisionError: division by zero" in told.title
    assert "report" in told.advice
    assert "failed: modes" in Diagnosis(setup, found).headline
    assert found["plateau"].findings


def test_refusals_are_errors_of_foretrain() -> None:
    with pytest.raises(ForetrainError):
        ft.doctor(3, X, Y)  # type: ignore[arg-type]


def test_a_rate_of_zero_is_refused() -> None:
    model = network()
    with pytest.raises(InputError, match="learning rate is 0"):
        ft.doctor(model, X, Y, optimizer=torch.optim.SGD(model.parameters(), lr=0.0))


@pytest.mark.parametrize(("outputs", "message"), [(1, "one output is always 0"), (3, "values down to -")])
def test_cross_entropy_of_what_is_no_class_is_refused(outputs: int, message: str) -> None:
    y = torch.randn(40, outputs, generator=torch.Generator().manual_seed(1))
    with pytest.raises(InputError, match=message):
        ft.doctor(network(outputs), X, y, loss="cross_entropy")


@pytest.mark.parametrize("learned", [True, False])
def test_a_treatment_is_withheld_that_would_undo_what_was_learned(learned: bool) -> None:
    """Though the optimizer is new, so that nothing else tells that training has begun."""
    model = nn.Linear(5, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -1.0, 0.0, 0.0, 0.0]]) * (1 if learned else -1))
        model.bias.zero_()
    setup = make_setup(model, X, Y, Training(optimizer=RATE))
    cure = Treatment("weights tenfold", lambda given: given.rescaled({"weight": 10.0}))
    finding = Finding(Severity.WARNING, "Small", "", "", "Enlarge.", "model.weight.data *= 10", cure)
    (told,) = spare(Case(setup), Examination((finding,))).findings
    assert (told.treatment is None) == learned
    assert told.severity is (Severity.NOTE if learned else Severity.WARNING)
    assert told.advice.endswith("Enlarge.")
