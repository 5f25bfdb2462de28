from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.cli.model_inputs import as_inputs, check_takes
from foretrain.support.errors import InputError


class Silent(nn.Linear):
    def forward(self, input: torch.Tensor) -> None:  # type: ignore[override]
        super().forward(input)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "longdouble", "bool", "uint8", "int64"])
def test_numbers_of_every_kind_become_those_of_the_model(kind: str) -> None:
    values = np.array([[0.0, 1.0], [1.0, 2.0]]).astype(kind)
    for model in (nn.Linear(2, 1), nn.Linear(2, 1).double()):
        made = as_inputs(values, model)
        assert made.dtype == model.weight.dtype
        assert torch.equal(made, torch.tensor(values.astype(float), dtype=made.dtype))


def test_whole_numbers_stay_such_for_embeddings() -> None:
    assert as_inputs(np.arange(3, dtype=np.uint16), nn.Embedding(3, 2)).dtype == torch.int64


def test_what_a_model_does_not_take_or_give_is_said() -> None:
    check_takes(nn.Linear(2, 1), torch.ones(3, 2))
    with pytest.raises(InputError, match=r"does not take x of shape \(3, 4\)"):
        check_takes(nn.Linear(2, 1), torch.ones(3, 4))
    with pytest.raises(InputError, match="returns nothing"):
        check_takes(Silent(2, 1), torch.ones(3, 2))
