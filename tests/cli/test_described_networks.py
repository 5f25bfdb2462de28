from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli.options import (
    activation_of,
    names_in,
    network_of,
    numbers_in,
    predicted_loss,
    spelt,
    whole_numbers_in,
    widths_of,
)
from foretrain.support.errors import InputError

TANH = ft.activation("tanh")


def test_one_width_or_one_for_each_layer() -> None:
    assert widths_of("64") == 64
    assert widths_of("64,128, 32") == [64, 128, 32]
    for wrong in ("", "wide", "20.5", "3,,4"):
        with pytest.raises(InputError, match=r"--width"):
            widths_of(wrong)


def test_variances_are_critical_unless_given() -> None:
    critical = network_of(TANH, 4, "9,8,7", None, None, 0.0)
    assert critical == ft.MLP.critical("tanh", depth=4, width=[9, 8, 7])
    half = network_of(TANH, 4, "9,8,7", 0.2, None, 0.0)
    assert half == critical.replace(C_b=0.2)
    both = network_of(TANH, 4, "9,8,7", 0.2, 1.5, 0.0, n_in=3, lambda_b=None)
    assert both == ft.MLP("tanh", depth=4, width=[9, 8, 7], n_in=3, C_b=0.2, C_W=1.5)
    rated = network_of(TANH, 4, "9", None, None, 0.5, lambda_W=0.3, n_out=2)
    assert rated == ft.MLP.critical("tanh", depth=4, width=9, gamma=0.5).replace(lambda_W=0.3, n_out=2)


def test_an_activation_without_criticality_needs_both_variances() -> None:
    sigmoid = ft.activation("sigmoid")
    assert network_of(sigmoid, 3, "5", 0.1, 1.0, 0.0).C_W == (1.0, 1.0, 1.0)
    with pytest.raises(Exception, match="no critical initialisation"):
        network_of(sigmoid, 3, "5", 0.1, None, 0.0)


def test_activations_by_name_parameter_and_file(tmp_path: Path) -> None:
    assert activation_of("leaky_relu", ["slope=0.2"]).value(np.array(-1.0)) == pytest.approx(-0.2)
    file = tmp_path / "act.py"
    file.write_text("def mine(z):\n    return 3 * z\n")
    assert activation_of(f"{file}:mine").value(np.array(2.0)) == pytest.approx(6.0)
    with pytest.raises(InputError, match="--set"):
        activation_of(f"{file}:mine", ["slope=0.2"])


def test_lists_and_words() -> None:
    assert names_in("--states", "hidden, cell") == ["hidden", "cell"]
    assert numbers_in("--scales", "1, 2.5,4e-1") == [1.0, 2.5, 0.4]
    assert whole_numbers_in("--depth", "3, 4") == [3, 4]
    assert spelt(" Two-Step ") == "two_step"
    assert predicted_loss("Squared-Error") == "squared_error"
    for read, option, wrong in (
        (names_in, "--states", "a,,b"),
        (numbers_in, "--scales", "one"),
        (whole_numbers_in, "--depth", "1.5"),
        (names_in, "--states", ""),
    ):
        with pytest.raises(InputError, match=rf"{option} is {wrong!r}"):
            read(option, wrong)
    with pytest.raises(InputError, match="did you mean 'squared_error'"):
        predicted_loss("squared")
    with pytest.raises(InputError, match=r"'mse'.*cross_entropy, squared_error"):
        predicted_loss("mse")  # a mean, where theory speaks of half the sum
