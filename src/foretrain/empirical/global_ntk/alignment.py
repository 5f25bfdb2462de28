"""Which modes of a target gradient descent can learn from here.

The target's modes (see ``target_modes``) are those of its mean over trials and of the deviations from it, those of
the target as a whole, or of parts of one's own. A mode is learned fast if NTK_S maps it to itself with a large
factor: its Rayleigh quotient <u, A u> / <u, u>, and the cosine between u and A u, which is 1 for an eigenvector.
Without a readout A is the temporal kernel tr_unit(NTK_S) / units, and u the mode itself. With a linear readout
(outputs, units) the mode lives in the states: u (x) (direction of the outputs, brought back by the readout). With a
mask W, A is sqrt(W) A sqrt(W).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.global_ntk.dynamics import places_of
from foretrain.empirical.global_ntk.readout import readout_weight
from foretrain.empirical.target_modes import Components, TargetModes, mask_weights, target_modes
from foretrain.operators.vectors import random_signs
from foretrain.support.answers import (
    BLUE,
    INK,
    SKY,
    Answer,
    Axis,
    Column,
    Figure,
    Result,
    Table,
    labelled,
    log,
    picked,
)
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK

Array = NDArray[np.float64]

_FIELDS = "singular_values rayleigh cosine proxy_rayleigh proxy_cosine standard_error"
_EXACT_UNITS = 64
_FIRST_PROBES = 16


@dataclass(frozen=True, repr=False, eq=False)
class StateAlignment(Result):
    """For every mode of the target: its singular value, and how NTK_S and the proxy V V* treat it.

    Rayleigh quotients are relative to the mean eigenvalue of their operator, so that 1 is what a random direction
    has. ``proxy_*`` is nan where the states have no concatenated core. ``modes`` are their names.
    """

    modes: tuple[str, ...]
    singular_values: Array
    rayleigh: Array
    cosine: Array
    proxy_rayleigh: Array
    proxy_cosine: Array
    standard_error: Array  # of the Rayleigh quotients; 0 where they are exact

    def answer(self) -> Answer:
        """How fast each mode of the target changes from here, and which one lags behind."""
        statement = (
            "Speed is the Rayleigh quotient over the mean eigenvalue: 1 is what a random direction has."
        )
        record = picked(self, _FIELDS)
        names = np.array(self.modes, dtype=str)
        variables = {name: ("mode", values) for name, values in record.items()}
        data = labelled(variables | {"name": ("mode", names)}, None, ["mode"])
        energies, known = self.singular_values**2, np.isfinite(self.proxy_rayleigh).all()
        columns = {
            "target mode": list(self.modes),
            "energy": energies / energies.sum(),
            Column("speed", error="±"): self.rayleigh,
            "±": self.standard_error,
            "cosine": self.cosine,
        }
        proxy = {"speed by core": self.proxy_rayleigh, "cosine by core": self.proxy_cosine}
        table = Table.of(columns | (proxy if known else {}))
        fast, slow = int(np.argmax(self.rayleigh)), int(np.argmin(self.rayleigh))
        said = []
        if len(energies) > 1 and self.rayleigh[slow] <= self.rayleigh[fast] / 3:
            ratio = self.rayleigh[fast] / self.rayleigh[slow] if self.rayleigh[slow] > 0 else np.inf
            said = [
                f"From here gradient descent changes {self.modes[slow]} of the target {ratio:.3g} times more slowly "
                f"than {self.modes[fast]}."
            ]
        record["modes"] = list(self.modes)
        return Answer(statement, [table, *said, self.draw], data, record)

    def draw(self, figure: Figure | None = None, ending: str = "") -> Figure:
        """Draw the speed of every mode, by NTK_S and by the core: 1 is a random direction."""
        figure = figure or Figure(size=(5.6, 4.4))
        at, energies = np.arange(1, len(self.rayleigh) + 1), self.singular_values**2
        shares = energies / energies.sum()
        ticks = {float(i): f"{self.modes[i - 1].removeprefix('mode ')}\n{shares[i - 1]:.0%}" for i in at}
        speeds = np.array([*self.rayleigh, *self.proxy_rayleigh, 1.0])
        low = max(0.4 * float(np.nanmin(speeds)), 1e-8)
        panel = figure.panel(
            f"Speed of the target's modes{ending}",
            Axis("mode of the target, and its part of the target", ticks=ticks),
            log("", low=low, room=0.3),
        )
        texts = [f"cos {cosine:.2f}" for cosine in self.cosine]
        panel.bars(at - 0.2, self.rayleigh, "NTK", BLUE, error=self.standard_error, width=0.36, texts=texts)
        if np.isfinite(self.proxy_rayleigh).any():
            panel.bars(at + 0.2, self.proxy_rayleigh, "core $V V^*$", SKY, width=0.36)
        panel.level(y=1.0, color=INK, dash="--")
        return figure


def alignment(
    kernel: GlobalNTK,
    target: Any,
    readout: Any = None,
    modes: int = 3,
    accuracy: float = 0.02,
    seed: Seed = 0,
    *,
    components: Components = "trials",
    mask: Any = None,
    model: nn.Module | None = None,
) -> StateAlignment:
    """Modes of a target (batch, time, outputs) under NTK_S and under the proxy V V* (x) I.

    ``components`` and ``mask`` are those of ``target_modes``, with ``modes`` of each component. ``readout`` is a
    matrix (outputs, units), a linear layer, or what ``find_readout`` returns; a layer's name needs ``model=`` too.

    >>> import foretrain as ft
    >>> gru, head = torch.nn.GRU(2, 8, batch_first=True), torch.nn.Linear(8, 1)
    >>> ft.global_ntk(gru, torch.randn(3, 5, 2)).alignment(torch.randn(3, 5, 1), head).modes
    ('mean', 'deviation')
    """
    places = places_of(kernel.domain, "alignment with a target")
    values = torch.as_tensor(np.asarray(target) if not isinstance(target, Tensor) else target.detach())
    if tuple(values.shape[: len(places.shape)]) != places.shape:
        raise InputError(
            f"the target has shape {tuple(values.shape)}, but it must begin with {places.describe()}: one value or "
            "vector for every place of the states."
        )
    y = values.reshape(*places.shape, -1).double().cpu().numpy()
    y = np.where(mask_weights(mask, y.shape) > 0, y, 0.0)
    if not np.isfinite(y).all():
        raise InputError("the target has entries that are nan or infinite: remove or replace them first.")
    found = target_modes(y, modes, components, mask)
    like, weights = kernel.dynamics.values, torch.from_numpy(found.weights)
    vectors, by_place = torch.from_numpy(found.left).to(like), weights[:, 0].to(like)
    if readout is None:
        if bool((weights != weights[:, :1]).any()):
            raise InputError(
                "a mask that differs between outputs needs `readout=`, which says where they are read."
            )
        quotient, cosine, error = _temporal(kernel, vectors, by_place, accuracy, seed)
    else:
        quotient, cosine, error = _through(kernel, readout_weight(readout, model), found)
    trace = kernel.trace(accuracy=accuracy, seed=seed)
    mean = trace.value / kernel.size
    error = np.hypot(error, quotient * trace.standard_error / trace.value)  # both are relative to the mean
    proxy = np.full((2, len(vectors)), np.nan)  # under V V*: relative Rayleigh quotients and cosines
    try:
        rows = kernel.site_rows()
    except NotSupportedError:
        rows = vectors.new_empty(0, 0)
    if len(rows) == places.size:
        seen = by_place[:, None] * rows
        proxy = np.array(_quotients(vectors, vectors @ seen @ seen.t()))
        proxy[0] /= float(rows.double().square().sum()) / len(rows)
    return StateAlignment(
        found.names, found.values, quotient / mean, cosine, proxy[0], proxy[1], error / mean
    )


def _temporal(
    kernel: GlobalNTK, modes: Tensor, weights: Tensor, accuracy: float, seed: Seed
) -> tuple[Array, Array, Array]:
    """<u, A u>, the cosine of u and A u, and the error of the first, for A = tr_unit(NTK_S) / units between weights.

    A u is the mean of s* NTK_S (u (x) s) over signs s of the units, or over their basis if there are few.
    """
    units = kernel.size // modes.shape[1]
    count = _FIRST_PROBES
    while count < units and units > _EXACT_UNITS:
        signs = random_signs(count, units, seed, dtype=modes.dtype, device=modes.device)
        draws = _carried(kernel, weights * modes, signs) * weights
        single = (draws * modes[:, None]).sum(-1) / units  # (modes, probes)
        error = single.std(1) / count**0.5
        if bool((error <= accuracy * single.mean(1).abs()).all()):
            return *_quotients(modes, draws.mean(1) / units), error.double().cpu().numpy()
        count *= 2
    basis = torch.eye(units, dtype=modes.dtype, device=modes.device)
    found = _carried(kernel, weights * modes, basis).sum(1) * weights / units
    return *_quotients(modes, found), np.zeros(len(modes))


def _carried(kernel: GlobalNTK, modes: Tensor, weights: Tensor) -> Tensor:
    """s* NTK_S (u (x) s) for every mode u and weighting s of the units: (modes, weightings, places)."""
    rows = []
    for mode in modes:
        vectors = (mode[None, :, None] * weights[:, None, :]).flatten(1)
        products = kernel.apply(vectors).view(len(weights), len(mode), -1)
        rows.append(torch.einsum("spu,su->sp", products, weights))
    return torch.stack(rows)


def _through(kernel: GlobalNTK, weight: Tensor, found: TargetModes) -> tuple[Array, Array, Array]:
    """The same for modes as vectors of states, place (x) readout* direction, under NTK_S itself."""
    modes, (places, outputs) = len(found.values), found.matrix.shape
    units = kernel.size // places
    if tuple(weight.shape) != (outputs, units):
        raise InputError(
            f"`readout=` must be a matrix ({outputs} outputs, {units} units), not {tuple(weight.shape)}."
        )
    like, weights = kernel.dynamics.values, torch.from_numpy(found.weights)
    wanted = torch.from_numpy(found.vectors).view(modes, places, outputs) * weights
    vectors = (wanted.to(like) @ weight.to(like)).flatten(1)
    counted = (weights > 0).any(1)[:, None].to(like)
    products = kernel.apply(vectors).view(modes, places, units) * counted
    return *_quotients(vectors, products.flatten(1)), np.zeros(modes)


def _quotients(vectors: Tensor, products: Tensor) -> tuple[Array, Array]:
    """<u, A u> / <u, u>, and the cosine of u and A u."""
    u, Au = vectors.double(), products.double()
    overlap, length = (u * Au).sum(1), u.square().sum(1)
    cosine = overlap / (length.sqrt() * Au.norm(dim=1)).clamp_min(torch.finfo(torch.float64).tiny)
    return (overlap / length).cpu().numpy(), cosine.cpu().numpy()
