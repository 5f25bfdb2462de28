from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli import frame
from foretrain.cli.flow import COMMAND

SMALL = ("tanh", "--depth", "3", "--width", "40")


def run(*arguments: str) -> int:
    return frame.run("flow", COMMAND, arguments)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_numbers_of_the_reference(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, *SMALL, "--inputs", "1")
    assert (set(found["C_b"]), set(found["C_W"])) == ({0.0}, {1.0})  # critical without being asked for
    last = found["layers"][2]
    assert last["layer"] == 3
    assert last["kernel"] == [pytest.approx(0.2364504105, abs=1e-9)]
    assert last["fluctuation"] == [pytest.approx(0.06780749389 / 40 / 0.2364504105**2, rel=1e-8)]
    assert last["correction"] == [pytest.approx(-0.03093251987 / 40, rel=1e-8)]
    assert last["fluctuation_law"] == pytest.approx(2 / 3 * 3 / 40)


def test_default_inputs_are_stated(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SMALL) == 0
    text = capsys.readouterr().out
    assert "angle of 60 degrees" in text
    assert "L/n = 0.075" in text
    assert "critical at K* = 0" in text
    assert "V/(nK²)" in text


def test_given_variances_widths_and_settings(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(
        capsys, "leaky_relu", "--set", "slope=0.2", "--depth", "4", "--width", "30,20,10", "--c-b", "0.1",
        "--layers", "1,3-4",
    )  # fmt: skip
    assert found["hidden_widths"] == [30, 20, 10]
    assert set(found["C_b"]) == {0.1}
    assert found["C_W"][0] == pytest.approx(2 / 1.04)
    assert [row["layer"] for row in found["layers"]] == [1, 3, 4]
    assert "widths differ" in found["statement"]


def test_skip_connections_keep_the_network_critical(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "relu", "--depth", "4", "--width", "30", "--gamma", "0.5", "--inputs", "1,1")
    assert found["C_W"] == pytest.approx([2.0, 1.5, 1.5, 2.0])
    np.testing.assert_allclose([row["kernel"] for row in found["layers"]], 2.0)
    assert "correction" not in found["layers"][0]


def test_chosen_entries_of_the_vertex(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SMALL, "--inputs", "1,0.5;0.2,-1", "--quadruples", "0,1,0,1;0,0,1,1")
    found = ask(capsys, *arguments)["quadruples"]
    V = ft.flow(ft.MLP("tanh", depth=3, width=40), [[1, 0.5], [0.2, -1]], ["V"])["V"].values
    np.testing.assert_allclose(found["V"], np.stack([V[:, 0, 1, 0, 1], V[:, 0, 0, 1, 1]], 1), atol=1e-12)
    assert run(*arguments) == 0
    assert "V_(0,1)(0,1)" in capsys.readouterr().out


@pytest.mark.slow
def test_data_files_and_saved_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).standard_normal((12, 2, 3))
    np.savez(tmp_path / "data.npz", x=x, y=np.zeros(12))
    folder, picture = tmp_path / "saved", tmp_path / "flow.png"
    arguments = (*SMALL, "--data", str(tmp_path / "data.npz"), "--samples", "6", "--quadruples", "0,1,2,3")
    assert run(*arguments, "--save", str(folder), "--plot", str(picture)) == 0
    assert "the first 6 of 12" in capsys.readouterr().out
    assert picture.read_bytes().startswith(b"\x89PNG")
    saved = ft.load(folder / "data.zarr")
    net = ft.MLP("tanh", depth=3, width=40)
    expected = ft.flow(net, x.reshape(12, 6)[:6], ["K", "V", "G1"], quadruples=[[0, 1, 2, 3]])
    np.testing.assert_allclose(saved["K"], expected["K"], atol=1e-12)
    np.testing.assert_allclose(saved["G1"], expected["G1"], atol=1e-12)
    np.testing.assert_allclose(saved["V"].isel(quadruple=-1), expected["V"].isel(quadruple=0), atol=1e-12)
    assert int(saved["leg_4"][-1]) == 3
    assert saved["fluctuation"].dims == ("layer", "input")


def test_a_function_of_the_user_and_fewer_observables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "act.py"
    file.write_text("import numpy as np\ndef mine(z):\n    return np.sin(z)\n")
    network = ("--depth", "3", "--width", "9,8", "--c-b", "0", "--c-w", "1", "--inputs", "1")
    found = ask(capsys, f"{file}:mine", *network, "--observables", "K")
    assert found["layers"][1]["kernel"] == [pytest.approx((1 - np.exp(-2)) / 2, abs=1e-9)]
    assert "fluctuation" not in found["layers"][1]


def test_deep_networks_show_some_layers(capsys: pytest.CaptureFixture[str]) -> None:
    rows = ask(capsys, "relu", "--depth", "500", "--width", "10000", "--inputs", "1")["layers"]
    assert len(rows) < 30
    assert (rows[0]["layer"], rows[-1]["layer"]) == (1, 500)
    assert rows[-1]["fluctuation"] == [pytest.approx(5 * 499 / 10000)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tahn", "--depth", "3", "--width", "5"), "did you mean 'tanh'?"),
        (("sigmoid", "--depth", "3", "--width", "5"), "no critical initialisation"),
        (("tanh", "--depth", "3"), "--width"),
        (("tanh", "--depth", "3", "--width", "wide"), "--width is 'wide'"),
        (("tanh", "--depth", "3", "--width", "5,5,5"), "3 layers but depth 3"),
        (("tanh", "--depth", "0", "--width", "5"), "depth is 0"),
        ((*SMALL, "--c-w", "-1"), "zero or a positive number"),
        ((*SMALL, "--gamma", "1"), "-1 < gamma < 1"),
        ((*SMALL, "--inputs", "1,2;3"), "rows of numbers of one length"),
        ((*SMALL, "--inputs", "one"), "rows of numbers"),
        ((*SMALL, "--inputs", "1", "--data", "x.npz"), "leave one out"),
        ((*SMALL, "--data", "absent.npz"), "not a file"),
        ((*SMALL, "--observables", "K,W"), "unknown observable 'W'"),
        ((*SMALL, "--observables", "K", "--quadruples", "0,0,0,0"), "add V"),
        ((*SMALL, "--quadruples", "0,1"), "give four"),
        ((*SMALL, "--quadruples", "0,1,0,0.5"), "whole numbers"),
        ((*SMALL, "--quadruples", "0,1,0,7"), "there are 2"),
        ((*SMALL, "--layers", "2-9"), "choose from 1 to 3"),
        ((*SMALL, "--layers", "last"), "numbers and ranges"),
        ((*SMALL, "--gamma", "0.5", "--observables", "G1"), "skip connections"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


def test_other_tensors_have_a_table_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("tanh", "--depth", "3", "--width", "10", "--observables", "K,Theta,B") == 0
    text = capsys.readouterr().out
    assert "Theta of input 0" in text
    assert "B of input 0" in text
