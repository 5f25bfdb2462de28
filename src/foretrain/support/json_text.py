"""JSON that any reader takes, of numbers that JSON has no words for."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(document: Mapping[str, Any]) -> str:
    """One JSON document; what is not a number becomes null, the infinite "Infinity" or "-Infinity"."""
    return json.dumps(jsonable(document), indent=2, allow_nan=False)


def jsonable(value: Any) -> Any:
    """The same as lists, dictionaries, texts and numbers that JSON can hold."""
    if hasattr(value, "to_dict") and hasattr(value, "answer"):  # a result
        return value.to_dict()
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if hasattr(value, "detach"):  # a tensor
        return jsonable(value.detach().cpu().tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if hasattr(value, "to_dict") and hasattr(value, "dims"):  # labelled arrays
        return jsonable(value.to_dict())
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    return str(value)
