"""Trials of different lengths, padded to one: the states after a trial's end are left out.

They keep their places among the axes, with zeros: nothing is asked of them, and nothing comes from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from foretrain.empirical.global_ntk.dynamics import Dynamics, Site, Values
from foretrain.operators import Space, SumSpace
from foretrain.support.errors import InputError, NotSupportedError


class TrialDynamics(Dynamics):
    """Dynamics whose trials end after ``lengths`` steps: its operators between the states up to there.

    No state may follow from one after the end of its trial. P is the identity on what is left out.
    """

    def __init__(self, whole: Dynamics, lengths: Any) -> None:
        self._whole, self.space, self.parameters = whole, whole.space, whole.parameters
        self.best_block = whole.best_block
        members = whole.space.members.values() if isinstance(whole.space, SumSpace) else [whole.space]
        spaces = [member.plain("trials of different lengths") for member in members]
        self.lengths = _checked(lengths, spaces)
        self._mask = torch.cat([self._kept(space).flatten() for space in spaces]).to(whole.values)
        self.values = whole.values * self._mask
        drawn = torch.randn(1, len(self._mask), generator=torch.Generator().manual_seed(0)).to(self._mask)
        reached = whole.propagate(drawn * (1 - self._mask)) * self._mask
        if bool(reached.any()):
            raise NotSupportedError(
                "states follow from others after the end of their trial, as in a layer that reads backwards: give "
                "trials of one length together, each length on its own."
            )

    def _kept(self, space: Space) -> Tensor:
        """1 up to the end of each trial, 0 after it, in the shape of a state."""
        ahead = torch.arange(space["time"]) < torch.tensor(self.lengths)[:, None]
        rest = space.shape[2:]
        return ahead.view(*space.shape[:2], *(1,) * len(rest)).expand(space.shape)

    @property
    def structure(self) -> str:
        """That of all states, and how many are left out."""
        left = int((self._mask == 0).sum())
        return f"{self._whole.structure} {left} states after the ends of trials are left out, as zeros."

    @property
    def flops(self) -> float:
        """As for all states."""
        return self._whole.flops

    @property
    def draws_by_sample(self) -> bool:
        """As for all states."""
        return self._whole.draws_by_sample

    def random_states(self, count: int, generator: torch.Generator, *, by_sample: bool = False) -> Tensor:
        """J g."""
        return self._whole.random_states(count, generator, by_sample=by_sample) * self._mask

    def propagate(self, changes: Tensor) -> Tensor:
        """P."""
        return self._whole.propagate(changes * self._mask) * self._mask + changes * (1 - self._mask)

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P*."""
        return self._whole.propagate_adjoint(vectors * self._mask) * self._mask + vectors * (1 - self._mask)

    def constrain(self, changes: Tensor) -> Tensor:
        """P^-1."""
        return self._whole.constrain(changes * self._mask) * self._mask + changes * (1 - self._mask)

    def constrain_adjoint(self, vectors: Tensor) -> Tensor:
        """Its adjoint."""
        return self._whole.constrain_adjoint(vectors * self._mask) * self._mask + vectors * (1 - self._mask)

    def local_push(self, tangents: Values) -> Tensor:
        """D_theta f."""
        return self._whole.local_push(tangents) * self._mask

    def local_pull(self, vectors: Tensor) -> Values:
        """Its adjoint."""
        return self._whole.local_pull(vectors * self._mask)

    def push(self, tangents: Values) -> Tensor:
        """J."""
        return self._whole.push(tangents) * self._mask

    def pull(self, vectors: Tensor) -> Values:
        """J*."""
        return self._whole.pull(vectors * self._mask)

    def product(self, vectors: Tensor) -> Tensor:
        """J J*."""
        return self._whole.product(vectors * self._mask) * self._mask

    @cached_property
    def sites(self) -> Sequence[Site]:
        """Those of all states, with rows of zeros after the ends of trials."""
        return [_TrialSite(site, self) for site in self._whole.sites]


class _TrialSite(Site):
    """A site whose products change the states up to the ends of trials alone."""

    def __init__(self, whole: Site, dynamics: TrialDynamics) -> None:
        self._whole, self._dynamics = whole, dynamics
        self.parameters, self.space = whole.parameters, whole.space

    @property
    def inputs(self) -> Tensor:
        """V."""
        rows = self._whole.inputs
        if self.space.names[:-1] != ("batch", "time"):
            return rows
        return rows * self._dynamics._kept(self.space)[..., 0].reshape(-1, 1).to(rows)

    def propagate(self, changes: Tensor) -> Tensor:
        """P_w."""
        return self._whole.propagate(changes) * self._dynamics._mask

    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P_w*."""
        return self._whole.propagate_adjoint(vectors * self._dynamics._mask)


def _checked(lengths: Any, spaces: Sequence[Space]) -> list[int]:
    for space in spaces:
        if space.names[:2] != ("batch", "time"):
            raise InputError(
                f"`lengths=` says where trials end, but the states {space.describe()} have no axes (batch, time, "
                "...): leave it out."
            )
    samples, steps = spaces[0].shape[:2]
    found = [int(length) for length in lengths]
    if len(found) != samples or not all(1 <= length <= steps for length in found):
        raise InputError(
            f"`lengths=` must hold a number of steps from 1 to {steps} for each of {samples} samples, not {found}."
        )
    return found
