"""Nonlinearities: value, derivatives, Taylor series, kinks, and what else is known about them."""

from __future__ import annotations

from foretrain.activations._activation import Activation, Kink
from foretrain.activations._catalogue import catalogue
from foretrain.activations._create import activation

__all__ = ["Activation", "Kink", "activation", "catalogue"]
