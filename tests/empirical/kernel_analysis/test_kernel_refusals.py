"""What the questions to a kernel refuse, and with which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_kernels import Array, inputs, network, targets

from foretrain.empirical import ntk, ntk_operator
from foretrain.empirical.kernel_analysis import alignment, condition_number, regression, spectrum
from foretrain.support.errors import InputError


def with_nan() -> Array:
    return np.full((4, 4), np.nan)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "two sides": (lambda: spectrum(ntk(network(), inputs(), inputs())), "leave x2 out"),
    "operator of two sides": (lambda: spectrum(ntk_operator(network(), inputs(), inputs())), "leave x2 out"),
    "not symmetric": (lambda: spectrum(np.triu(np.ones((3, 3)))), "needs a symmetric kernel"),
    "not square": (lambda: spectrum(np.ones((3, 4))), "needs a symmetric kernel"),
    "not a kernel": (lambda: spectrum(np.ones((3, 3, 2))), r"must hold real numbers of shape \(N, N2\)"),
    "nan in the kernel": (lambda: condition_number(with_nan()), "not finite"),
    "zero": (lambda: spectrum(np.zeros((3, 3))), "the kernel is zero"),
    "negative": (lambda: spectrum(np.diag([2.0, -1.0])), "negative eigenvalue -1"),
    "negative in a regression": (
        lambda: regression(np.diag([2.0, -1.0]), np.ones(2)),
        "negative eigenvalue -1",
    ),
    "no modes": (lambda: spectrum(np.eye(3), top=0), "top is 0: give a positive whole number"),
    "one probe": (lambda: spectrum(ntk_operator(network(), inputs()), probes=1), "at least 2"),
    "ridge": (lambda: regression(np.eye(3), np.ones(3), ridge=-1.0), "ridge is -1"),
    "time": (lambda: regression(np.eye(3), np.ones(3), time=-1.0), "time is -1"),
    "tolerance": (
        lambda: regression(ntk_operator(network(), inputs()), targets(), tolerance=2.0),
        "tolerance is 2.0",
    ),
    "samples of y": (lambda: alignment(np.eye(3), np.ones(4)), "the 3 samples of the kernel"),
    "columns of y": (lambda: alignment(ntk(network(), inputs()), np.ones((9, 2))), r"pass \(9, 3\) numbers"),
    "nan in y": (lambda: regression(np.eye(2), [1.0, np.nan]), "y has entries that are not finite"),
    "zero y": (lambda: alignment(np.eye(3), np.zeros(3)), "y is zero everywhere"),
    "labels": (
        lambda: alignment(ntk(network(), inputs()), np.full(9, 3)),
        "labels from 3 to 3, but the outputs are numbered 0 to 2",
    ),
    "share": (lambda: alignment(np.eye(3), np.ones(3)).modes_for(2.0), "share is 2"),
    "test of other samples": (
        lambda: regression(np.eye(3), np.ones(3), test=np.ones((2, 4))),
        "the 3 training samples",
    ),
    "start without test": (
        lambda: regression(np.eye(3), np.ones(3), test=np.ones((2, 3)), initial_outputs=np.ones(3)),
        "must be the pair",
    ),
    "start of another shape": (
        lambda: regression(np.eye(3), np.ones(3), initial_outputs=np.ones(4)),
        r"initial_outputs has shape \(4,\), but it must be \(3, 1\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(InputError, match=message):
        call()
