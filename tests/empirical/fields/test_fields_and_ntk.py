"""Two independent ways to one kernel: layerwise fields, and the autograd graph."""

from __future__ import annotations

import numpy as np
import pytest
from chain_networks import CASES, read

from foretrain.empirical import ntk


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_of_the_fields_is_the_tangent_kernel(name: str) -> None:
    case = CASES[name]
    model, x = case.model(), case.x()
    kernel = ntk(model, x, output=lambda found: read(case, lambda _: found, found))
    np.testing.assert_allclose(np.asarray(kernel), case.fields().kernel.values, rtol=0, atol=1e-10)
