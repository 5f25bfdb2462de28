from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


class Trap:
    """Leaves a mark on the disk when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.mark,))


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    return Trap(tmp_path / "mark")
