"""Criticality of any residual block: the scale xi of its branch for which z -> gamma z + xi R(z) keeps its size.

Measured are the second moments G_zz, G_RR and G_Rz of the incoming signal z and the branch R(z), averaged over
neurons, samples and draws of the parameters (B.39)-(B.44). Demanding that the second moment of z stays as it is gives
xi (B.45). Tune the inside of the block first: its own layers should be critical, or R has lost the signal already.

One xi serves a whole stack of equal blocks as long as R sees only the size of z. Blocks that mix tokens or positions
also see how alike these are, which changes with depth: tune such blocks one after the other, each on the signal that
reaches it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from foretrain.empirical.models.model import explained
from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, integer, spawn

Factory = Callable[[], nn.Module]


@dataclass(frozen=True, repr=False)
class BlockTuning(Result):
    """Second moments of a block and the scale that keeps the signal's size; errors are over parameter draws."""

    gamma: float
    xi: float
    xi_error: float
    G_zz: float
    G_RR: float
    G_RR_error: float
    G_Rz: float
    G_Rz_error: float
    draws: int

    @property
    def growth(self) -> float:
        """Factor by which one block with xi = 1 multiplies the second moment of the signal."""
        return self.gamma**2 + (self.G_RR + 2 * self.gamma * self.G_Rz) / self.G_zz

    def answer(self) -> Answer:
        """What to write, and the moments it comes from."""
        rule = f"z -> {self.gamma:g} z + {self.xi:.4g} R(z)"
        statement = (
            f"Use {rule}: with xi = 1 every block would multiply the second moment by {self.growth:.4g}."
        )
        meanings = {"G_zz": "signal into the block", "G_RR": "out of the branch", "G_Rz": "overlap of both"}
        return fields_answer(self, statement, meanings)


def residual_scale(G_zz: float, G_RR: float, G_Rz: float, gamma: float) -> float:
    """The xi > 0 with (1 - gamma^2) G_zz = xi^2 G_RR + 2 gamma xi G_Rz (B.45).

    Examples
    --------
    >>> round(residual_scale(1.0, 0.8, 0.1, 0.5), 10)
    0.9077609185
    """
    skip = _check_gamma(gamma)
    if not all(math.isfinite(value) for value in (G_zz, G_RR, G_Rz)) or G_zz <= 0 or G_RR <= 0:
        raise InputError(
            f"G_zz = {G_zz:g}, G_RR = {G_RR:g}, G_Rz = {G_Rz:g}: give finite moments, G_zz and G_RR positive; "
            "a branch that gives zero has no scale."
        )
    if G_Rz**2 > G_zz * G_RR * (1 + 1e-9):
        raise InputError(
            f"G_Rz = {G_Rz:g} is larger than sqrt(G_zz G_RR) = {math.sqrt(G_zz * G_RR):g}, which no signal has: "
            "take all three averages over the same neurons, samples and draws."
        )
    overlap, fresh = skip * G_Rz, (1 - skip**2) * G_RR * G_zz
    root = math.sqrt(overlap**2 + fresh)
    # Two forms of the same root, each without cancellation on its side.
    return (root - overlap) / G_RR if overlap <= 0 else fresh / G_RR / (root + overlap)


def tune_block(
    block: nn.Module | Factory, z: torch.Tensor, gamma: float, *, draws: int = 16, seed: Seed = 0
) -> BlockTuning:
    """Measure a residual branch at initialisation and find the xi of z -> gamma z + xi R(z) that keeps G_zz.

    Parameters
    ----------
    block
        The branch R: a module, whose parameters are redrawn on copies by the ``reset_parameters`` of its submodules
        (frozen ones stay as they are), or a function without arguments that makes a freshly initialised module. Give
        the function if you initialise by hand: redrawing means torch's own initialisation.
    z
        What enters the block, such as a batch of signals from the layer before; the first axis is the batch.
    gamma
        Coupling of the skip connection, between -1 and 1.

    The block's mode (train or eval), dtype and device are kept; neither the block nor z nor torch's random state is
    changed.

    Examples
    --------
    >>> branch = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    >>> tuned = tune_block(branch, torch.randn(100, 64), gamma=0.9)
    >>> out = lambda z: 0.9 * z + tuned.xi * branch(z)
    """
    _check_gamma(gamma)
    if not isinstance(z, torch.Tensor) or not z.is_floating_point():
        raise InputError("z must be a torch tensor of real numbers: what enters the block, batch first.")
    if z.numel() == 0 or not torch.isfinite(z).all() or not z.any():
        raise InputError(
            "z is empty, zero or not finite: give signals such as the block sees in the network."
        )
    count = whole_number("draws", draws, least=2)  # so that there is a standard error
    make = _maker(block)
    moments = np.array([_moments(make, z, own) for own in track(spawn(seed, count), "draws")])
    G_zz = float((z.detach().cpu().double() ** 2).mean())
    G_RR, G_Rz = (float(value) for value in moments.mean(axis=0))
    errors = moments.std(axis=0, ddof=1) / math.sqrt(count)
    # The standard error of xi, from leaving out one draw at a time.
    others = (moments.sum(axis=0) - moments) / (count - 1)
    scales = np.array([residual_scale(G_zz, RR, Rz, gamma) for RR, Rz in others])
    return BlockTuning(
        gamma=float(gamma),
        xi=residual_scale(G_zz, G_RR, G_Rz, gamma),
        xi_error=float(np.sqrt((count - 1) * scales.var())),
        G_zz=G_zz,
        G_RR=G_RR,
        G_RR_error=float(errors[0]),
        G_Rz=G_Rz,
        G_Rz_error=float(errors[1]),
        draws=count,
    )


def _moments(make: Factory, z: torch.Tensor, seed: Seed) -> tuple[float, float]:
    """G_RR and G_Rz of one draw of the parameters."""
    # Initialisation and dropout draw from torch's global state; here from ``seed``, and the state is put back, that
    # of all devices of the kind, because torch.manual_seed seeds them all.
    kind = "cuda" if z.device.type == "cpu" else z.device.type
    devices = range(torch.get_device_module(kind).device_count())
    with torch.random.fork_rng(devices, device_type=kind), torch.no_grad():
        torch.manual_seed(integer(seed))
        module = make()
        for name, own in module.named_parameters():
            if own.is_floating_point() and (own.dtype, own.device) != (z.dtype, z.device):
                raise InputError(
                    f"z is {z.dtype} on {z.device}, but parameter {name} of the block is {own.dtype} on "
                    f"{own.device}: convert one of them."
                )
        # A copy, because modules that work in place would change z.
        with explained(z, module.parameters(), "z"):
            out = module(z.detach().clone())
    if not isinstance(out, torch.Tensor):
        raise InputError(
            f"the block returned {type(out).__name__}: wrap it in a module that returns the branch as one tensor."
        )
    if out.shape != z.shape:
        raise InputError(
            f"the block changes the shape from {tuple(z.shape)} to {tuple(out.shape)}: a residual branch must "
            "keep it, so add a projection or tune only the part that does."
        )
    if not torch.isfinite(out).all():
        raise InputError("the block returned values that are not finite: make its own layers critical first.")
    signal, branch = (tensor.detach().cpu().double() for tensor in (z, out))
    return float((branch**2).mean()), float((branch * signal).mean())


def _maker(block: nn.Module | Factory) -> Factory:
    """A function that gives the block with freshly drawn parameters."""
    if not callable(block):
        raise InputError(f"the block is {block!r}: give a torch module or a function that makes one.")

    if not isinstance(block, nn.Module):

        def make() -> nn.Module:
            module = block()
            if not isinstance(module, nn.Module):
                raise InputError(f"the function gave {type(module).__name__}: it must return a torch module.")
            return module

        return make
    missing = [
        f"{name or 'the block itself'} ({type(part).__name__})"
        for name, part in _drawn(block)
        if _reset_of(part) is None
    ]
    if missing:
        raise NotSupportedError(
            f"{', '.join(missing)} holds parameters but has no reset_parameters(): pass a function that makes a "
            "freshly initialised block, such as tune_block(lambda: MyBlock(64), z, gamma)."
        )

    def redraw() -> nn.Module:
        module = copy.deepcopy(block)
        # Children first: what a parent's own reset says about them is the last word.
        for part in reversed([part for _, part in _drawn(module)]):
            reset = _reset_of(part)
            if reset is not None:
                reset()
        return module

    return redraw


def _drawn(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Submodules with parameters of their own that are to be drawn."""
    for name, part in module.named_modules():
        if any(parameter.requires_grad for parameter in part.parameters(recurse=False)):
            yield name, part


def _reset_of(part: nn.Module) -> Callable[[], object] | None:
    # torch's attention spells it with an underscore.
    for name in ("reset_parameters", "_reset_parameters"):
        reset = getattr(part, name, None)
        if callable(reset):
            return reset  # type: ignore[no-any-return]
    return None


def _check_gamma(gamma: float) -> float:
    if not -1 < gamma < 1:
        raise InputError(
            f"`gamma` is {gamma!r}: give a number between -1 and 1; at 1 no xi keeps the signal."
        )
    return float(gamma)
