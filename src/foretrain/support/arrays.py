"""Arrays of numpy, or tensors of torch on any device: one code for both, by functions that both have by one name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def namespace(values: Any) -> Any:
    """The library that an array belongs to: numpy, or torch, which is imported if there is a tensor."""
    return np if isinstance(values, np.ndarray | np.generic) else sys.modules["torch"]


def on_host(values: Any) -> NDArray[Any]:
    """The numbers as a numpy array."""
    return values if isinstance(values, np.ndarray) else np.asarray(values.detach().cpu())


def beside(values: NDArray[Any], like: Any) -> Any:
    """Numbers of numpy where another array is, real ones with its precision."""
    library, real = namespace(like), values.dtype.kind == "f"
    if library is np:
        return values.astype(like.dtype, copy=False) if real and like.dtype.kind == "f" else values
    precision = like.dtype if real and like.dtype.is_floating_point else None
    return library.as_tensor(values, dtype=precision, device=like.device)


def zeros(shape: Sequence[int], like: Any) -> Any:
    """Real zeros where another array is, with its precision if that holds real numbers."""
    return (
        beside(np.zeros(shape), like)
        if namespace(like) is np or not like.is_floating_point()
        else like.new_zeros(shape)
    )
