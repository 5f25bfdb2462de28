"""foretrain predicts how a neural network will learn, measures how it does, and shows where the two part.

Everything here is imported on first use, so that ``import foretrain`` stays fast and free of torch.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from foretrain._version import __version__

if TYPE_CHECKING:
    from foretrain import (
        activations,
        empirical,
        experiments,
        gaussian,
        operators,
        report,
        saddle,
        theory,
        training,
    )
    from foretrain.activations import Activation, activation
    from foretrain.compare import CompareRoom as _CompareRoom
    from foretrain.compare import compare as _compare
    from foretrain.compare.estimators import NTKClassifier, NTKKernel, NTKRegressor
    from foretrain.compare.infinite_width import infinite_width
    from foretrain.compare.plateau import plateau
    from foretrain.compare.prediction import predict
    from foretrain.compare.reinitialised import ensemble
    from foretrain.doctor import DoctorRoom as _DoctorRoom
    from foretrain.doctor.examine import doctor as _doctor
    from foretrain.doctor.training_log import read_log
    from foretrain.empirical.differentials import ddntk, dntk
    from foretrain.empirical.fields import fields
    from foretrain.empirical.global_ntk import global_ntk
    from foretrain.empirical.kernel_operator import ntk_operator
    from foretrain.empirical.tangent_kernel import ntk
    from foretrain.support.errors import ForetrainError
    from foretrain.support.store import load, save
    from foretrain.theory.advice import advise
    from foretrain.theory.architecture import MLP
    from foretrain.theory.criticality import criticality, susceptibility
    from foretrain.theory.flow import flow
    from foretrain.training.dynamics import fixed_points, lyapunov, participation_ratio, spectral_radius

    compare, doctor = _CompareRoom(_compare), _DoctorRoom(_doctor)

_SOURCES = {
    "Activation": "foretrain.activations",
    "ForetrainError": "foretrain.support.errors",
    "MLP": "foretrain.theory.architecture",
    "NTKClassifier": "foretrain.compare.estimators",
    "NTKKernel": "foretrain.compare.estimators",
    "NTKRegressor": "foretrain.compare.estimators",
    "activation": "foretrain.activations",
    "advise": "foretrain.theory.advice",
    "criticality": "foretrain.theory.criticality",
    "ddntk": "foretrain.empirical.differentials",
    "dntk": "foretrain.empirical.differentials",
    "ensemble": "foretrain.compare.reinitialised",
    "fields": "foretrain.empirical.fields",
    "fixed_points": "foretrain.training.dynamics",
    "flow": "foretrain.theory.flow",
    "global_ntk": "foretrain.empirical.global_ntk",
    "infinite_width": "foretrain.compare.infinite_width",
    "load": "foretrain.support.store",
    "lyapunov": "foretrain.training.dynamics",
    "ntk": "foretrain.empirical.tangent_kernel",
    "ntk_operator": "foretrain.empirical.kernel_operator",
    "participation_ratio": "foretrain.training.dynamics",
    "plateau": "foretrain.compare.plateau",
    "predict": "foretrain.compare.prediction",
    "read_log": "foretrain.doctor.training_log",
    "save": "foretrain.support.store",
    "spectral_radius": "foretrain.training.dynamics",
    "susceptibility": "foretrain.theory.criticality",
}
_ROOMS = (
    "activations",
    "compare",
    "doctor",
    "empirical",
    "experiments",
    "gaussian",
    "operators",
    "report",
    "saddle",
    "theory",
    "training",
)

__all__ = [
    "MLP",
    "Activation",
    "ForetrainError",
    "__version__",
    "activation",
    "activations",
    "advise",
    "compare",
    "criticality",
    "ddntk",
    "dntk",
    "doctor",
    "empirical",
    "ensemble",
    "experiments",
    "fields",
    "fixed_points",
    "flow",
    "gaussian",
    "global_ntk",
    "infinite_width",
    "load",
    "lyapunov",
    "ntk",
    "ntk_operator",
    "operators",
    "participation_ratio",
    "plateau",
    "predict",
    "read_log",
    "report",
    "saddle",
    "save",
    "spectral_radius",
    "susceptibility",
    "theory",
    "training",
]

# A star import must not fail for want of an extra.
if find_spec("sklearn"):
    __all__ += ["NTKClassifier", "NTKKernel", "NTKRegressor"]


def __getattr__(name: str) -> Any:
    if name in _SOURCES:
        value = getattr(import_module(_SOURCES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"foretrain.{name}")
    else:
        raise AttributeError(f"module 'foretrain' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
