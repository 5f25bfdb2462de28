"""Every name of ft.theory leads to its module, wherever in the room that lies."""

from __future__ import annotations

from types import ModuleType

import pytest

from foretrain import theory


@pytest.mark.parametrize("name", [name for name in theory.__all__ if name != "MLP"])
def test_a_name_leads_to_its_module(name: str) -> None:
    found = getattr(theory, name)
    assert isinstance(found, ModuleType)
    assert name.endswith(found.__name__.rpartition(".")[2])
    assert f"``{name}``" in (theory.__doc__ or "")


def test_other_names_lead_nowhere() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        theory.__getattr__("nonsense")
