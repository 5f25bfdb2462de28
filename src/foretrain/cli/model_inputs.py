"""Arrays of a data file as a model takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


def known_to_torch(values: Any) -> Any:
    """Numbers finer than torch has any are rounded to float64."""
    return values.astype(np.float64) if values.dtype.kind == "f" and values.dtype.itemsize > 8 else values


def as_inputs(values: Any, model: nn.Module) -> Tensor:
    """In the model's precision and on its device; whole numbers stay such only for models with embeddings."""
    import torch

    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    embeds = any(isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) for module in model.modules())
    if values.dtype.kind in "biu" and embeds:
        return torch.as_tensor(values.astype(np.int64), device=like.device)
    return torch.as_tensor(np.ascontiguousarray(known_to_torch(values))).to(like.detach())


def check_takes(model: nn.Module, x: Tensor) -> None:
    """Refuse data that the model cannot take, in one sentence, before anything is computed."""
    import torch

    try:
        with torch.no_grad():
            returned = model(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        first = str(error).partition("\n")[0]
        raise InputError(
            f"the model does not take x of shape {tuple(x.shape)} ({first}): check the data or the model."
        ) from error
    if returned is None:
        raise InputError("the model returns nothing: let its forward return a tensor.")
