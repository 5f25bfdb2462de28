from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.activations import activation
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP


def test_parameter_count_of_figure_2_1() -> None:
    mlp = MLP("tanh", depth=4, width=5, n_in=4, n_out=1)
    assert mlp.widths == (4, 5, 5, 5, 1)
    assert mlp.parameter_count == 91


@settings(deadline=None, max_examples=30)
@given(widths=st.lists(st.integers(1, 30), min_size=2, max_size=6))
def test_parameter_count_is_biases_and_weights(widths: list[int]) -> None:
    mlp = MLP("relu", depth=len(widths) - 1, width=widths[1:-1], n_in=widths[0], n_out=widths[-1])
    biases = sum(widths[1:])
    weights = sum(widths[layer] * widths[layer - 1] for layer in range(1, len(widths)))
    assert mlp.parameter_count == biases + weights


def test_one_number_and_one_per_layer_mean_the_same() -> None:
    short = MLP("tanh", depth=3, width=7, C_b=0.1, C_W=1.5, lambda_b=0.3, lambda_W=2)
    long = MLP(
        activation("tanh"),
        depth=3,
        width=np.array([7, 7]),
        C_b=[0.1] * 3,
        C_W=np.full(3, 1.5),
        lambda_b=(0.3,) * 3,
        lambda_W=[2, 2, 2],
    )
    assert short == long
    assert hash(short) == hash(long)
    assert short != short.replace(C_W=1.6)
    assert short.C_b == (0.1, 0.1, 0.1)


def test_layers_list_their_own_hyperparameters() -> None:
    mlp = MLP("tanh", depth=3, width=[4, 6], n_out=2, C_b=[0.1, 0.2, 0.3], C_W=[1, 2, 3], lambda_W=[7, 8, 9])
    second = mlp.layers[1]
    assert (second.number, second.width, second.C_b, second.C_W, second.lambda_W) == (2, 6, 0.2, 2.0, 8.0)
    assert mlp.layers[-1].width == 2


def test_depth_one_has_no_hidden_layer() -> None:
    mlp = MLP("tanh", depth=1, n_in=3, n_out=2)
    assert mlp.widths == (3, 2)
    assert mlp.depth_to_width == 0.0
    assert MLP("tanh", depth=1, width=9, n_in=3, n_out=2) == mlp


def test_depth_to_width_uses_the_harmonic_mean() -> None:
    assert MLP("tanh", depth=20, width=100).depth_to_width == pytest.approx(0.2)
    assert MLP("tanh", depth=3, width=[10, 40]).depth_to_width == pytest.approx(3 / 16)


def test_replace_keeps_the_rest() -> None:
    mlp = MLP("tanh", depth=4, width=5, n_in=3, C_W=[1, 1, 1, 2.0], gamma=0.5)
    assert mlp.replace() == mlp
    assert mlp.replace(n_in=7).gamma == (0.0, 0.5, 0.5, 0.0)
    deeper = mlp.replace(depth=6, C_W=1.0)
    assert deeper.hidden_widths == (5,) * 5
    assert deeper.gamma == (0.0, 0.5, 0.5, 0.5, 0.5, 0.0)
    with pytest.raises(InputError, match=r"C_W .*4 .*depth is 6"):
        mlp.replace(depth=6)
    with pytest.raises(InputError, match="did you mean 'depth'"):
        mlp.replace(dept=3)


def test_gamma_skips_the_first_and_the_output_layer() -> None:
    assert MLP("tanh", depth=4, width=5, gamma=0.6).gamma == (0.0, 0.6, 0.6, 0.0)
    listed = MLP("tanh", depth=4, width=[5, 5, 8], gamma=[0, -0.6, 0, 0])
    assert listed.is_residual
    assert listed.replace(n_in=3).gamma == (0.0, -0.6, 0.0, 0.0)
    assert MLP("tanh", depth=2, width=5, gamma=0.0) == MLP("tanh", depth=2, width=5)
    assert not MLP("tanh", depth=4, width=5, gamma=0).is_residual


def test_first_kernel_divides_by_the_input_dimension() -> None:
    X = np.array([[1.0, 2.0], [3.0, -1.0]])
    kernel = MLP("tanh", depth=2, width=3, C_b=[0.2, 9], C_W=[1.5, 9]).first_kernel(X)
    np.testing.assert_allclose(kernel, [[0.2 + 1.5 * 2.5, 0.2 + 0.75], [0.2 + 0.75, 0.2 + 1.5 * 5.0]])


def test_inputs_set_or_check_the_input_dimension() -> None:
    open_ended = MLP("tanh", depth=2, width=3)
    X = np.ones((4, 6))
    assert open_ended.with_inputs(X).widths == (6, 3, 1)
    with pytest.raises(InputError, match="n_in is not set"):
        _ = open_ended.widths
    with pytest.raises(InputError, match="n_in is 5"):
        open_ended.replace(n_in=5).with_inputs(X)


def test_is_immutable_and_travels_to_other_processes() -> None:
    mlp = MLP("gelu", depth=3, width=4, gamma=0.3)
    with pytest.raises(FrozenInstanceError):
        mlp.__setattr__("depth", 5)
    assert pickle.loads(pickle.dumps(mlp)) == mlp


def test_repr_is_a_table_that_joins_equal_layers() -> None:
    lines = repr(MLP("tanh", depth=50, width=100, n_in=3, C_W=1.5)).splitlines()
    assert lines[0] == "MLP tanh, depth 50, 485301 parameters, depth/width 0.5"
    assert [line.split()[:3] for line in lines[4:]] == [
        ["1", "3", "100"],
        ["2-49", "100", "100"],
        ["50", "100", "1"],
    ]
    assert "gamma" not in lines[2]
    residual = repr(MLP("tanh", depth=5, width=4, gamma=0.5))
    assert residual.startswith("residual MLP")
    assert "n_in left to the data" in residual
    assert residual.splitlines()[2].endswith("gamma")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"depth": 0}, "depth is 0"),
        ({"depth": 2.0}, "depth is 2.0"),
        ({"depth": True}, "depth is True"),
        ({"width": 0}, "width is 0"),
        ({"width": [3, 2.5]}, "width is 2.5"),
        ({"width": [3, 4, 5]}, "width .*depth 3"),
        ({"width": None}, "width is missing"),
        ({"width": "wide"}, "width is 'wide'"),
        ({"n_in": -1}, "n_in is -1"),
        ({"n_out": 0}, "n_out is 0"),
        ({"C_b": -0.1}, "C_b contains -0.1"),
        ({"C_W": [1, 1]}, "C_W .*depth is 3"),
        ({"C_W": np.nan}, "C_W contains nan"),
        ({"C_W": "large"}, "C_W contains 'large'"),
        ({"lambda_b": [0, -1, 0]}, "lambda_b contains -1"),
        ({"lambda_W": None}, "lambda_W contains None"),
        ({"gamma": [0.5, 0.5, 0]}, "gamma .*first"),
        ({"gamma": [0, 0.5, 0.5]}, "gamma .*first"),
        ({"gamma": 0.5, "width": [3, 4]}, "needs equal widths"),
        ({"gamma": 0.5, "depth": 2}, "hidden layer"),
        ({"activation": "tanhh"}, "did you mean 'tanh'"),
    ],
)
def test_bad_arguments_say_what_is_wrong(change: dict[str, Any], message: str) -> None:
    arguments = {"activation": "tanh", "depth": 3, "width": 4}
    with pytest.raises(InputError, match=message):
        MLP(**{**arguments, **change})


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (np.ones(3), r"shape \(3,\)"),
        (np.ones((0, 3)), "at least one input"),
        ([[1.0, np.inf]], "not finite"),
        ([["a", "b"]], "not a real array"),
        ([[1.0], [1.0, 2.0]], "not a real array"),
        ([[1j, 0]], "is complex"),
        (np.ma.masked_array([[1.0, 2.0]], mask=[[0, 1]]), "is a masked array"),
    ],
)
def test_bad_inputs_say_what_is_wrong(X: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        MLP("tanh", depth=2, width=3).first_kernel(X)


def test_layers_by_number() -> None:
    mlp = MLP("tanh", depth=3, width=4)
    assert [mlp.check_layer(layer) for layer in (None, 1, np.int64(2))] == [3, 1, 2]
    for layer in (0, 4, True, 1.0, "last"):
        with pytest.raises(InputError, match="choose from 1 to 3"):
            mlp.check_layer(layer)
