"""Weights in checkpoints written with ``torch.save(model.state_dict(), path)``."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from foretrain.support.errors import FileError, InputError
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    import torch

# What training scripts call the weights inside a larger record.
_WRAPPERS = ("state_dict", "model_state_dict")
_LISTED = 3


def load_checkpoint(model: torch.nn.Module, path: str | Path) -> None:
    """Put the weights of a checkpoint into the model, all of them or none."""
    source = Path(path).expanduser()
    weights = _weights(source)
    _check_match(source, model.state_dict(), weights)
    model.load_state_dict(weights)


def _weights(source: Path) -> dict[str, torch.Tensor]:
    import torch

    if not source.is_file():
        raise FileError(f"`checkpoint` {source} is not a file: check its path.")
    require_memory(source.stat().st_size, str(source), "save the weights only, without the optimizer's state")
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    # Torch raises many kinds of errors here, of which only the first line is meant for people.
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise FileError(
            f"`checkpoint` {source} is damaged or holds Python objects besides weights, whose loading could run "
            "code: write it with torch.save(model.state_dict(), path)."
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()
    ):
        raise FileError(
            f"`checkpoint` {source} does not hold a dictionary of tensors: "
            "write it with torch.save(model.state_dict(), path)."
        )
    return dict(content)


def _check_match(
    source: Path, expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> None:
    missing = sorted(expected.keys() - found.keys())
    unknown = sorted(found.keys() - expected.keys())
    shapes = [
        f"{name} ({tuple(found[name].shape)} instead of {tuple(expected[name].shape)})"
        for name in sorted(expected.keys() & found.keys())
        if found[name].shape != expected[name].shape
    ]
    kinds = (("lacks", missing), ("has unknown", unknown), ("has another shape for", shapes))
    problems = []
    for verb, names in kinds:
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            problems.append(f"{verb} {', '.join(names[:_LISTED])}{more}")
    if problems:
        raise InputError(
            f"`checkpoint` {source} does not fit the model, because it {' and '.join(problems)}: "
            "load it into the model it was saved from."
        )
