"""What is compared at initialisation: the observables, and the independent components of each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product

from foretrain.compare.judging.entries import Entry
from foretrain.theory.architecture import MLP
from foretrain.theory.complexity import SYMMETRIES, generated_group

OBSERVABLES = {
    "K": "mean of z_a z_b of one neuron",
    "V": "fan-in times the covariance of z_a z_b of one neuron and z_c z_d of another",
    "G1": "fan-in times the shift of the mean of z_a z_b from the kernel",
    "three_point": "fan-in times the mean of z_a of one neuron and z_b z_c of another",
    "kurtosis": "fan-in times the mean of z_a⁴ less 3 times the squared mean of z_a², of one neuron",
    "Theta": "mean of the NTK H_ab of one neuron",
    "H1": "fan-in times the shift of the mean of H_ab of one neuron from Theta",
    "D": "fan-in times the covariance of z_1 z_2 of one neuron and H_34 of another",
    "F": "fan-in times the mean of z_1 of one neuron, z_2 of another and H_34 between them, as 1324",
    "A": "fan-in times the covariance of H_12 of one neuron and H_34 of another",
    "B": "fan-in times the mean of H_12 times H_34 between two neurons, as 1324",
    "P": "fan-in times the mean of dH_ijj;012 z_i;3 of two neurons",
    "Q": "fan-in times the mean of dH_iij;012 z_j;3 of two neurons",
    "R": "fan-in times the mean of ddI_iijj;0123 of two neurons",
    "S": "fan-in times the mean of ddII_iijj;1234 of two neurons",
    "T": "fan-in times the mean of ddII_ijij;1234 of two neurons, as 1342",
    "U": "fan-in times the mean of ddII_ijji;1234 of two neurons, as 1423",
}
TANGENT = ("Theta", "H1", "D", "F", "A", "B")
DIFFERENTIAL = ("P", "Q", "R", "S", "T", "U")


def entries_of(observable: str, mlp: MLP, inputs: int) -> list[Entry]:
    """Each independent component once, in the layers where it fluctuates.

    All from layer 2 on but G1 and H1, from layer 3 on (4.37), and the three-point function, in layers with a skip
    connection; pairs a ≤ b, and of components that are equal by symmetry the first.
    """
    pairs = list(combinations_with_replacement(range(inputs), 2))
    indices: list[tuple[int, ...]]
    if observable == "kurtosis":
        indices = [(a,) for a in range(inputs)]
    elif observable == "three_point":
        indices = [(a, *pair) for a in range(inputs) for pair in pairs]
    elif observable in SYMMETRIES:
        indices = list(_independent(observable, inputs))
    else:
        indices = list(pairs)
    layers = [layer.number for layer in mlp.layers[2 if observable in ("G1", "H1") else 1 :]]
    if observable == "three_point":
        layers = [layer.number for layer in mlp.layers if layer.gamma]
    return [Entry(observable, layer, index) for layer in layers for index in indices]


def _independent(observable: str, inputs: int) -> Iterator[tuple[int, ...]]:
    """Indices of a four-index tensor, the first of those that its symmetries exchange."""
    group = generated_group(SYMMETRIES[observable])
    for index in product(range(inputs), repeat=4):
        if all(index <= tuple(index[place] for place in order) for order in group):
            yield index
