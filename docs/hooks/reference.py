"""The API reference: which names are public, and what `::: rest of foretrain.ROOM` on a page stands for.

Public is what a module names in `__all__`, or, where it has none, the functions and classes that it defines without
an underscore in front. Pages list by hand what people look for; `rest of` adds, module by module, what no page lists.
Addresses may be any that work in Python: they are replaced by the place where the object is defined, because the
documentation is read off the files without running them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from plain_text import as_markdown

ENTRY = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
REST = re.compile(r"^::: rest of ([\w.]+)$", re.MULTILINE)
LINK = re.compile(r"(?<=\]\[)(foretrain[\w.]*)(?=\])")
NAMED = re.compile(r"``(?:[\w.]+\.)?(\w+)``")
LONGEST = 60  # characters of a constant that is shown


def expanded(pages: Mapping[str, str]) -> dict[str, str]:
    """The pages of the reference with an entry for every public name; nothing is listed twice."""
    listed = {canonical(address) for text in pages.values() for address in ENTRY.findall(text)}

    def section(module: str) -> str:
        missing = [address for address in public(module) if address not in listed]
        listed.update(missing)
        entries = "\n\n".join(map(_entry, missing))
        return f"## {module.removeprefix('foretrain.')}\n\n{_about(module)}\n\n{entries}\n" if missing else ""

    def sections(found: re.Match[str]) -> str:
        return "\n".join(filter(None, map(section, offered(found.group(1)))))

    return {name: located(REST.sub(sections, text)) for name, text in pages.items()}


def located(text: str) -> str:
    """Entries and links with the places where their objects are defined."""
    text = ENTRY.sub(lambda found: f"::: {canonical(found.group(1))}", text)
    return LINK.sub(lambda found: canonical(found.group(1)), text)


def offered(module: str) -> Iterator[str]:
    """The module and the public ones inside it, however deep."""
    found = import_module(module)
    yield module
    for inside in sorted(entry.name for entry in iter_modules(getattr(found, "__path__", ()))):
        if not inside.startswith("_") and _is_offered(found, inside):
            yield from offered(f"{module}.{inside}")


def _is_offered(package: ModuleType, inside: str) -> bool:
    """If the package or the module itself says so; of a room that says nothing, all are."""
    module = import_module(f"{package.__name__}.{inside}")
    if hasattr(module, "__all__"):
        return True
    names = getattr(package, "__all__", None)
    is_room = package.__name__.count(".") == 1
    is_named = inside in (names or ()) or inside in NAMED.findall(package.__doc__ or "")
    return (names is None and is_room) or (is_named and getattr(package, inside, module) is module)


def public(module: str) -> list[str]:
    """Addresses of what a module offers, modules inside it left out."""
    found = import_module(module)
    names = getattr(found, "__all__", None)
    if names is None:
        names = [name for name, value in vars(found).items() if _is_own(module, name, value)]
    offers = [name for name in names if not isinstance(getattr(found, name), ModuleType)]
    return [canonical(f"{module}.{name}") for name in offers if name != "__version__"]


def canonical(address: str) -> str:
    """Where a function or class is defined; of anything else the address as it is."""
    found = resolve(address)
    if _is_code(found) and str(found.__module__).startswith("foretrain"):
        return f"{found.__module__}.{found.__qualname__}"
    return address


def resolve(address: str) -> Any:
    """What stands at a dotted address: an attribute goes before a module of the same name, if all else exists."""
    try:
        return _found(address, 1)
    except (AttributeError, ImportError):
        depth = len(address.split("."))
        return _found(address, max(cut for cut in range(1, depth) if _is_module(address, cut)))


def _found(address: str, cut: int) -> Any:
    """The first names together are a module; those that follow attributes, or modules that are not yet read."""
    names = address.split(".")
    path = ".".join(names[:cut])
    found: Any = import_module(path)
    for name in names[cut:]:
        path = f"{path}.{name}"
        if not hasattr(found, name):
            import_module(path)
        found = getattr(found, name)
    return found


def _is_module(address: str, cut: int) -> bool:
    try:
        import_module(".".join(address.split(".")[:cut]))
    except ImportError:
        return False
    return True


def _about(module: str) -> str:
    """The first paragraph of its docstring."""
    return as_markdown(inspect.cleandoc(import_module(module).__doc__ or "").partition("\n\n")[0]).strip()


def _entry(address: str) -> str:
    """Code is read off its file; constants, which carry no docstring, are told with their values."""
    found = resolve(address)
    if _is_code(found):
        return f"::: {address}"
    value = repr(found)
    return f"- `{address}`" + (f": `{value}`" if len(value) <= LONGEST and "`" not in value else "")


def _is_own(module: str, name: str, value: Any) -> bool:
    return _is_code(value) and not name.startswith("_") and value.__module__ == module


def _is_code(value: Any) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)
