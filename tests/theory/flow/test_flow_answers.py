"""What a flow says of names it does not have, and of inputs that sit on a kink."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from foretrain.support.errors import AccuracyWarning, InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.recursions.kinks import inputs_on_kinks

X = np.array([[1.0, 2.0], [0.0, 0.0], [0.3, -1.0]])
RELU = MLP("relu", depth=3, width=8, C_W=2.0)


def test_names_that_were_not_asked_for() -> None:
    found = flow(RELU, X[:1], ["K", "H1"])
    with pytest.raises(InputError, match=r"G1 .*observables=.*K, H1"):
        found["G1"]
    with pytest.raises(InputError, match="'H2'"):
        found["H2"]
    for name in (3, ["K"], None):
        with pytest.raises(InputError, match="unknown observable"):
            found[name]
    assert found.get("V") is None
    assert found.get("K") is found["K"]


def test_one_warning_for_inputs_at_a_kink() -> None:
    for names in (["Theta"], ["K", "V", "H1", "A", "B"]):
        with pytest.warns(AccuracyWarning, match="input 1 .*relu.*C_b > 0") as seen:
            flow(RELU, X, names)
        assert len(seen) == 1
        assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("network", "options"),
    [
        (RELU, {"observables": ["K", "V", "G1"]}),
        (RELU, {"observables": ["A"], "quadruples": [[0, 2, 0, 0]]}),  # without the zero input
        (RELU.replace(C_b=0.1), {"observables": ["Theta"]}),
        (MLP("tanh", depth=3, width=8), {"observables": ["Theta"]}),
        (MLP("elu", depth=3, width=8), {"observables": ["Theta"]}),  # only its second derivative jumps
        (MLP("relu", depth=1, width=[]), {"observables": ["Theta"]}),  # no activation at all
    ],
)
def test_no_warning_where_no_slope_is_in_doubt(network: MLP, options: dict[str, object]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flow(network, X, **options)


def test_where_kernels_are_zero() -> None:
    """The predicate against the kernels themselves, among variances that are zero in some layers."""
    for C_b in ([0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]):
        for C_W in ([1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0]):
            net = MLP("abs", depth=3, width=8, C_b=C_b, C_W=C_W)
            K = flow(net, X)["K"].values
            zero = [
                any(K[layer, a, a] == 0 and C_W[layer + 1] > 0 for layer in range(2)) for a in range(len(X))
            ]
            assert inputs_on_kinks(net, X) == tuple(np.flatnonzero(zero))
