"""The command as it is installed."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import foretrain
from foretrain.cli import main as cli
from foretrain.cli.frame import Command

COMMAND = str(Path(sys.executable).with_name("foretrain"))


def call(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, check=False, env={**os.environ, **variables}
    )


def test_version() -> None:
    result = call("--version")
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        f"foretrain {foretrain.__version__}\n",
        "",
    )


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",)])
def test_the_overview_names_every_command(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 0
    text = capsys.readouterr().out
    for name in cli._COMMANDS:
        assert f"  {name} " in text
    assert "foretrain critical gelu --plot" in text


@pytest.mark.parametrize("name", cli._COMMANDS)
def test_every_command_exists_and_shows_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(cli.command(name), Command)
    assert cli.main([name, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: foretrain {name} ")
    assert f"Examples:\n    foretrain {name}" in text
    assert "--json" in text


def test_an_unknown_command_is_answered_with_the_nearest() -> None:
    result = call("reprodce")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "did you mean 'reproduce'?" in result.stderr


def test_an_option_in_front_of_the_command_is_explained() -> None:
    result = call("--json", "reproduce")
    assert result.returncode == 2
    assert result.stderr.startswith("foretrain: --json ")


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("module", ["foretrain", "foretrain.cli.main"])
def test_the_command_also_runs_as_a_module(module: str) -> None:
    result = subprocess.run(
        [sys.executable, "-m", module, "reproduce", "--json"], capture_output=True, text=True, check=True
    )
    assert "parameter-count" in [entry["name"] for entry in json.loads(result.stdout)["experiments"]]


@pytest.mark.slow
def test_a_terminal_without_greek_letters_is_no_error() -> None:
    result = call("activation", "tanh", PYTHONIOENCODING="ascii")
    assert (result.returncode, result.stderr) == (0, "")
    assert "<?>" in result.stdout


def test_a_reader_that_leaves_early_is_no_error() -> None:
    script = f"import subprocess; p = subprocess.Popen([{COMMAND!r}, 'reproduce', '--json'], stdout=subprocess.PIPE)"
    result = subprocess.run(
        [sys.executable, "-c", f"{script}; p.stdout.close(); p.wait()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""


def on_terminal(**variables: str) -> str:
    master, slave = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "200", **variables}
    try:
        subprocess.run([COMMAND, "reproduce"], stdout=slave, check=True, env=environment, timeout=30)
        return os.read(master, 1 << 16).decode()
    finally:
        os.close(slave)
        os.close(master)


@pytest.mark.slow
def test_a_terminal_gets_a_drawn_table_and_no_color_is_honoured() -> None:
    drawn = on_terminal()
    assert "parameter-count" in drawn
    assert "─" in drawn
    assert "\x1b[1m" in drawn
    colourless = on_terminal(NO_COLOR="1")
    assert "parameter-count" in colourless
    assert "\x1b[3" not in colourless


INTERRUPTED = """
import sys, time
from foretrain.cli.main import main
from foretrain.experiments import registry

PLANS = dict.fromkeys(registry.Scale)

def slow(plan, seed):
    print("started", flush=True, file=sys.__stdout__)
    time.sleep(60)

sys.modules["slow_experiment"] = sys.modules["__main__"]
registry._BY_NAME["slow"] = registry.Experiment("slow", "Slow", "nobody", "slow_experiment:slow")
sys.exit(main(["reproduce", "slow"]))
"""


def test_an_interruption_ends_with_130_and_one_line() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == "foretrain: interrupted.\n"


@pytest.mark.slow
def test_a_closed_standard_output_is_no_error() -> None:
    command = f"{sys.executable} -m foretrain activation relu >&-"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
