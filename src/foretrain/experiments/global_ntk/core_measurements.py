"""What figure 3 measures on a recurrent network: how alike NTK_S and its core are, their views in time, two targets.

Biases are left out of the recurrent layer, as in V = cat(H_-, X): they would add columns of ones to V, a mode that
is constant in time. Views in time are partial traces over the units, tr_unit(A) / units; those named "pairs" sum over
all pairs of units instead, which is what expanding a vector along the units and averaging the result comes to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.networks import descend
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.empirical.global_ntk import GlobalNTK
    from foretrain.operators import Operator
    from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent


MODES = 4  # of every view that are kept
_ACCURACY = 0.01
_IMPULSES = 256  # changes by random signs for the view of P
_SPEED = 0.5  # of the largest stable step of gradient descent


def network(units: int, outputs: int, seed: np.random.SeedSequence, learning: str = "weight") -> Recurrent:
    """A GRU by Xavier's rule, with biases zero; its recurrent parameters learn if their name begins like this."""
    from foretrain.training.tasks.memory_pro import Recurrent

    found = Recurrent(3, units, outputs, "gru", seed=seed)
    for name, value in found.recurrent.named_parameters():
        value.requires_grad_(name.startswith(learning))
    return found


def likeness(kernel: GlobalNTK, seed: int) -> xarray.Dataset:
    """Cosines of NTK_S with the proxy V V* (x) I, with the direct sum over weights, and with the identity."""
    from foretrain.operators import identity

    unit = identity(kernel.domain, dtype=kernel.dtype)
    found = {
        "proxy": kernel.cosine(kernel.concatenated_core, accuracy=_ACCURACY, seed=seed),
        "direct sum": kernel.cosine(kernel.core, products=16, seed=seed),
        "identity": kernel.cosine(unit, accuracy=_ACCURACY, seed=seed),
    }
    values, errors = zip(*((each.value, each.standard_error) for each in found.values()), strict=True)
    cosines = {"cosine": ("operator", list(values)), "cosine_error": ("operator", list(errors))}
    return xarray.Dataset(cosines, {"operator": list(found)})


def views(kernel: GlobalNTK, seed: int, *, with_local: bool = True) -> xarray.Dataset:
    """Singular values of the views in time of NTK_S, V V*, P and K, and leading modes of the symmetric ones.

    That of K, which takes a product for every place and most of the time, can be left out.
    """
    matrices = {"NTK": kernel.temporal(accuracy=_ACCURACY, seed=seed).matrix, "core": core_view(kernel)}
    if with_local:
        # No weight of one unit touches another, so that all pairs are the equal ones: exact, at one product each.
        matrices["K"] = pair_view(kernel.K)
    return _described(matrices, sampled_propagator_blocks(kernel.P, _IMPULSES, seed), kernel)


def pair_views(kernel: GlobalNTK) -> xarray.Dataset:
    """The same for NTK_S and P averaged over all pairs of units."""
    import torch

    ones = torch.ones(1, kernel.domain.plain("pairs")["unit"], dtype=kernel.dtype)
    return _described({"NTK": pair_view(kernel)}, propagator_blocks(kernel.P, ones), kernel)


def core_view(kernel: GlobalNTK) -> torch.Tensor:
    """V V*."""
    rows = kernel.site_rows().double()
    return rows @ rows.t()


def pair_view(operator: Operator) -> torch.Tensor:
    """The sum over all pairs of units, divided by their number."""
    units = operator.domain.plain("pairs")["unit"]
    found = operator.pair_sum(over="unit").dense().double() / units
    return (found + found.t()) / 2  # products in float32 are not quite symmetric


def propagator_blocks(P: Operator, weightings: torch.Tensor) -> torch.Tensor:
    """The mean over weightings s of the units of s* P s / units, for every sample: (batch, time, time).

    P does not mix samples, so that one product serves all of them.
    """
    import torch

    batch, steps, units = P.domain.plain("the propagator").shape
    found = torch.zeros(batch, steps, steps, dtype=torch.float64)
    for step in range(steps):
        given = weightings.new_zeros(len(weightings), batch, steps, units)
        given[:, :, step] = weightings[:, None]
        answer = P.apply(given.flatten(1)).view_as(given)
        found[:, :, step] = torch.einsum("sbtu,su->bt", answer, weightings).double()
    return found / (len(weightings) * units)


def sampled_propagator_blocks(P: Operator, count: int, seed: int) -> torch.Tensor:
    """tr_unit(P) / units for every sample, (batch, time, time), from changes by random signs at all steps at once.

    The signs of a step see what P makes of their own change; what it makes of those at other steps has mean zero. A
    change at the same step stays as it is, and none reaches an earlier step: these entries are exact.
    """
    import torch

    from foretrain.operators.vectors import random_signs

    batch, steps, units = P.domain.plain("the propagator").shape
    found = torch.zeros(batch, steps, steps, dtype=torch.float64)
    signs = random_signs(count, steps * units, seed, dtype=P.dtype, device=P.device).view(count, steps, units)
    for part in torch.split(signs, P.best_block):
        given = part[:, None].expand(-1, batch, -1, -1)
        later = P.apply(given.flatten(1)).view(given.shape) - given
        found += torch.einsum("ibtu,isu->bts", later, part).double()
    return (found / (count * units)).tril(-1) + torch.eye(steps, dtype=torch.float64)


def _described(
    matrices: dict[str, torch.Tensor], propagator: torch.Tensor, kernel: GlobalNTK
) -> xarray.Dataset:
    """Singular values of all views and of P by falling size, and eigenvectors of the matrices as (batch, time)."""
    import torch

    batch, steps, _ = kernel.domain.plain("a view").shape
    values, modes = [], []
    for matrix in matrices.values():
        found, vectors = torch.linalg.eigh(matrix)
        leading = vectors.flip(1)[:, :MODES].t()
        largest = leading.gather(1, leading.abs().argmax(1, keepdim=True))
        modes.append((leading * largest.sign()).reshape(-1, batch, steps).numpy())
        values.append(found.flip(0).clamp_min(0).numpy())
    blocks = torch.linalg.svdvals(propagator)
    values.append(np.sort(blocks.flatten().numpy())[::-1].copy())
    return xarray.Dataset(
        {
            "singular_value": (("view", "index"), np.stack(values)),
            "mode": (("shown_view", "number", "batch", "time"), np.stack(modes)),
        },
        {"view": [*matrices, "P"], "shown_view": list(matrices), "number": np.arange(1, MODES + 1)},
    )


def modes_needed(values: FloatArray, share: float = 0.95, power: int = 1) -> int:
    """The number of largest singular values whose powers make this share of the sum."""
    parts = np.cumsum(np.sort(values)[::-1] ** power)
    return int(np.searchsorted(parts, share * parts[-1])) + 1


def targets(task: MemoryPro, angles: torch.Tensor, core: torch.Tensor) -> dict[str, torch.Tensor]:
    """Three targets (batch, time) of one length.

    The second mode of the core, which tells angles apart, and two that live in the response period only.
    """
    import torch

    _, vectors = torch.linalg.eigh(core)
    response = torch.zeros(len(angles), task.steps, dtype=torch.float64)
    response[:, task.periods["response"]] = 1
    found = {
        "aligned": vectors[:, -2].reshape(response.shape),
        "response, angle": response * angles.cos()[:, None],
        "response, constant": response,
    }
    length = float(found["response, angle"].norm())
    return {name: length * target / target.norm() for name, target in found.items()}


def learned(model: Recurrent, x: torch.Tensor, target: torch.Tensor, eta: float, steps: int) -> FloatArray:
    """Gradient descent on half the squared distance from the first answer plus a target, relative to its start."""
    import torch

    wanted = model(x).detach()[..., 0] + target.to(x)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=eta)
    losses = descend(optimizer, lambda: 0.5 * (model(x)[..., 0] - wanted).square().sum(), steps + 1)
    return np.asarray(losses / losses[0])


def output_kernel(model: Recurrent, x: torch.Tensor) -> FloatArray:
    """The tangent kernel of the single output at all samples and steps, (batch * time, batch * time)."""
    from foretrain.empirical.tangent_kernel import ntk

    found = np.asarray(ntk(model, x), dtype=float)
    return np.asarray(found.transpose(0, 2, 1, 3).reshape(x.shape[0] * x.shape[1], -1))


def frozen_losses(kernel: FloatArray, target: FloatArray, steps: int) -> tuple[float, FloatArray]:
    """The step of gradient descent, and relative losses were the kernel frozen: errors shrink by 1 - eta kernel."""
    values, vectors = np.linalg.eigh(kernel)
    eta = _SPEED * 2 / float(values[-1])
    start = (vectors.T @ target.ravel()) ** 2
    factors = (1 - eta * values)[None] ** (2 * np.arange(steps + 1)[:, None])
    return eta, factors @ start / start.sum()
