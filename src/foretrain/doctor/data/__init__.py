"""Inputs and targets: their scales, and what is wrong with them."""
