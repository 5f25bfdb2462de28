"""Imbalance of layer norms under gradient flow (Rawal & DeWeese, section 2 and Cor. 12), on any torch model.

``imbalance``          Δ of every pair of layers, its drift as measured and by the identity; by neuron, as a matrix
``record_imbalance``   the same over steps of descent, with the part of second order in the learning rate
``observe_imbalance``  an observable for recorders
"""

from foretrain.empirical.imbalance.measurement import (
    Imbalance,
    imbalance,
    observe_imbalance,
    record_imbalance,
)

__all__ = ["Imbalance", "imbalance", "observe_imbalance", "record_imbalance"]
