"""One instance of every type of result, made by the calls that users make, as small as they can be."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.results.theory_examples import THEORY_EXAMPLES
from torch import nn

import foretrain as ft
from foretrain.compare.comparison import Comparisons
from foretrain.compare.effective_kernel import compare_effective_kernels
from foretrain.compare.trained.ensemble import draw_ensemble
from foretrain.compare.trained.training import Training
from foretrain.doctor.learning_curve import learning_curve
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.setup import Case
from foretrain.empirical import NetworkFeatures, predict_modes, tune_block
from foretrain.empirical.differentials import (
    LayeredDifferentials,
    Rates,
    Stack,
    forward_equations,
    stack_of,
    step_prediction,
)
from foretrain.empirical.fields import FieldRecord, heavy_tail, record_fields, weight_free
from foretrain.empirical.global_ntk.readout import find_readout
from foretrain.empirical.imbalance import imbalance
from foretrain.empirical.layer_scales import layer_scales
from foretrain.empirical.target_modes import target_modes
from foretrain.experiments import run_many
from foretrain.experiments.sweep import price, sweep
from foretrain.operators import Space, SumSpace, dense_operator
from foretrain.training import Recorder, recording, two_step
from foretrain.training.dynamics import fixed_point_weights, fixed_points, sign_points
from foretrain.training.gradient_flow import gradient_flow

MSE = nn.functional.mse_loss
X = np.array([[1.0, 0.5], [0.2, -1.0], [-0.4, 0.3]])
Y = np.array([[1.0], [-0.5], [0.2]])
# Classes that public functions return and that are no results but tools to go on with.
NOT_RESULTS = {"Experiment", "Callable", "Factor", "FeatureModel", "KernelModel"}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).double()


def recurrent() -> nn.Module:
    torch.manual_seed(0)
    return nn.GRU(2, 4, batch_first=True).double()


@cache
def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor(X), torch.tensor(Y)


@cache
def samples() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    return x, torch.tanh(x[:, :1])


@cache
def sequences() -> torch.Tensor:
    return torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def wide(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(tensors()[0].shape[1], width), nn.Tanh(), nn.Linear(width, 1)).double()


def mlp(**options: Any) -> ft.MLP:
    return ft.MLP("tanh", depth=3, width=32, n_in=2, C_b=0.1, C_W=1.0, **options)


@cache
def kernel() -> Any:
    return ft.ntk(network(), tensors()[0])


@cache
def states() -> Any:
    return ft.global_ntk(recurrent(), sequences())


@cache
def diagnosis() -> Any:
    model = network()
    return ft.doctor(model, *samples(), optimizer=torch.optim.SGD(model.parameters(), lr=0.05))


@cache
def comparison() -> Any:
    return ft.compare(mlp(), X[:2], ["K", "V"], draws=500, widths=[16, 24, 32])


@cache
def effective_kernels() -> Any:
    return compare_effective_kernels(mlp(), X[:2], 0.1 * Y[:2], widths=(16, 24, 32), draws=3, step=0.5)


@cache
def plateau() -> Any:
    model = network()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.1)
    return ft.plateau(model, *samples(), lr=0.05)


@cache
def plateau_runs() -> Any:
    return plateau().verify(runs=1, max_steps=40)


@cache
def folder() -> Path:
    """A temporary folder for all examples that write something."""
    path = Path(tempfile.mkdtemp(prefix="foretrain-examples-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def shallow() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False)).double()


@cache
def recorder() -> Recorder:
    model, (x, y) = network(), tensors()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    path = folder() / "recording"
    options: dict[str, Any] = {"batch": (x, y), "loss": MSE, "optimizer": optimizer, "budget": None}
    with Recorder(path, model, ["loss"], every=1, **options) as record:
        for _ in range(4):
            optimizer.zero_grad()
            MSE(model(x), y).backward()
            optimizer.step()
    return record


def trained(**options: Any) -> Any:
    return ft.compare(mlp(), X[:2], Y[:2], X[2:], trained=True, widths=[16, 24, 32], **options)


@cache
def state_summary() -> Any:
    return states().summary(states().states, find_readout(recurrent(), sequences(), states()))


@cache
def stack() -> Stack:
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(2, *shape, generator=draw, dtype=torch.float64) for shape in ((4, 2), (1, 4))]
    return stack_of(weights, None, tensors()[0], torch.tanh, [Rates(0.5, 1.0), Rates(0.25, 1.0)])


def swept() -> Any:
    path = folder() / "times.toml"
    path.write_text(
        'observable = "escape_time"\n[fixed]\nactivation = "tanh"\n[axes]\nepsilon = [0.01, 0.1]\ndepth = [3, 4]\n'
    )
    return sweep(path, workers=1)


def symmetric_operator() -> Any:
    return dense_operator(
        torch.diag(torch.linspace(1.0, 2.0, 12, dtype=torch.float64)), Space.of(time=3, unit=4)
    )


EXAMPLES: dict[str, Callable[[], Any]] = {
    "flow": lambda: ft.flow(mlp(), X, ["K", "V", "G1", "Theta"]),
    "criticality": lambda: ft.criticality("gelu"),
    "kernel": kernel,
    "diagnosis": diagnosis,
    "no critical point": lambda: ft.criticality("sigmoid"),
    "critical point": lambda: ft.criticality("tanh").point,
    "susceptibility": lambda: ft.susceptibility("tanh", K=0.5, C_W=1.0),
    "network": lambda: mlp(),
    "prediction": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:]),
    "prediction on any loss": lambda: ft.predict(
        mlp(), X[:2], Y[:2], X[2:], loss=torch.nn.HuberLoss(), algorithm="flow", time=1.0, draws=20
    ),
    "prediction of finite width": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:], regime="finite"),
    "posterior": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:], learner="bayes", noise=0.1),
    "posterior of finite width": lambda: ft.predict(mlp(), X[:2], Y[:2], X[2:], "finite", "bayes", noise=0.1),
    "advice": lambda: ft.advise("gelu", width=64, n_out=10),
    "expectation": lambda: ft.gaussian.expectation(["tanh", "tanh"], [[1.0, 0.5], [0.5, 1.0]]),
    "class of an activation": lambda: ft.saddle.classify("gelu"),
    "ensemble of any module": lambda: ft.ensemble(wide, tensors()[0], draws=5, widths=[4, 8, 16]),
    "beside infinite width": lambda: ft.compare(wide, tensors()[0][:2], draws=64, widths=[8, 16]),
    "infinite width": lambda: ft.infinite_width(wide, tensors()[0]),
    "stored infinite width": lambda: ft.infinite_width(
        wide, tensors()[0], store=folder() / "limit", workers=1
    ),
    "kernel by trace": lambda: ft.ntk(network(), tensors()[0], outputs="trace"),
    "spectrum": lambda: kernel().spectrum(),
    "alignment": lambda: kernel().alignment(tensors()[1]),
    "regression": lambda: kernel().regression(tensors()[1]),
    "operator": lambda: ft.ntk_operator(network(), tensors()[0]),
    "global kernel": states,
    "trace": lambda: states().trace(),
    "rank": lambda: states().effective_rank(),
    "modes": lambda: states().top_modes(2),
    "fields": lambda: ft.fields(network(), tensors()[0]),
    "dntk": lambda: ft.dntk(network(), tensors()[0]),
    "ddntk": lambda: ft.ddntk(network(), tensors()[0]),
    "comparison": comparison,
    "judgement": lambda: comparison().judgement,
    "plateau": plateau,
    "plan": lambda: diagnosis().plan(),
    "finding": lambda: diagnosis().findings[0],
    "examination": lambda: diagnosis().examinations["initialisation"],
    "outcome": lambda: outcome_of(Case(diagnosis().setup)),
    "learning curve": lambda: learning_curve(Case(diagnosis().setup), 5),
    "verification": lambda: diagnosis().verify(steps=3),
    "experiment": lambda: ft.experiments.get("parameter-count").run(),
    "comparisons": lambda: Comparisons((comparison(),), 0),
    "forecast": lambda: plateau().forecast,
    "effective kernels": effective_kernels,
    "power of the width": lambda: effective_kernels().slope("change"),
    "comparison with trained networks": lambda: trained(draws=80),
    "comparison to order 1/n": lambda: trained(regime="finite", draws=1600),
    "untrained ensemble": lambda: draw_ensemble(mlp(), X[:2], X[2:], Training(Y[:2], eta=0.1), 4),
    "verified plateau": plateau_runs,
    "layer scales": lambda: layer_scales(shallow(), [1.0, 0.0]),
    "tuned block": lambda: tune_block(
        nn.Sequential(nn.Linear(2, 2), nn.Tanh()).double(), samples()[0], 0.9, draws=4
    ),
    "record of fields": lambda: FieldRecord(record_fields(network(), *tensors(), 3, 0.1)),
    "first order step": lambda: ft.fields(network(), tensors()[0]).first_order(0.1, tensors()[1]),
    "step report": lambda: ft.fields(network(), tensors()[0]).step_report([0.01, 0.1], tensors()[1]),
    "heavy tail": lambda: heavy_tail(np.random.default_rng(0).pareto(1.5, 60) + 1),
    "weight-free network": lambda: weight_free(shallow(), *tensors()),
    "imbalance": lambda: imbalance(shallow(), *tensors(), MSE),
    "summary of a kernel": lambda: kernel().summary(tensors()[1]),
    "estimate of a trace": lambda: ft.ntk_operator(network(), tensors()[0]).trace(probes=4),
    "kernel density": lambda: ft.ntk_operator(network(), samples()[0]).spectral_density(probes=4, steps=4),
    "density of an operator": lambda: states().spectral_density(points=20),
    "stored kernel": lambda: ft.ntk(network(), tensors()[0], store=folder() / "kernel", workers=1),
    "differentials of a layer": lambda: forward_equations(stack())[2],
    "stack": stack,
    "features": lambda: NetworkFeatures(network()),
    "differentials of a stack": lambda: LayeredDifferentials(stack()),
    "predicted step": lambda: step_prediction(network(), *tensors()),
    "predicted modes": lambda: predict_modes(network(), *tensors(), lr=0.1, steps=[1, 10]),
    "modes of a target": lambda: target_modes(X),
    "summary of states": state_summary,
    "view of states": lambda: next(iter(state_summary().views.values())),
    "shares of the trace": lambda: state_summary().trace_shares,
    "decrease of the loss": lambda: states().loss_decrease(states().states),
    "bounds of the rank": lambda: states().rank_bounds(states().states),
    "alignment of states": lambda: states().alignment(states().states),
    "readout": lambda: find_readout(recurrent(), sequences(), states()),
    "reduced view": lambda: states().temporal(),
    "sampled partial trace": lambda: states().partial_trace(over=("unit",), probes=4),
    "check of an operator": lambda: symmetric_operator().check(),
    "comparison of operators": lambda: symmetric_operator().compare(2 * symmetric_operator()),
    "space": lambda: Space.of(time=3, unit=4),
    "sum of spaces": lambda: SumSpace({"hidden": Space.of(unit=4), "cell": Space.of(unit=4)}),
    "weights with fixed points": lambda: fixed_point_weights(sign_points(8, 2, 0.5)),
    "fixed points": lambda: fixed_points(nn.RNN(2, 4).double(), starts=8),
    "lyapunov exponents": lambda: ft.lyapunov(recurrent(), sequences(), count=3),
    "participation ratio": lambda: ft.participation_ratio(recurrent(), sequences()),
    "spectral radius": lambda: ft.spectral_radius(recurrent(), sequences()),
    "flow of a model": lambda: gradient_flow(shallow(), *tensors(), MSE, max_time=1.0),
    "recorder": recorder,
    "summary of a recorder": lambda: recorder().summary(),
    "training log": lambda: ft.read_log(2.0 / np.arange(1.0, 81.0) ** 0.5, np.full(80, 0.1), baseline=2.3),
    "recording": lambda: (recorder(), recording(folder() / "recording"))[1],
    "two steps": lambda: two_step(network(), tensors()[0], 0.1 * tensors()[1]),
    "several experiments": lambda: run_many(["parameter-count"], workers=1),
    "record of an experiment": lambda: example("several experiments").records[0],
    "sweep": swept,
    "price of a sweep": lambda: price(folder() / "times.toml", workers=1) if swept() else None,
    **THEORY_EXAMPLES,
}


@cache
def example(name: str) -> Any:
    """One of them; the same object for everybody who asks."""
    return EXAMPLES[name]()
