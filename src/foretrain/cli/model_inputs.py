"""Models of users' files, and arrays of a data file as a model takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.support.errors import ForetrainError, InputError

if TYPE_CHECKING:
    from torch import Tensor, nn


def model_from(address: str, seed: int) -> nn.Module:
    """What ``model.py:make`` returns; what it draws without a seed of its own follows the command's."""
    import torch

    from foretrain.support.loading import load_model

    torch.manual_seed(seed)
    return load_model(address)


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


def takes_time_first(model: nn.Module, x: Any) -> bool:
    """Whether a recurrent layer alone wants (steps, samples, features); a file has samples first."""
    import torch

    return isinstance(model, torch.nn.RNNBase) and not model.batch_first and x.ndim == 3


def check_takes(model: nn.Module, x: Tensor, name: str = "x") -> None:
    """Refuse data that the model cannot take, in one sentence, before anything is computed."""
    import torch

    from foretrain.empirical.models.model import unchanged

    try:
        with unchanged(model), torch.random.fork_rng(devices=[]), torch.no_grad():
            returned = model(x)
    except ForetrainError:
        raise
    except Exception as error:  # whatever the user's model stumbles over
        said = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
        raise InputError(
            f"the model does not take samples of shape {tuple(x.shape[1:])}, which {name} of the data has ({said}): "
            "change the data or the model."
        ) from error
    if returned is None:
        raise InputError("the model returns nothing: let its forward return a tensor.")
