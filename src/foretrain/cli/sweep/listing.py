"""What can be swept, for ``foretrain sweep --list``: all names, or one with its parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foretrain.cli.frame import command_answer
from foretrain.support.answers import Answer, Table

if TYPE_CHECKING:
    from foretrain.experiments.sweep.parameters import Parameter

_OWN = (
    'observable = "file.py:function": any function; its parameters are those of its signature, and it returns '
    "numbers, arrays or a dict of these"
)


def everything() -> Answer:
    """Observables with their parameters, and the names of experiments."""
    from foretrain.experiments import registry
    from foretrain.experiments.sweep import observables

    entries = [observables.get(name) for name in observables.names()]
    text: list[str | Table] = []
    for entry in entries:
        text += [f'observable = "{entry.name}": {entry.title}', _table(entry.parameters)]
    text += [
        _OWN,
        "experiment = one of these; 'foretrain sweep NAME --list' shows its parameters: "
        + ", ".join(registry.names()),
    ]
    document = [_document(entry.name, entry.title, entry.parameters) for entry in entries]
    return command_answer({"observables": document, "experiments": list(registry.names())}, text)


def described(name: str) -> Answer:
    """One of them with its parameters."""
    from foretrain.experiments import registry
    from foretrain.experiments.sweep import observables, targets
    from foretrain.support.errors import unknown_name

    if name in observables.names():
        found = observables.get(name)
        kind, title, parameters = "observable", found.title, found.parameters
    elif name in registry.names():
        kind, title = "experiment", registry.get(name).title
        parameters = targets.of_experiment(name).parameters
    else:
        raise unknown_name("observable or experiment", name, [*observables.names(), *registry.names()])
    return command_answer(
        _document(name, title, parameters), [f'{kind} = "{name}": {title}', _table(parameters)]
    )


def _table(parameters: tuple[Parameter, ...]) -> Table:
    rows = [(item.name, item.type_words, item.default_words, item.help) for item in parameters]
    return Table(("parameter", "type", "default", "help"), rows)


def _document(name: str, title: str, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    return {"name": name, "title": title, "parameters": [_declared(item) for item in parameters]}


def _declared(item: Parameter) -> dict[str, Any]:
    return {"name": item.name, "type": item.type_words, "default": item.default_words, "help": item.help}
