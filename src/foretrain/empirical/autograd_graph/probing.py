"""Which entries of a graph's tensors belong to which sample: asked by backward passes with a few samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.ownership import Owner, SampleAxis, Silent, owners, weights
from foretrain.empirical.autograd_graph.tape import Edge, Tape


class Probe:
    """Gradients at any edges for two mixes of outputs: plain, and with sample n weighted by w_n."""

    def __init__(self, tape: Tape, cotangent: Tensor, moved: Callable[[], Tape | None] | None = None) -> None:
        """``moved`` gives the graph with parameters moved at random, for tensors where no gradient arrives here."""
        self.tape = tape
        self._moved = moved
        self.samples = len(cotangent)
        self.weights = weights(self.samples, cotangent)
        self._mixes = cotangent, cotangent * self.weights[:, None]
        self.plain: dict[Edge, Tensor | None] = {}
        self.weighted: dict[Edge, Tensor | None] = {}
        self._lengths: dict[str, float] = {}  # squared, of the weighted mix's gradients
        self.owners: dict[Edge, Owner] = {(0, 0): SampleAxis(1, tape.outputs.shape[1])}

    def ask(self, edges: Iterable[Edge]) -> None:
        """Two backward passes for all edges that are not known yet."""
        new = [edge for edge in dict.fromkeys(edges) if edge not in self.plain]
        if not new:
            return
        self.plain |= zip(new, self.tape.gradients(new, self._mixes[0]))
        # Where passes are dear, this one gives the lengths of the parameters' gradients as well.
        leaves = self.tape.leaves if self.tape.is_long and not self._lengths else {}
        weighted = self.tape.gradients([*new, *((leaf, 0) for leaf in leaves.values())], self._mixes[1])
        self.weighted |= zip(new, weighted)
        for name, gradient in zip(leaves, weighted[len(new) :]):
            self._lengths[name] = _squared_length(gradient)
        unknown = [edge for edge in new if edge not in self.owners]
        found = owners([(self.plain[edge], self.weighted[edge]) for edge in unknown], self.samples)
        self.owners |= zip(unknown, found)
        self._ask_elsewhere([edge for edge in new if isinstance(self.owners[edge], Silent)])

    def squared_lengths(self, names: Sequence[str]) -> dict[str, float]:
        """Of the gradients of the weighted mix with respect to parameters."""
        used = [name for name in names if name in self.tape.leaves and name not in self._lengths]
        gradients = self.tape.gradients([(self.tape.leaves[name], 0) for name in used], self._mixes[1])
        self._lengths |= {name: _squared_length(gradient) for name, gradient in zip(used, gradients)}
        return {name: self._lengths.get(name, 0.0) for name in names}

    def _ask_elsewhere(self, silent: Sequence[Edge]) -> None:
        """Weights that are zero and units that are dead stop gradients: see where samples are without them."""
        other = self._moved() if silent and self._moved is not None else None
        if other is None or other.shape != self.tape.shape:
            return
        plain, weighted = (other.gradients(silent, mix) for mix in self._mixes)
        for edge, first, second in zip(silent, plain, weighted):
            (self.owners[edge],) = owners([(first, second)], self.samples)


def _squared_length(gradient: Tensor | None) -> float:
    if gradient is None:
        return 0.0
    dense = gradient.to_dense() if gradient.is_sparse else gradient
    length = torch.linalg.vector_norm(dense, dtype=torch.float64)  # sums of millions need it
    return float(length) ** 2
