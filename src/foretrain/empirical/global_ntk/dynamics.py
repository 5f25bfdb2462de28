"""A model at one point: its states, and how they answer to small changes of themselves and of the parameters.

All internal variables of a batch form one vector h with F(h, x, theta) = 0 (2), for a network that computes them one
after the other F = h - f(h before, x, theta) (5). Then P = (D_h F)^-1 carries a change that is added to the states on
to all that come after, D_theta f is what parameters do to a state while the states before it are held, and

    J = dh/dtheta = P D_theta f,    K = D_theta f D_theta f*,    NTK_S = J J* = P K P*    (Prop. 1).

An engine knows one kind of model: recurrent layers, a graph with named states, a constraint. Blocks of k vectors go
through it at once: states flat (k, size), parameters by name (k, *shape).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from foretrain.operators import Space, SumSpace
from foretrain.operators.spaces import VectorSpace
from foretrain.support.answers import Answer, Result
from foretrain.support.errors import NotSupportedError

Values = dict[str, Tensor]  # changes of parameters by name, (k, *shape)


class Dynamics(ABC):
    """The linearised model. ``space`` holds the full state, ``values`` is that state, flat."""

    space: VectorSpace
    values: Tensor
    parameters: Mapping[str, Tensor]  # those that count
    best_block: int = 16

    @property
    @abstractmethod
    def structure(self) -> str:
        """In words: which states were taken, how they follow from each other, and so what P and K are."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the states."""
        return self.values.dtype

    @property
    def device(self) -> torch.device:
        """Of the states."""
        return self.values.device

    @abstractmethod
    def propagate(self, changes: Tensor) -> Tensor:
        """P: what changes added to the states do to all states, (k, size) to (k, size)."""

    @abstractmethod
    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P*: the adjoint state of vectors, such as the gradient of a loss with respect to the states."""

    @abstractmethod
    def constrain(self, changes: Tensor) -> Tensor:
        """P^-1 = D_h F: what has to be added to the states for them to change so."""

    @abstractmethod
    def constrain_adjoint(self, vectors: Tensor) -> Tensor:
        """The adjoint of ``constrain``."""

    @abstractmethod
    def local_push(self, tangents: Values) -> Tensor:
        """D_theta f: changes of the states by changes of the parameters, other states held."""

    @abstractmethod
    def local_pull(self, vectors: Tensor) -> Values:
        """The adjoint of ``local_push``."""

    def push(self, tangents: Values) -> Tensor:
        """J: changes of the states by changes of the parameters."""
        return self.propagate(self.local_push(tangents))

    @property
    def draws_by_sample(self) -> bool:
        """Whether ``random_states`` can give every sample directions of its own."""
        return False

    def random_states(self, count: int, generator: torch.Generator, *, by_sample: bool = False) -> Tensor:
        """J g for random directions g of the parameters with independent standard normal entries.

        With ``by_sample`` engines that can draw other directions for every sample do so.
        """
        drawn = {
            name: torch.randn(count, *value.shape, generator=generator, dtype=self.dtype).to(self.device)
            for name, value in self.parameters.items()
        }
        return self.push(drawn)

    def pull(self, vectors: Tensor) -> Values:
        """J*: gradients with respect to the parameters."""
        return self.local_pull(self.propagate_adjoint(vectors))

    def product(self, vectors: Tensor) -> Tensor:
        """J J*: engines that can share work between the two override it."""
        return self.push(self.pull(vectors))

    def parameter_product(self, tangents: Values) -> Values:
        """J* J: likewise."""
        return self.pull(self.push(tangents))

    def local_product(self, vectors: Tensor) -> Tensor:
        """K = D_theta f D_theta f*: likewise."""
        return self.local_push(self.local_pull(vectors))

    @property
    def flops(self) -> float:
        """Roughly what J J* takes for one vector: back and forth, with every parameter at every place once."""
        spaces = self.space.members.values() if isinstance(self.space, SumSpace) else [self.space]
        plain = [space.plain("a count of operations") for space in spaces]
        places = max(space.size // space[feature_axis(space)] if space.names else 1 for space in plain)
        return 8.0 * places * sum(value.numel() for value in self.parameters.values())

    def parameter_traces(
        self, members: Sequence[str] | None, most_flops: float
    ) -> tuple[dict[str, float], int] | None:
        """tr(J_p J_p*) of every counted parameter, on some members of the states or all, and the vectors it took.

        None where no way is known that takes at most so many operations.
        """
        return None

    @property
    def sites(self) -> Sequence[Site]:
        """The weight sites (Thm 1); parameters that enter otherwise have none."""
        return ()

    @property
    def without_site(self) -> tuple[str, ...]:
        """Counted parameters that enter otherwise than by a matrix product."""
        known = {name for site in self.sites for name in site.parameters}
        return tuple(name for name in self.parameters if name not in known)


class Site(Result, ABC):
    """Where a weight matrix acts as q = W v: the rows v of all samples, steps and uses, and dh/dq.

    The weight's share of NTK_S is P_w (V V* (x) I) P_w* with V the rows, P_w = dh/dq (direct sum of Thm 1). A bias
    added to the same product is one more column of V, equal to 1.
    """

    parameters: tuple[str, ...]  # the weight first
    space: Space  # of q: the axes of the rows, then "feature"

    @property
    @abstractmethod
    def inputs(self) -> Tensor:
        """V, (rows, columns)."""

    @abstractmethod
    def propagate(self, changes: Tensor) -> Tensor:
        """P_w: (k, rows * features) to the full state (k, size)."""

    @abstractmethod
    def propagate_adjoint(self, vectors: Tensor) -> Tensor:
        """P_w*: (k, size) to (k, rows * features)."""

    def answer(self) -> Answer:
        """Whose site it is, and the axes of its rows."""
        return Answer(
            f"{type(self).__name__} of {', '.join(self.parameters)}: rows of {self.space.describe()}"
        )

    def product(self, vectors: Tensor) -> Tensor:
        """P_w (V V* (x) I) P_w*: the share of the weight in NTK_S."""
        return self.propagate(self.gram_product(self.propagate_adjoint(vectors)))

    def gram_product(self, products: Tensor) -> Tensor:
        """V V* (x) I on vectors of the products (k, rows * features)."""
        inputs = self.inputs
        by_row = products.view(len(products), len(inputs), -1)
        return torch.matmul(inputs, torch.matmul(inputs.t(), by_row)).reshape(len(products), -1)


def feature_axis(space: Space) -> str:
    """The axis of units, of channels for images, or else the last."""
    return next((name for name in ("unit", "channel") if name in space.names), space.names[-1])


def places_of(space: VectorSpace, purpose: str) -> Space:
    """All axes but that of the units, which must be the last: states are then matrices (places, units)."""
    plain = space.plain(purpose)
    if feature_axis(plain) != plain.names[-1]:
        raise NotSupportedError(
            f"{purpose} needs states whose last axis is that of their units, but these have {plain.describe()}: take "
            "the partial traces that you mean, with partial_trace(`over=`...)."
        )
    return plain.without(plain.names[-1:])
