"""Nonlinearities: value, derivatives, Taylor series, kinks, and what else is known about them."""

from __future__ import annotations

from foretrain.activations._activation import Activation, Kink
from foretrain.activations._catalogue import activation, catalogue

__all__ = ["Activation", "Kink", "activation", "catalogue"]
