"""A diagnosis as plain texts and numbers, and as one labelled dataset."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from foretrain.doctor.checks import CHECKS
from foretrain.doctor.finding import Examination, Finding

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.diagnosis import Diagnosis


def as_record(diagnosis: Diagnosis) -> dict[str, Any]:
    """What ``Diagnosis.to_dict`` returns."""
    setup = diagnosis.setup
    return {
        "headline": diagnosis.headline,
        "healthy": diagnosis.healthy,
        "model": type(setup.model).__name__,
        "parameters": sum(p.numel() for p in setup.model.parameters() if p.requires_grad),
        "samples": len(setup.task.x),
        "loss": setup.task.loss_name,
        "optimizer": str(setup.recipe),
        "optimizer_given": not setup.recipe.chosen,
        "batch_size": setup.batch_size,
        "fresh": setup.fresh,
        "seed": setup.seed,
        "notes": list(setup.notes),
        "checks": {
            check.name: {"question": check.question, **_examination(diagnosis, check.name)}
            for check in CHECKS
            if check.name in diagnosis.examinations
        },
    }


def _examination(diagnosis: Diagnosis, name: str) -> dict[str, Any]:
    one: Examination = diagnosis.examinations[name]
    told = [
        _finding(finding) | {"consequence_of": diagnosis.cause_of(name, finding)} for finding in one.findings
    ]
    return {"skipped": one.skipped or None, "failed": one.failed, "findings": told}


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "severity": finding.severity.word,
        "title": finding.title,
        "evidence": finding.evidence,
        "source": finding.source,
        "advice": finding.advice,
        "code": finding.code,
        "treatment": None if finding.treatment is None else finding.treatment.name,
        "numbers": {name: finite(value) for name, value in finding.numbers.items()},
        "where": list(finding.where),
    }


def finite(value: float) -> float | None:
    """A number as JSON has it, or None."""
    return float(value) if math.isfinite(value) else None


def as_dataset(diagnosis: Diagnosis) -> xarray.Dataset:
    """What ``Diagnosis.to_dataset`` returns; attributes have the check in front too."""
    import xarray

    parts, attributes = list[xarray.Dataset](), dict[str, Any]()
    for name, one in diagnosis.examinations.items():
        if one.data is None:
            continue
        names = {str(old): f"{name}.{old}" for old in {*one.data.variables, *one.data.dims}}
        parts.append(one.data.rename(names).drop_attrs(deep=False))
        attributes |= {f"{name}.{key}": value for key, value in one.data.attrs.items()}
    merged = xarray.merge(parts) if parts else xarray.Dataset()
    return merged.assign_attrs(attributes, headline=diagnosis.headline)
