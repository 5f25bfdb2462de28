"""``store=``: the same kernel, on disk; what belongs to stores alone is refused without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import foretrain as ft
from foretrain.support.errors import InputError


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("options", [{}, {"outputs": "trace"}, {"outputs": [1]}, {"by": "layer"}])
def test_a_stored_kernel_is_the_kernel(net: nn.Module, tmp_path: Path, options: dict[str, Any]) -> None:
    x, x2 = torch.randn(11, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    for name, second in (("square", None), ("rectangle", x2)):
        stored = ft.ntk(net, x, second, store=tmp_path / name, workers=1, batch_size=4, **options)
        expected = np.asarray(ft.ntk(net, x, second, **options))
        np.testing.assert_allclose(np.asarray(stored), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(ft.load(tmp_path / name).values, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "option", [{"engine": "local"}, {"workers": 2}, {"memory": "1GB"}, {"overwrite": True}]
)
def test_options_of_stores_need_one(net: nn.Module, option: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="store="):
        ft.ntk(net, torch.randn(4, 3, dtype=torch.float64), **option)
