"""This file lets pytest find the networks of this folder (planted_networks) from the folders below."""

from __future__ import annotations

import math

import pytest

from foretrain.doctor import examine


@pytest.fixture(autouse=True)
def without_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, nothing is cut unless a test asks for it."""
    monkeypatch.setattr(examine, "default_budget", lambda parameters: math.inf)
