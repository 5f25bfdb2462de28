"""JSON that any reader takes, of numbers that JSON has no words for."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(document: Mapping[str, Any]) -> str:
    """One JSON document; what is not a number becomes null, the infinite "Infinity" or "-Infinity"."""
    return json.dumps(_jsonable(document), indent=2, allow_nan=False)


def _jsonable(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _jsonable(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
