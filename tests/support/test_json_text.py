from __future__ import annotations

import json
import math

import numpy as np

from foretrain.support.json_text import json_text


def test_json_holds_what_json_has_no_number_for() -> None:
    document = {
        "nan": math.nan,
        "infinite": [math.inf, -np.inf],
        "array": np.array([[1.0, np.nan]]),
        "integer": np.int64(3),
        "truth": np.bool_(True),
        "tuple": (1, None, "κ"),
        1: {"nested": np.float32(0.5)},
    }
    assert json.loads(json_text(document)) == {
        "nan": None,
        "infinite": ["Infinity", "-Infinity"],
        "array": [[1.0, None]],
        "integer": 3,
        "truth": True,
        "tuple": [1, None, "κ"],
        "1": {"nested": 0.5},
    }
