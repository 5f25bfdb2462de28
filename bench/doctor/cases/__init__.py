"""All cases, by family; a new one goes to the end of its family's file, so that the others keep their split."""

from __future__ import annotations

from importlib import import_module

from bench.doctor.case import CASES, Case, divide

FAMILIES = (
    "data",
    "loss",
    "output_range",
    "optimizer",
    "cut_gradients",
    "initialisation",
    "architecture",
    "recurrent",
    "attention",
    "noise",
    "generalisation",
    "embeddings",
    "plain",
    "unusual",
)


def all_cases() -> list[Case]:
    """Every case, marked as tuning or unseen."""
    for family in FAMILIES:
        import_module(f"bench.doctor.cases.{family}")
    return divide(CASES)
