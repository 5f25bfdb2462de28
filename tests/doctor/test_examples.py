"""The built-in networks of the demo."""

from __future__ import annotations

import pytest
import torch

from foretrain.doctor import examples
from foretrain.support.errors import NotSupportedError


def test_the_examples_are_a_deep_network_and_a_recurrent_one() -> None:
    found = examples.examples()
    assert [name.split()[0] for name, _ in found] == ["MLP", "GRU"]
    digits, memory = (setup for _, setup in found)
    assert digits.task.loss_name == "cross-entropy"
    assert digits.batch_size == 128
    assert memory.task.x.shape == memory.task.y.shape == (32, 24, 3)
    again = dict(examples.examples())[found[0][0]]
    assert torch.equal(again.model[0].weight, digits.model[0].weight)


def test_without_the_digits_the_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr("foretrain.support.loading.import_module", missing)
    with pytest.raises(NotSupportedError, match="pip install scikit-learn"):
        examples.digits_network()
