"""How to set up a network of a given width: depth, initialisation, learning rates, skip connections.

``advise``               everything about one activation and width, with code to paste
``information_curves``   information of the output against depth over width, truncated and exact
``perturbative_depths``  how deep the expansion in 1/n reaches, and which of its ratios says so
"""

from foretrain.theory.advice.advise import Advice, advise
from foretrain.theory.advice.depths import PerturbativeDepths, information_curves, perturbative_depths

__all__ = ["Advice", "PerturbativeDepths", "advise", "information_curves", "perturbative_depths"]
