"""Models and inputs that have no kernel are refused by name, with the remedy in the sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from brute_force import assert_equal, brute_force, normal, ready, tokens
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretrain.empirical.tangent_kernel import ntk
from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError

X = normal(5, 3)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def after(layer: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2))


def refused(
    model: Any, x: Any, words: str, error: type[Exception] = NotSupportedError, **options: Any
) -> None:
    with pytest.raises(error, match=words) as caught:
        ntk(model, x, **options)
    assert str(caught.value).endswith((".", "?"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "layer",
    [nn.Dropout(0.1), nn.AlphaDropout(0.2), nn.FeatureAlphaDropout(0.3), nn.RReLU(), nn.Dropout1d(0.5)],
)
def test_dropout_in_training_mode(layer: nn.Module) -> None:
    model = ready(after(layer)).train()
    refused(model, X, rf"1 \({type(layer).__name__}\).*model\.eval\(\)")
    ntk(model.eval(), X)


def test_dropout_that_drops_nothing_is_fine() -> None:
    model = ready(after(nn.Dropout(0.0))).train()
    assert_equal(ntk(model, X).values, brute_force(model, X))
    assert model.training


@pytest.mark.parametrize(
    ("layer", "called"),
    [
        (lambda: nn.MultiheadAttention(4, 2, dropout=0.1), "the model"),
        (lambda: nn.GRU(3, 4, num_layers=2, dropout=0.1), "the model"),
        (lambda: nn.TransformerEncoderLayer(4, 2, 6), "self_attn|dropout"),
    ],
)
def test_dropout_inside_layers(layer: Callable[[], nn.Module], called: str) -> None:
    refused(ready(layer).train(), X, rf"({called}).*model\.eval\(\)")


def test_dropout_as_a_function_is_found_by_its_randomness() -> None:
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 8)

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(self.layer(x), 0.5, training=True)

    refused(ready(Functional), X, "different outputs.*switch off what is random")


def test_noise_in_the_model() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x + torch.randn_like(x))

    refused(ready(Noisy), X, "switch off what is random")


def test_a_model_that_changes_with_every_call() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(3, 2), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.layer(x) * self.calls

    refused(ready(Counting), X, "changes with every call")


def test_batch_norm_in_training_mode() -> None:
    model = ready(after(nn.BatchNorm1d(4))).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    refused(model, X, r"1 \(BatchNorm1d\).*model\.eval\(\)")
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_batch_norm_without_statistics() -> None:
    model = ready(after(nn.BatchNorm1d(4, track_running_stats=False)))
    refused(model, X, "BatchNorm1d.*track_running_stats")


class Coupled(nn.Module):
    def __init__(self, way: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(3, 2), way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.layer(x))


@pytest.mark.parametrize(
    "way",
    [
        lambda y: y - y.mean(0),
        lambda y: y / y.norm(),
        lambda y: y.softmax(0),
        lambda y: y @ (y.T @ y),
        lambda y: y.cumsum(0),
        lambda y: y.flip(0),
        lambda y: y.roll(1, 0),
        lambda y: y + y[:1].detach(),
        lambda y: y * y[-1:],
    ],
)
@pytest.mark.parametrize("count", [2, 3, 7])
def test_samples_that_see_each_other(way: Callable[[Tensor], Tensor], count: int) -> None:
    refused(ready(lambda: Coupled(way)), normal(count, 3), "other samples of its batch.*batch_axis=")


def test_attention_over_the_batch_axis() -> None:
    model = ready(lambda: nn.TransformerEncoderLayer(4, 2, 6))  # takes (positions, samples, features)
    refused(model, normal(4, 3, 4), "batch_axis=")
    assert_equal(
        ntk(model, normal(4, 3, 4), batch_axis=np.int64(1)).values,
        brute_force(model, normal(4, 3, 4), axis=1),
    )


def test_recurrence_over_the_batch_axis() -> None:
    refused(ready(lambda: nn.LSTM(3, 2)), normal(4, 5, 3), "batch_axis=", output=0)


@pytest.mark.parametrize("way", [lambda y: y.argmax(-1, keepdim=True), lambda y: y > 0, lambda y: y.long()])
def test_outputs_without_derivative(way: Callable[[Tensor], Tensor]) -> None:
    refused(ready(lambda: Coupled(way)), X, "has no derivative.*output=")


def test_complex_outputs() -> None:
    refused(ready(lambda: Coupled(lambda y: y * 1j)), X, "complex.*output=")


def test_complex_parameters() -> None:
    weight = torch.complex(normal(3, 2), normal(3, 2, seed=1)).requires_grad_()
    words = "'parameters' is complex.*two real parameters"
    refused(lambda w, x: (x.to(w) @ w).abs(), X, words, parameters=weight)


@pytest.mark.parametrize("way", [lambda y: y.detach(), lambda y: torch.zeros_like(y), lambda y: y.data])
def test_outputs_cut_from_the_parameters(way: Callable[[Tensor], Tensor]) -> None:
    refused(ready(lambda: Coupled(way)), X, "does not depend differentiably.*detach")


def test_a_model_that_runs_without_gradients() -> None:
    class Without(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    refused(ready(Without), X, "no_grad")


def test_gradients_may_be_off_outside() -> None:
    model = ready(network)
    with torch.no_grad():
        kernel = ntk(model, X)
    assert_equal(kernel.values, brute_force(model, X))


def test_gradients_may_be_forbidden_outside() -> None:
    model = ready(network)
    with torch.inference_mode():
        values = np.asarray(ntk(model, X))
    assert_equal(torch.from_numpy(values), brute_force(model, X))


def test_everything_frozen() -> None:
    refused(ready(network).requires_grad_(False), X, "requires_grad.*unfreeze", InputError)


def test_chosen_parameters_that_do_not_matter() -> None:
    model = ready(network)
    model.extra = nn.Parameter(torch.zeros(2))
    assert_equal(ntk(model, X, parameters="0.*").values, ntk(ready(network), X, parameters="0.*").values)
    kernel = ntk(model, X, parameters="extra")
    assert not kernel.values.any()
    assert kernel.routes["extra"].way == "unused"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_inputs_that_are_not_finite(bad: float) -> None:
    x = X.clone()
    x[2, 1] = bad
    refused(ready(network), x, "nan or infinite.*remove or replace", InputError)
    refused(ready(network), X, "nan or infinite", InputError, x2=x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(bad: float) -> None:
    model = ready(network)
    with torch.no_grad():
        model[2].weight[0, 0] = bad
    refused(model, X, "outputs are not finite.*weights")


def test_an_output_that_is_not_finite_for_one_sample() -> None:
    # Sample 1 is not among those that are looked at first.
    x = X.clone()
    x[1] = 0
    model = ready(lambda: nn.Linear(3, 2, bias=False))
    for size in ("auto", 1, 2):
        refused(model, x, "not finite", output=lambda y: 1 / y, batch_size=size)


@pytest.mark.parametrize("kind", [np.zeros((3, 3)), 5, "x", None])
def test_inputs_that_are_no_tensors(kind: Any) -> None:
    refused(ready(network), kind, "DataLoader, not", InputError)


@pytest.mark.parametrize(
    "x", [torch.zeros(0, 3, dtype=torch.float64), torch.tensor(1.0), (), {}, torch.utils.data.DataLoader([])]
)
def test_inputs_without_samples(x: Any) -> None:
    refused(ready(network), x, "no sample|no tensor|no batch", InputError)


def test_loaders_whose_batches_do_not_fit_together() -> None:
    loader = torch.utils.data.DataLoader([normal(3), normal(3), normal(4)], batch_size=1)
    refused(ready(network), loader, "length|shape|size", InputError)


def test_arguments_with_unequal_numbers_of_samples() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(a) + b.sum()

    with pytest.raises(InputError, match="one entry per sample"):
        ntk(ready(Two), (X, normal(4, 3).requires_grad_()), output=lambda y: y.flatten())


@pytest.mark.parametrize("outputs", [[2], [-3], [], [0, 5]])
def test_outputs_out_of_range(outputs: list[int]) -> None:
    refused(ready(network), X, "outputs= must be .*numbers from 0 to 1", InputError, outputs=outputs)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"outputs": "traces"}, "trace"),
        ({"by": "layers"}, "layer"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -2}, "batch_size"),
        ({"batch_size": 2.5}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"batch_size": "many"}, "batch_size"),
        ({"outputs": [0.5]}, "outputs"),
        ({"outputs": 1}, "outputs"),
        ({"batch_axis": 5}, "axis"),
        ({"batch_axis": "first"}, "batch_axis"),
    ],
)
def test_options_that_do_not_exist(options: dict[str, Any], words: str) -> None:
    refused(ready(network), X, words, InputError, **options)


class Container(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"logits": self.layer(x), "hidden": x, "steps": 3}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (None, "a dict with logits, hidden, steps.*output="),
        ("loss", "no entry 'loss'"),
        (0, "no entry 0"),
        ("steps", "picks a int"),
        (lambda result: result["steps"], "picks a int"),
    ],
)
def test_results_that_are_not_one_tensor(output: Any, words: str) -> None:
    refused(ready(Container), X, words, InputError, output=output)


@pytest.mark.parametrize("output", [lambda y: y.sum(), lambda y: y.sum(0), lambda y: y[:1], lambda y: y.T])
def test_outputs_that_do_not_have_one_entry_per_sample(output: Any) -> None:
    refused(ready(network), X, "one entry per sample.*output=", InputError, output=output)


def test_models_that_are_none() -> None:
    refused("resnet", X, "nn.Module or a function", InputError)
    refused(lambda p, x: x, X, "needs parameters=", InputError)
    refused(lambda p, x: x @ p, X, "leaf tensors that require grad", InputError, parameters=torch.ones(3, 2))


def test_functional_parameters_that_are_no_leaves() -> None:
    made = 2 * normal(3, 2).requires_grad_()
    refused(lambda p, x: x @ p, X, "leaf", InputError, parameters=made)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.reentrant = nn.Linear(3, 4), nn.Linear(4, 2), reentrant

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self._inside, self.first(x), use_reentrant=self.reentrant)

    def _inside(self, hidden: Tensor) -> Tensor:
        return self.second(torch.tanh(hidden))


def test_reentrant_checkpoints() -> None:
    refused(ready(lambda: Checkpointed(True)), X, "use_reentrant=False")


def test_checkpoints_that_are_not_reentrant() -> None:
    model = ready(lambda: Checkpointed(False))
    assert_equal(ntk(model, X, batch_size=2).values, brute_force(model, X))


def test_frequencies_in_the_gradients_of_a_table() -> None:
    model = ready(lambda: nn.Sequential(nn.Embedding(7, 3, scale_grad_by_freq=True), nn.Flatten()))
    refused(model, tokens(4, 2), "scale_grad_by_freq")


def test_a_kernel_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    model, x = ready(network), normal(400, 3)
    refused(model, x, "400 x 400 samples with 2 outputs.*outputs='trace'", NotEnoughMemoryError)


def test_chunks_larger_than_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    model, x = (
        ready(lambda: nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Linear(400, 1))),
        normal(200, 300),
    )
    refused(model, x, "batch_size=", NotEnoughMemoryError, batch_size=200)


def test_little_memory_means_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = ready(lambda: nn.Sequential(nn.Conv2d(2, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(128, 2))), normal(
        30, 2, 6, 6
    )  # fmt: skip
    expected = ntk(model, x)
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    kernel = ntk(model, x)
    assert kernel.working_bytes < expected.working_bytes
    assert_equal(kernel.values, expected.values, 1e-12)
