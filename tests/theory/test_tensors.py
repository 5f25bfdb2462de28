"""One table says what each tensor means, and everything that names tensors reads it."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.initial.comparison import OBSERVABLES
from foretrain.compare.pictures import _TITLES
from foretrain.theory.asymptotics import asymptotics
from foretrain.theory.complexity import generated_group
from foretrain.theory.tensors import DIFFERENTIALS, FAMILIES, FOUR_INPUTS, MEANINGS, TANGENT, TENSORS

NET = ft.MLP("tanh", depth=3, width=6, n_in=3, C_W=1.2, C_b=0.1, lambda_b=0.3)
X = np.random.default_rng(0).standard_normal((2, 3))


def test_flow_comparison_and_laws_use_the_same_words() -> None:
    found = ft.flow(NET, X, ["K", "V", "G1", *TANGENT])
    assert {name: found[name].attrs["meaning"] for name in found} == {name: MEANINGS[name] for name in found}
    assert all(OBSERVABLES[name] == MEANINGS[name] for name in OBSERVABLES if name != "kurtosis")
    assert all(_TITLES[name] == TENSORS[name].title for name in TENSORS)
    laws = asymptotics(ft.MLP("tanh", depth=5, width=6), [1.0])
    assert all(laws[name].attrs["meaning"] == MEANINGS[name] for name in ("K", "V", "G1"))


def test_no_other_file_describes_the_vertex() -> None:
    words = re.compile(r"times the covariance of z_\w z_\w")
    package = Path(ft.__file__).parent
    found = [path.name for path in package.rglob("*.py") if words.search(path.read_text(encoding="utf-8"))]
    assert found == ["tensors.py"]


@pytest.mark.parametrize("name", FOUR_INPUTS)
def test_stored_indices_have_the_symmetries_of_the_table(name: str) -> None:
    values = ft.flow(NET, X, [name])[name].values
    for order in generated_group(TENSORS[name].symmetries):
        moved = np.moveaxis(values, [1, 2, 3, 4], [1 + place for place in order])
        np.testing.assert_allclose(values, moved, rtol=1e-8, atol=1e-11)


def test_groups_and_families_cover_the_table() -> None:
    assert {*TANGENT, *DIFFERENTIALS} | {*FOUR_INPUTS} <= {*TENSORS}
    assert {tensor.family for tensor in TENSORS.values()} - {""} == {*FAMILIES}
