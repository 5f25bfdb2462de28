"""The page docs/prediction.md: its examples run, and every name in its table is there."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[3] / "docs" / "prediction.md").read_text(encoding="utf-8")
ROOMS = ("algorithms", "bayes", "infinite_width", "linear_models")


@pytest.mark.slow
def test_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    space: dict[str, Any] = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(block, space)
    assert space["found"].mean.shape == (20, 1)
    assert space["soft"].probabilities.shape == (20, 3)
    assert "infinite width" in capsys.readouterr().out
    assert set(space["corrected"].terms) == {"ntk_mean", "ntk_variance", "dntk", "ddntk_1", "ddntk_2"}


def test_names_of_the_table_exist() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "`" in line]
    assert len(rows) >= 9
    for row in rows:
        room = None
        for name in re.findall(r"`([^`]+)`", row.split("|")[2]):
            first, *rest = name.split("(")[0].lstrip(".").split(".")
            if first in ROOMS:
                room = import_module(f"foretrain.theory.prediction.{first}")
                path = rest
            else:
                path = [first, *rest]
            assert room is not None or name.startswith("GradientDescent")
            room = room or import_module("foretrain.theory.prediction.infinite_width")
            owner = room.GradientDescent if name.startswith(".") else room
            for part in path:
                owner = getattr(owner, part)
