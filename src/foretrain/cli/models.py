"""Models of users' files, arrays of a data file as a model takes them, and the way from both to a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from foretrain.support.errors import ForetrainError, InputError, unknown_name

if TYPE_CHECKING:
    from torch import Tensor, nn

    from foretrain.doctor import Diagnosis

_WITH_MOMENTUM = ("sgd", "rmsprop")

Data = Annotated[
    Path,
    typer.Argument(
        help="data.npz with x and y, samples first, perhaps a mask of y; without x, arrays with the names of the "
        "model's arguments."
    ),
]
Optimizer = Annotated[
    str | None,
    "sgd, adam, adamw, rmsprop, adagrad, nadam, radam, any other class of torch.optim, or shampoo, as in "
    "--optimizer rmsprop [default: sgd].",
]
Rate = Annotated[
    float | None, "Learning rate [default: half the largest stable one for sgd, else the optimizer's own]."
]
Momentum = Annotated[float, "Of sgd or rmsprop, as in --lr 0.1 --momentum 0.9."]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Samples in a step [default: all].")
]
WeightDecay = Annotated[float, "Of the optimizer, as in --optimizer adamw --weight-decay 0.01."]
ClipNorm = Annotated[
    float | None, "Clip the norm of all gradients together, as in --clip-norm 1 [default: no clipping]."
]
Accumulate = Annotated[
    int, typer.Option("--accumulate", min=1, help="Batches in a step, as in --batch-size 16 --accumulate 4.")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="WEIGHTS.pt", help="Weights to start from: training has begun."),
]


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


@dataclass(frozen=True)
class Training:
    """How a model of a file is trained, as the options of a command say it."""

    loss: str | None = None
    optimizer: str | None = None
    lr: float | None = None
    momentum: float = 0.0
    batch_size: int | None = None
    checkpoint: Path | None = None
    weight_decay: float = 0.0
    clip_norm: float | None = None
    accumulate: int = 1

    def examined(
        self, model: str, data: Path, seed: int, checks: str | None = None, budget: float | None = None
    ) -> Diagnosis:
        """The diagnosis of a model's file on a data file; what cannot be used is refused before the work."""
        from foretrain.compare.task import named_loss
        from foretrain.doctor.examine import chosen_checks, doctor
        from foretrain.support.loading import load_callable, load_checkpoint, load_mask, load_model_data

        chosen_checks(checks)
        own = self.loss is not None and ":" in self.loss
        loss = load_callable(str(self.loss)) if own else self.loss
        named_loss(loss)
        if self._name != "shampoo" and self._name not in _torch_optimizers():
            raise unknown_name("`optimizer`", self._name, [*_torch_optimizers(), "shampoo"])
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise InputError(f"--lr is {self.lr:g}: give a positive learning rate.")
        if not 0 <= self.momentum < 1:
            raise InputError(f"--momentum is {self.momentum:g}: give a number from 0 to below 1.")
        if not 0 <= self.weight_decay < float("inf"):
            raise InputError(f"--weight-decay is {self.weight_decay:g}: give a number from 0 on.")
        if self.momentum and self._name not in _WITH_MOMENTUM:
            raise InputError(f"--momentum is an option of sgd and rmsprop: leave it out for {self._name}.")
        for option, value in (("--momentum", self.momentum), ("--weight-decay", self.weight_decay)):
            if value and self._name == "sgd" and self.lr is None:
                raise InputError(
                    f"{option} needs --lr: the rate that is chosen without it is that of plain descent."
                )
        (inputs, targets), network, mask = load_model_data(data), model_from(model, seed), load_mask(data)
        if self.checkpoint is not None:
            load_checkpoint(network, self.checkpoint)
        y = known_to_torch(targets)
        if isinstance(inputs, dict):
            x: Any = {name: known_to_torch(array) for name, array in inputs.items()}
        else:
            x = known_to_torch(inputs)
        # A recurrent layer alone may take time first; a file has samples first.
        if (
            not isinstance(x, dict)
            and takes_time_first(network, x)
            and y.ndim >= 2
            and y.shape[:2] == x.shape[:2]
        ):
            x, y = x.swapaxes(0, 1), y.swapaxes(0, 1)
        return doctor(
            network,
            x,
            y,
            loss=loss,
            optimizer=self._optimizer(network),
            batch_size=self.batch_size,
            accumulate=self.accumulate,
            clip_norm=self.clip_norm,
            mask=mask,
            fresh=None if self.checkpoint is None else False,
            checks=checks,
            budget=budget,
            seed=seed,
        )

    @property
    def _name(self) -> str:
        return "sgd" if self.optimizer is None else self.optimizer.lower()

    def _optimizer(self, network: nn.Module) -> Any:
        """A torch optimizer; None where the doctor is to choose the rate of plain descent."""
        trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
        if not trained:
            raise InputError("the model has no parameter with requires_grad: there is nothing to train.")
        if self._name == "sgd" and self.lr is None:
            return None
        given = {"lr": self.lr, "momentum": self.momentum or None, "weight_decay": self.weight_decay or None}
        options = {name: value for name, value in given.items() if value is not None}
        if self._name == "shampoo":
            from foretrain.training.optimizers import shampoo  # it takes seconds to import

            return shampoo(trained, **{"lr": 1e-3, **options})
        try:
            return _torch_optimizers()[self._name](trained, **options)
        except (TypeError, ValueError) as error:
            raise InputError(f"the optimizer {self._name} does not take these options ({error}).") from error


def _torch_optimizers() -> dict[str, Any]:
    """The classes of torch.optim, by their names in small letters."""
    import torch

    kinds = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    return {
        name: kind
        for name, kind in kinds.items()
        if issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
