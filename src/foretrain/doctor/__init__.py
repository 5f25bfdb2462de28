"""What holds a network back: measurements, findings with evidence, and advice that can be carried out.

``foretrain.doctor(model, x, y)`` examines, because this package can be called like the function
:func:`foretrain.doctor.examine.doctor`. Its rooms are

``outcome``       a short training as given beside ``baselines``; ``outcome_chart`` draws it
``checks``        one question each: inputs, initialisation, gains, dead units, plateau, ...
``intake``        what the user brings, checked
``setup``         what is trained and how; the copy that is measured, and what a pass of it costs
``finding``       severity, evidence, source, advice, code and treatment
``treatment``     carrying out the advice in its order
``verification``  training with and without the advice
``proof``         trainings without and with a cure, by which every cure is proved
``trials``        shorter ones by which checks decide
``stability``     the largest stable learning rate, and trainings at the rate that suits

What the checks measure with: ``data`` (inputs and targets), ``mlp`` (layers and their critical initialisation),
``blocks`` and ``units`` (of any model), ``output_kernel`` (the linearised network), ``memory`` (states over time).

Importing this package does not import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from foretrain.support.callable_room import CallableRoom, Function

if TYPE_CHECKING:
    from foretrain.doctor.diagnosis import Diagnosis
    from foretrain.doctor.examine import doctor
    from foretrain.doctor.finding import Examination, Finding, Severity

_SOURCES = {
    "Diagnosis": "diagnosis",
    "Examination": "finding",
    "Finding": "finding",
    "Severity": "finding",
    "doctor": "examine",
}

__all__ = ["Diagnosis", "Examination", "Finding", "Severity", "doctor"]


class DoctorRoom(CallableRoom[Function]):
    """This package: called, it is :func:`foretrain.doctor.examine.doctor`."""

    if TYPE_CHECKING:
        from foretrain.doctor.diagnosis import Diagnosis
        from foretrain.doctor.finding import Examination, Finding, Severity


def __getattr__(name: str) -> Any:
    if name in _SOURCES:
        return getattr(import_module(f"{__name__}.{_SOURCES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


sys.modules[__name__].__class__ = DoctorRoom
