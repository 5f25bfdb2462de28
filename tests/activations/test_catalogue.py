"""Names, parameters and what is refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import special

from foretrain.activations import activation, catalogue
from foretrain.support.errors import InputError


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("TANH", "tanh"),
        ("leaky-relu", "leaky_relu"),
        ("Leaky ReLU", "leaky_relu"),
        ("leakyrelu", "leaky_relu"),
        ("SiLU", "swish"),
        ("identity", "linear"),
        ("step", "perceptron"),
        ("Heaviside", "perceptron"),
        ("logistic", "sigmoid"),
        ("GELU tanh", "gelu_tanh"),
        (" elu ", "elu"),
    ],
)
def test_spellings(spelling: str, name: str) -> None:
    assert activation(spelling).name == name


def test_the_references_catalogue_is_complete() -> None:
    book = {
        "perceptron",
        "sign",
        "sigmoid",
        "tanh",
        "sin",
        "linear",
        "relu",
        "leaky_relu",
        "softplus",
        "swish",
        "gelu",
    }
    more = {"erf", "cos", "gelu_tanh", "softsign", "elu", "selu", "mish", "monomial"}
    assert book | more <= set(catalogue())


def test_parameters_and_labels() -> None:
    assert dict(activation("leaky_relu", slope=0.2).parameters) == {"slope": 0.2}
    assert activation("leaky_relu(slope=0.2)") == activation("leaky_relu", slope=0.2)
    assert activation("quadratic") == activation("monomial", power=2)
    for name in ("tanh", "elu", "swish"):
        act = activation(name)
        assert activation(act.label) == act
    act = activation("scale_invariant", minus=1 / 3, plus=-2)
    assert activation(act.label) == act
    assert activation(act) is act
    assert activation("linear", slope=np.float64(2.0))(3.0) == 6.0


def test_well_known_ufuncs_are_members() -> None:
    assert activation(np.tanh) == activation("tanh")
    assert activation(special.erf) == activation("erf")
    assert activation(np.abs) == activation("abs")


def test_swish_with_beta_approaches_relu() -> None:
    z = np.linspace(-3.0, 3.0, 61)
    gap = np.max(np.abs(activation("swish", beta=200.0)(z) - activation("relu")(z)))
    assert gap < 0.28 / 200.0
    assert activation("swish", beta=200.0).strip == pytest.approx(np.pi / 200.0)


def test_the_two_gelus_differ() -> None:
    z = np.linspace(-4.0, 4.0, 801)
    gap = np.max(np.abs(activation("gelu")(z) - activation("gelu_tanh")(z)))
    assert 1e-4 < gap < 1e-3


@pytest.mark.parametrize(
    ("spec", "parameters", "words"),
    [
        ("tahn", {}, "did you mean 'tanh'"),
        ("leaky_rlu", {}, "did you mean 'leaky_relu'"),
        ("xyzzy!", {}, "choose one of"),
        ("", {}, "unknown activation"),
        ("tanh", {"slope": 2.0}, "takes no parameters"),
        ("leaky_relu", {"slop": 2.0}, "did you mean 'slope'"),
        ("leaky_relu", {"slope": float("nan")}, "finite"),
        ("leaky_relu", {"slope": "steep"}, "finite number"),
        ("leaky_relu", {"slope": None}, "needs the parameter|finite number"),
        ("swish", {"beta": 0.0}, "positive"),
        ("elu", {"alpha": -1.0}, "positive"),
        ("monomial", {}, "needs the parameter power"),
        ("monomial", {"power": 1.5}, "whole number"),
        ("monomial", {"power": -1}, "whole number"),
        ("monomial", {"power": 10**6}, "whole number"),
        ("leaky_relu(slope=a)", {}, "cannot read"),
        ("leaky_relu(0.2)", {}, "cannot read"),
        ("leaky_relu(", {}, "cannot read"),
    ],
)
def test_bad_names_and_parameters(spec: str, parameters: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        activation(spec, **parameters)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", [3, None, [1, 2], int, {"name": "tanh"}])
def test_things_that_are_not_activations(spec: Any) -> None:
    with pytest.raises(InputError, match="cannot make an activation"):
        activation(spec)


def test_options_of_callables_do_not_go_with_names() -> None:
    with pytest.raises(InputError, match="describe a callable"):
        activation("tanh", derivatives=[np.cos])
    with pytest.raises(InputError, match="describe a callable"):
        activation("relu", kinks=(0.0,))
    with pytest.raises(InputError, match="already"):
        activation(activation("swish"), beta=2.0)


def test_torch_stays_out() -> None:
    script = (
        "import sys, foretrain\n"
        "foretrain.activation('tanh').derivative([0.1], 3)\n"
        "foretrain.activation(lambda z: z / (1 + abs(z)))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
