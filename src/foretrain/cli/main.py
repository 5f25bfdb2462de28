"""The command ``foretrain``: finds the command that is asked for and imports nothing but that one.

A room adds a command with a file of this package that defines ``COMMAND``, and a line of the table below.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foretrain.cli.frame import Command

from foretrain._version import __version__

_COMMANDS = {
    "activation": "Show what is known about an activation function",
    "advise": "Recommend depth, initialisation and learning rates for a width",
    "compare": "Put theory beside measurement on random networks",
    "critical": "Find the critical initialisation of an activation function",
    "doctor": "Say what will hold back a torch model's learning, and what to do",
    "escape": "Predict how long the plateau of a small initialisation is",
    "flow": "Predict the statistics of a random network, layer by layer",
    "global": "Show what gradient descent can change in a model's states",
    "log": "Say what a training log shows, and what to measure next",
    "ntk": "Compute the tangent kernel of a torch model, also larger than memory",
    "predict": "Predict what trained networks answer, with its spread over initialisations",
    "report": "Write the doctor's findings as one interactive page",
    "reproduce": "Reproduce figures and tables of the sources",
    "sweep": "Compute an observable or experiment over a grid of parameters",
}
_FILES = {"global": "global_ntk"}  # where a command's name cannot be that of its file

_OVERVIEW = """\
foretrain {version}
Predicts how a neural network will learn, measures how it does, and shows where the two part.

Usage: foretrain COMMAND [OPTIONS]

Commands:
{commands}

Options:
  --version    Print the version and leave.
  --help       Print this text and leave.

Every command explains itself with --help. For example:
  foretrain doctor model.py:make data.npz --verify
  foretrain report --example -o report.html
  foretrain critical gelu --plot phases.png
  foretrain flow tanh --depth 20 --width 100
  foretrain compare relu --depth 5
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # started with the stream closed
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Greek letters shows question marks
    try:
        code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, for example `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    if name == "--version":
        print(f"foretrain {__version__}")
        return 0
    if name in ("--help", "-h"):
        width = max(map(len, _COMMANDS)) + 3
        lines = [f"  {known:<{width}}{summary}" for known, summary in _COMMANDS.items()]
        print(_OVERVIEW.format(version=__version__, commands="\n".join(lines)), end="")
        return 0
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch reads it when it is loaded: support/threads
    from foretrain.cli import frame
    from foretrain.support.errors import InputError, unknown_name

    if name.startswith("-"):
        text = f"{name} is not an option of foretrain itself: put it after a command, see --help."
        return frame.report(InputError(text))
    if name not in _COMMANDS:
        return frame.report(unknown_name("command", name, _COMMANDS))
    return frame.run(name, command(name), arguments[1:])


def command(name: str) -> Command:
    """A command by its name; its file is read now."""
    found: Command = import_module(f"foretrain.cli.{_FILES.get(name, name)}").COMMAND
    return found


if __name__ == "__main__":
    sys.exit(main())
