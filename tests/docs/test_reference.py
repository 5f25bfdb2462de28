"""The API reference is complete: every public name of every room stands on one of its pages, once."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from reference import ENTRY, canonical, expanded, located, offered, public, resolve

import foretrain

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md"))}
ROOMS = [name for name in foretrain.__all__ if isinstance(getattr(foretrain, name), ModuleType)]


@pytest.fixture(scope="module")
def whole() -> str:
    return "\n".join(expanded(PAGES).values())


@pytest.fixture(scope="module")
def addresses(whole: str) -> list[str]:
    return ENTRY.findall(whole)


def exports() -> list[tuple[str, Any]]:
    """Names in `__all__` of the package, its rooms and every package in them, with what they stand for."""
    modules = ["foretrain"]
    for room in ROOMS:
        package = import_module(f"foretrain.{room}")
        inside = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        modules += [package.__name__, *(found.name for found in inside if found.ispkg)]
    found = [
        (f"{name}.{key}", name, key)
        for name in modules
        for key in getattr(import_module(name), "__all__", ())
    ]
    return [
        (address, getattr(import_module(name), key)) for address, name, key in found if key != "__version__"
    ]


def test_every_public_name_is_listed(whole: str, addresses: list[str]) -> None:
    listed = {id(resolve(address)) for address in addresses}
    missing = [
        address
        for address, value in exports()
        if not isinstance(value, ModuleType) and id(value) not in listed and f"- `{address}`" not in whole
    ]
    assert missing == []


def test_nothing_is_listed_twice(addresses: list[str]) -> None:
    assert sorted(set(addresses)) == sorted(addresses)


def test_objects_are_addressed_where_they_are_defined() -> None:
    """A function that is called like its module would otherwise be taken for the module."""
    assert canonical("foretrain.gaussian.expectation") == "foretrain.gaussian.expectation.expectation"
    assert located("[x][foretrain.gaussian.expectation]") == "[x][foretrain.gaussian.expectation.expectation]"
    assert canonical("foretrain.activations.Activation.value").endswith(".Activation.value")


def test_rooms_without_a_list_offer_all_of_their_modules() -> None:
    assert "foretrain.compare.judging.agreement" in set(offered("foretrain.compare.judging"))
    assert "foretrain.compare.judging.agreement.judge" in public("foretrain.compare.judging.agreement")
    assert not any("._" in module for module in offered("foretrain.activations"))
