"""Vectors from what users have (torch, numpy, labelled arrays, dicts for direct sums), and flat blocks.

Flat blocks are rows of the identity, or random ones, which a seed makes the same on every device.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.spaces import Space, SumSpace, Vector, VectorSpace, leaves
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator

if TYPE_CHECKING:
    from foretrain.operators.linear_map import LinearMap
    from foretrain.operators.operator import Operator


def tensor_like(reference: Operator | VectorSpace, value: Any) -> Vector:
    """A vector, or a block of vectors, of an operator's domain or of a space, structured, from almost anything.

    numpy arrays, nested lists and tensors must have the space's shape or be flat; xarray arrays are transposed to
    the order of the space's axes by their dims' names; dicts give the members of a direct sum. An operator also sets
    dtype and device; a space keeps those of the value (whole numbers become float64).

    >>> from foretrain.operators import Space, tensor_like
    >>> tensor_like(Space.of(time=2, unit=3), range(6))
    tensor([[0., 1., 2.],
            [3., 4., 5.]], dtype=torch.float64)
    """
    if isinstance(reference, VectorSpace):
        space, dtype, device = reference, None, None
    else:
        space, dtype, device = reference.domain, reference.dtype, reference.device
    converted = _convert(space, value, dtype, device)
    if holds_one_vector(space, converted):
        return space.unflatten(space.flatten(converted))
    return space.unflatten_block(space.flatten_block(converted))


def holds_one_vector(space: VectorSpace, value: Vector) -> bool:
    """Whether a value has the form of a single vector rather than of a block."""
    if isinstance(space, SumSpace) and isinstance(value, Mapping):
        return all(holds_one_vector(space[name], part) for name, part in value.items())
    shapes = [(space.size,), *([space.shape] if isinstance(space, Space) else [])]
    return tuple(np.shape(value)) in shapes


def adopt(operator: LinearMap, value: Vector, space: VectorSpace) -> Vector:
    """Tensors as they are; anything else becomes a tensor of the operator's dtype on its device."""
    if all(isinstance(leaf, Tensor) for leaf in leaves(value)):
        return value
    return _convert(space, value, operator.dtype, operator.device)


def _convert(
    space: VectorSpace, value: Any, dtype: torch.dtype | None, device: torch.device | None
) -> Vector:
    if isinstance(value, Mapping) and not _is_labelled(value):
        if not isinstance(space, SumSpace):
            raise InputError(
                f"a dict is a vector of a direct sum, but {space.describe()} has no members: give a tensor."
            )
        return {name: _convert(space[name], part, dtype, device) for name, part in value.items()}
    if _is_labelled(value):
        plain = space.plain("a labelled array")
        if set(value.dims) != set(plain.names):
            raise InputError(
                f"the labelled array has the dims {tuple(value.dims)}, but the space has the axes {plain.names}: "
                "rename or select dims until they agree."
            )
        value = value.transpose(*plain.names).values
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        array = np.asarray(value)
        if array.dtype.kind not in "fiubc":
            raise InputError(
                f"a vector is made of numbers, but this value is of type {type(value).__name__}."
            )
        tensor = torch.as_tensor(array if array.flags.writeable else array.copy())
    if tensor.is_complex():
        raise NotSupportedError("complex vectors are not offered: give real and imaginary part separately.")
    if dtype is None:
        dtype = tensor.dtype if tensor.dtype in (torch.float32, torch.float64) else torch.float64
    return tensor.to(dtype=dtype, device=device)


def _is_labelled(value: Any) -> bool:
    """Whether a value is an xarray array; it cannot be one unless xarray has been imported."""
    xarray = sys.modules.get("xarray")
    return xarray is not None and isinstance(value, xarray.DataArray)


def random_signs(
    count: int, size: int, seed: Seed, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """A flat block (count, size) of independent signs, plus or minus one with equal chance."""
    bits = torch.randint(0, 2, (count, size), generator=torch_generator(seed), dtype=torch.int8)
    return (2 * bits - 1).to(dtype=dtype, device=device)


def random_normals(
    count: int, size: int, seed: Seed, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """A flat block (count, size) of independent standard normal numbers."""
    drawn = torch.randn(count, size, generator=torch_generator(seed), dtype=torch.float64)
    return drawn.to(dtype=dtype, device=device)


def basis_rows(
    start: int, stop: int, size: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> Tensor:
    """Rows start to stop of the identity matrix."""
    rows = torch.zeros(stop - start, size, dtype=dtype, device=device)
    rows[torch.arange(stop - start), torch.arange(start, stop)] = 1
    return rows
