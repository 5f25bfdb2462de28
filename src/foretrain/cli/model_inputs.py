"""Arrays of a data file as a model takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor, nn


def as_inputs(values: Any, model: nn.Module) -> Tensor:
    """In the model's precision and on its device; whole numbers stay such only for models with embeddings."""
    import torch

    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    embeds = any(isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) for module in model.modules())
    if values.dtype.kind in "biu" and embeds:
        return torch.as_tensor(values.astype(np.int64), device=like.device)
    return torch.as_tensor(np.ascontiguousarray(values)).to(like.detach())
