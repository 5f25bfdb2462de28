"""`ft.ntk` of networks of several kinds in float32, beside peers on the same weights and inputs.

Peers are the recipe of torch's tutorial (`torch.func`, our own environment, a process of its own), the loop over
samples and outputs that anyone would write first, NNGeometry, and neural-tangents with structured derivatives; where
its default, the contraction of jacobians, can be faster, that one too. Transformers and ResNet-18 are written in
torch alone and have the first two. Errors are against a float64 reference. Memory is what a call adds to its process
at the peak.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import foretrain as ft
from bench.harness.jobs import Arrays, Job, Peer, PeerCall
from bench.ntk_reference import Reference
from bench.ntk_work import work
from bench.peer_side.torch_networks import NETWORKS

TOLERANCE = 1e-5
TORCH_FUNC, NNGEOMETRY, NEURAL_TANGENTS = "torch.func", "nngeometry", "neural-tangents"
LOOP = "plain loop"
STRUCTURED, JACOBIANS = "neural-tangents, structured", "neural-tangents, jacobians"


@dataclass(frozen=True)
class Case:
    """A network, the shape of its inputs, and what is aimed at."""

    name: str
    network: str
    sizes: Mapping[str, Any]
    shape: tuple[int, ...]
    outputs: str
    aims: Mapping[str, float]
    share_aim: float | None = None
    memory_aims: Mapping[str, float] = field(default_factory=dict)
    peers: tuple[str, ...] = (TORCH_FUNC, NNGEOMETRY, STRUCTURED, JACOBIANS)
    long: bool = False


PERCEPTRON = ("perceptron", {"widths": [784, 512, 512, 512, 10]}, (256, 784))
TWICE_EVERY_PEER = dict.fromkeys((TORCH_FUNC, NNGEOMETRY, STRUCTURED, JACOBIANS), 2.0)
NO_MORE_MEMORY = {NNGEOMETRY: 1.0}
TRANSFORMER = {"vocabulary": 1000, "tokens": 64, "layers": 4, "width": 256, "heads": 4}
IN_TORCH = (TORCH_FUNC, LOOP)
CASES = (
    Case("MLP 784-512-512-512-10, full", *PERCEPTRON, "full", {STRUCTURED: 3.0}, 0.75, NO_MORE_MEMORY),
    Case("MLP 784-512-512-512-10, trace", *PERCEPTRON, "trace", {STRUCTURED: 3.0}, 0.75, NO_MORE_MEMORY),
    Case(
        "MLP 1024, six layers, scalar",
        "perceptron",
        {"widths": [1024] * 7 + [1]},
        (512, 1024),
        "full",
        {STRUCTURED: 2.5},
        0.75,
        NO_MORE_MEMORY,
    ),
    Case(
        "CNN 3-32-64-64, full",
        "convolutional",
        {"channels": [3, 32, 64, 64], "strides": [1, 2, 2], "outputs": 10},
        (64, 3, 32, 32),
        "full",
        TWICE_EVERY_PEER,
        0.55,
    ),
    Case(
        "attention block of width 64, full",
        "attention",
        {"width": 64, "heads": 4, "hidden": 256, "outputs": 10},
        (32, 50, 64),
        "full",
        TWICE_EVERY_PEER,
        0.55,
        peers=(TORCH_FUNC, LOOP, NNGEOMETRY, STRUCTURED, JACOBIANS),
    ),
    Case(
        "GRU 16-128, 50 steps, full",
        "recurrent",
        {"inputs": 16, "hidden": 128, "outputs": 3},
        (32, 50, 16),
        "full",
        {TORCH_FUNC: 2.0, STRUCTURED: 2.0, JACOBIANS: 2.0},  # NNGeometry's kernel is wrong here
    ),
    Case(
        "GPT, 4 layers of 256",
        "generative",
        TRANSFORMER | {"outputs": 2},
        (16, 64),
        "full",
        {},
        0.55,
        peers=IN_TORCH,
    ),
    Case(
        "BERT, 4 layers of 256",
        "encoder",
        TRANSFORMER | {"outputs": 10},
        (16, 64),
        "full",
        {},
        0.55,
        peers=IN_TORCH,
    ),
    Case(
        "GPT-2 small",
        "generative",
        {"vocabulary": 1000, "tokens": 128, "layers": 12, "width": 768, "heads": 12, "outputs": 1},
        (4, 128),
        "full",
        {},
        0.55,
        peers=IN_TORCH,
        long=True,
    ),
    Case(
        "ViT-Ti, 12 layers of 192",
        "vision",
        {"side": 32, "patch": 4, "layers": 12, "width": 192, "heads": 3, "outputs": 10},
        (32, 3, 32, 32),
        "full",
        dict.fromkeys(IN_TORCH, 2.0),
        0.55,
        peers=IN_TORCH,
        long=True,
    ),
    *(
        Case(
            "ResNet-18",
            "residual",
            {"channels": [64, 128, 256, 512], "outputs": 10},
            (inputs, 3, 32, 32),
            "full",
            dict.fromkeys(IN_TORCH, 2.0),
            0.55,
            peers=IN_TORCH,
            long=inputs > 4,
        )
        for inputs in (4, 12)
    ),
    Case(
        "50 layers of 16",
        "perceptron",
        {"widths": [16] * 50 + [1]},
        (4, 16),
        "full",
        {},
        peers=IN_TORCH,
    ),
)
BUSY = (CASES[0].name, CASES[3].name, CASES[5].name)  # also measured on a machine that is not idle


def jobs() -> list[Job]:
    """All rows."""
    return [
        *(job(case) for case in CASES),
        *(_beside_a_neighbour(case) for case in CASES if case.name in BUSY),
    ]


def _beside_a_neighbour(case: Case) -> Job:
    """The same call while another process needs a core: it must not take longer than on one thread."""
    model, inputs = _drawn(case)

    def ours() -> Arrays:
        return {"ntk": np.asarray(ft.ntk(model, inputs, outputs=case.outputs))}

    def on_one_thread() -> Arrays:
        before = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return ours()
        finally:
            torch.set_num_threads(before)

    return Job(
        name=f"ntk {case.name}, N = {case.shape[0]}, beside a busy process",
        how="as many threads as cores are free / one thread",
        ours=ours,
        sizes={"inputs": case.shape[0], "parameters": _count(model)},
        precision="float32",
        neighbour=True,
        peer={"one thread": on_one_thread},
        aim=1 / 1.3,
    )


def job(case: Case) -> Job:
    """A case with its peers, all on the weights and inputs of one seed."""
    model, inputs = _drawn(case)
    count = model(inputs[:1]).shape[1]
    error = Reference(model, inputs, case.outputs).error

    def ours() -> Arrays:
        return {"ntk": np.asarray(ft.ntk(model, inputs, outputs=case.outputs))}

    return Job(
        name=f"ntk {case.name}, N = {case.shape[0]}",
        how="weights and inputs of seed 0",
        ours=ours,
        sizes={"inputs": case.shape[0], "outputs": count, "parameters": _count(model)},
        work=work(case.network, case.sizes, case.shape, case.outputs, count),
        long=case.long,
        peer=_peers(case, model, inputs),
        aim=case.aims,
        share_aim=case.share_aim,
        memory_aims=case.memory_aims,
        tolerance=TOLERANCE,
        error=error,
        peer_error=error,
    )


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _drawn(case: Case) -> tuple[nn.Module, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = NETWORKS[case.network](**case.sizes)
        if "vocabulary" in case.sizes:
            return model, torch.randint(case.sizes["vocabulary"], case.shape)
        return model, torch.randn(case.shape)


def _peers(case: Case, model: nn.Module, inputs: Tensor) -> Mapping[str, Peer]:
    """For a perceptron the jacobians of neural-tangents are the recipe of torch.func again, and are left out."""
    arrays = {"X": inputs.numpy()} | {name: value.numpy() for name, value in model.state_dict().items()}
    options = {"network": case.network, "sizes": case.sizes, "outputs": case.outputs}

    def call(peer: str, **more: str) -> PeerCall:
        return PeerCall(peer, "tangent kernel", arrays, options | more)

    peers: dict[str, Peer] = {
        TORCH_FUNC: call(TORCH_FUNC),
        LOOP: PeerCall(TORCH_FUNC, "tangent kernel by a loop", arrays, options),
        NNGEOMETRY: call(NNGEOMETRY),
        STRUCTURED: call(NEURAL_TANGENTS, implementation="STRUCTURED_DERIVATIVES"),
    }
    if case.network != "perceptron":
        peers[JACOBIANS] = call(NEURAL_TANGENTS, implementation="JACOBIAN_CONTRACTION")
    return {name: peer for name, peer in peers.items() if name in case.peers}
