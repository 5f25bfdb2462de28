"""Help texts of the command line on pages: a line `{{ foretrain NAME --help }}` becomes what that prints."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout

from foretrain.cli.main import main

PLACE = re.compile(r"^\{\{ foretrain (\w+) --help \}\}$", re.MULTILINE)
COLUMNS = "100"


def with_help(markdown: str) -> str:
    """The page with help texts in their places."""
    return PLACE.sub(lambda found: f"```text\n{help_of(found.group(1))}\n```", markdown)


def help_of(command: str) -> str:
    """What `foretrain COMMAND --help` prints."""
    with _wide(), redirect_stdout(io.StringIO()) as told:
        code = main([command, "--help"])
    if code:
        raise ValueError(f"foretrain {command} --help ended with exit code {code}.")
    return told.getvalue().strip("\n")


@contextmanager
def _wide() -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = COLUMNS
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
