"""Attention blocks, cell by cell of a sweep: ranks of their global-state NTK at initialization, and their training.

The state is every internal variable with a value at each step (queries, keys, values, attention, its mix, hidden
layers, output) side by side. Ranks are participation ratios tr(A)^2 / tr(A^2). Reduced kernels are true partial
traces (15); "pairs" is the other contraction, where a vector is spread evenly over the traced axis and the result
averaged. Every cell is measured on the same number of drawn networks and inputs, which give the standard errors.
Whether a lifted rank helps is told by gradient descent on one-dimensional Gaussian sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray

from foretrain.experiments.judgements import Sampled, sampled
from foretrain.experiments.networks import descend
from foretrain.experiments.parts import Parts
from foretrain.support.answers import labelled
from foretrain.support.progress import track
from foretrain.support.seeds import integer, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from foretrain.empirical.global_ntk import GlobalNTK
    from foretrain.training.tasks import AttentionBlock, FourierFeatures

Seed = np.random.SeedSequence
Kind = Literal["temporal", "spatial"]

HIDDEN_LAYERS = 3
_ACCURACY = 0.05  # of one rank, relative
_ACCURACY_IN_SPACE = 0.1  # where networks with one input differ by a factor of two
_SHARE = 0.95
_SPECTRUM = 150
_RATE = 0.15
_TRAINING, _FRESH = 32, 256  # sequences
_KINDS: tuple[Kind, ...] = ("temporal", "spatial")
_MLP = tuple(f"hidden {place}" for place in range(1, HIDDEN_LAYERS + 1))


@dataclass(frozen=True)
class Cell:
    """One setting: sequences are ``n_x`` of ``steps``; ``octaves`` or ``waves`` of Fourier features if not 0."""

    n_in: int
    n_x: int = 10
    attention: int = 64
    heads: int = 1
    mlp: int = 128
    octaves: int = 0
    waves: int = 0
    scale: float = 1.0
    steps: int = 50

    @property
    def name(self) -> str:
        """What tells it from others, for its part."""
        return " ".join(f"{key}-{value}" for key, value in asdict(self).items())

    @property
    def width_of_input(self) -> int:
        """Features that queries, keys and values are made of."""
        return 2 * (self.octaves or self.waves) or self.n_in

    @property
    def site_bound(self) -> int:
        """3 n_in + n_attn + (L - 1) n_mlp, with the readout as the last of L matrices (A.5.3)."""
        return 3 * self.width_of_input + self.attention + HIDDEN_LAYERS * self.mlp

    @property
    def sharper_bound(self) -> int:
        """Three copies of X have the rank of one, and every head averages X over steps: its values add n_in."""
        given = self.width_of_input
        return given + min(self.heads * given, self.attention) + HIDDEN_LAYERS * self.mlp

    def features(self, seed: Seed) -> FourierFeatures | None:
        """Those in front of the block."""
        from foretrain.training.tasks import FourierFeatures

        if self.octaves:
            return FourierFeatures.dyadic(self.n_in, self.octaves, self.scale)
        return FourierFeatures.random(self.n_in, self.waves, self.scale, seed) if self.waves else None

    def block(
        self, for_weights: Seed, for_features: Seed, dtype: torch.dtype | None = None
    ) -> AttentionBlock:
        """A drawn network; in float32 unless another precision is asked for."""
        import torch

        from foretrain.training.tasks import AttentionBlock

        return AttentionBlock(
            self.n_in,
            attention=self.attention,
            heads=self.heads,
            hidden=(self.mlp,) * HIDDEN_LAYERS,
            features=self.features(for_features),
            seed=for_weights,
            dtype=dtype or torch.float32,
        )


def measured(
    cells: Iterable[Cell], quantities: Sequence[str], draws: int, seed: int, parts: Parts
) -> dict[Cell, dict[str, FloatArray]]:
    """Quantities of every cell, one value per draw.

    Cells share the seeds of their draws, so that networks of equal shapes are the same ones.
    """
    found = {}
    for cell in track(list(dict.fromkeys(cells)), "settings of the attention block"):
        name = f"{cell.name} {' '.join(quantities)}"
        part = parts.get(name, partial(_measure, cell, quantities, draws, seed))
        found[cell] = {str(name): np.asarray(part[name].values, dtype=float) for name in part.data_vars}
    return found


def log_slope(places: Sequence[float], values: FloatArray) -> Sampled:
    """Exponent of a power law, fitted to every draw alone: values (places, draws)."""
    return sampled(np.polyfit(np.log(np.asarray(places, dtype=float)), np.log(values), 1)[0])


def rank_correlation(places: Sequence[float], values: FloatArray) -> float:
    """Spearman's, the mean of all draws: values (places, draws)."""
    from scipy.stats import spearmanr

    return float(np.mean([spearmanr(places, draw).statistic for draw in values.T]))


def spread(values: FloatArray) -> Sampled:
    """Of values (places, draws): the log of the largest over the smallest mean, and its error by the draws."""
    logs = np.log(values)
    high, low = (int(pick(logs.mean(axis=1))) for pick in (np.argmax, np.argmin))
    return sampled(logs[high] - logs[low])


def modes_shown(cell: Cell, seed: int) -> xarray.Dataset:
    """Spectrum of NTK_temp as shares of its trace, and its leading modes (sequence, time), of the first draw."""
    import torch

    own = spawn(seed, 1)[0]
    values, vectors = torch.linalg.eigh(_reduced(_kernel(cell, own), "temporal", own)[1])
    shares = (values / values.sum()).flip(0)[:_SPECTRUM].clamp_min(0).numpy()
    leading = vectors.flip(1)[:, :3].t().reshape(3, cell.n_x, cell.steps).numpy()
    return xarray.Dataset(
        {"share": ("mode", shares), "shape_of_mode": (("leading", "sequence", "time"), leading)},
        attrs={"n_in": cell.n_in},
    )


def _measure(cell: Cell, quantities: Sequence[str], draws: int, seed: int) -> xarray.Dataset:
    rows: dict[str, list[float]] = {}
    for own in spawn(seed, draws):
        for quantity in quantities:
            for name, value in _QUANTITIES[quantity](cell, own).items():
                rows.setdefault(name, []).append(value)
    return xarray.Dataset({name: ("draw", np.array(values)) for name, values in rows.items()})


def _temporal(cell: Cell, seed: Seed) -> dict[str, float]:
    """Of NTK_temp: its rank, and the number of modes that hold 95 % of its trace."""
    import torch

    rank, matrix = _reduced(_kernel(cell, seed), "temporal", seed)
    values = torch.linalg.eigvalsh(matrix).flip(0).clamp_min(0)
    return {"temporal": rank, "modes": int((values.cumsum(0) < _SHARE * values.sum()).sum()) + 1}


def _pairs(cell: Cell, seed: Seed) -> dict[str, float]:
    """The contraction with the vector of ones instead of the partial trace."""
    kernel = _kernel(cell, seed)
    return {
        f"{name}_pairs": kernel.pair_sum(over=axes, normalize=True)
        .effective_rank(accuracy=_ACCURACY, seed=seed)
        .value
        for name, axes in (("temporal", ("unit",)), ("spatial", ("batch", "time")))
    }


def _of_mlp(cell: Cell, seed: Seed) -> dict[str, float]:
    """The same ranks with the hidden layers of the MLP as the only states."""
    kernel = _kernel(cell, seed, _MLP)
    return {f"{kind}_mlp": _reduced(kernel, kind, seed)[0] for kind in _KINDS}


def _sites(cell: Cell, seed: Seed) -> dict[str, float]:
    """The rank of V V* in float64, and the participation ratio of the inputs."""
    import torch

    rows = _kernel(cell, seed, dtype=torch.float64).site_rows()
    given = rows[:, : cell.width_of_input]  # the site of the queries is the first
    gram = given.t() @ given
    ratio = float(gram.diagonal().sum() ** 2 / gram.square().sum())
    return {"site_rank": int(torch.linalg.matrix_rank(rows)), "input": ratio}


def _kernel(
    cell: Cell, seed: Seed, names: Sequence[str] | None = None, dtype: torch.dtype | None = None
) -> GlobalNTK:
    """NTK_S of a drawn block on drawn sequences; in float32 unless another precision is asked for."""
    from foretrain.empirical.global_ntk import global_ntk
    from foretrain.training.tasks import GaussianSequences, GlobalState

    for_weights, for_inputs, for_features = spawn(seed, 3)
    block = cell.block(for_weights, for_features, dtype)
    x = GaussianSequences(cell.n_in, cell.steps).inputs(cell.n_x, for_inputs).to(block.readout.weight)
    return global_ntk(GlobalState(block, names), x)


def _reduced(kernel: GlobalNTK, kind: Kind, seed: Seed) -> tuple[float, Tensor]:
    """A reduced kernel and its rank."""
    from foretrain.empirical.global_ntk.reduced_views import reduced_view

    accuracy = _ACCURACY if kind == "temporal" else _ACCURACY_IN_SPACE
    view = reduced_view(kernel, kind, accuracy=accuracy, seed=seed)
    return view.rank.value, view.matrix


_QUANTITIES: dict[str, Callable[[Cell, Seed], dict[str, float]]] = {
    "temporal": _temporal,
    "spatial": lambda cell, seed: {"spatial": _reduced(_kernel(cell, seed), "spatial", seed)[0]},
    "total": lambda cell, seed: {
        "total": _kernel(cell, seed).effective_rank(accuracy=_ACCURACY, seed=seed).value
    },
    "pairs": _pairs,
    "mlp": _of_mlp,
    "sites": _sites,
}


@dataclass(frozen=True)
class Course:
    """How long blocks are trained, and how many of a kind."""

    steps: int
    draws: int


def trained(cells: Mapping[str, Cell], course: Course, seed: int, parts: Parts) -> xarray.Dataset:
    """Mean squared errors by kind of input: ``loss`` (kind, draw, step), ``fresh_loss`` on sequences not trained on.

    Both are relative to the mean square of the target. Kinds share teachers, sequences and the number of steps.
    """

    def runs(cell: Cell) -> xarray.Dataset:
        sources = track(spawn(seed, course.draws), f"training with {cell.name}")
        losses, fresh = zip(*(_run(cell, course.steps, own) for own in sources), strict=True)
        return labelled({"loss": ("draw step", np.stack(losses)), "fresh_loss": ("draw", np.array(fresh))})

    found = [parts.get(f"training {kind}", partial(runs, cell)) for kind, cell in cells.items()]
    return xarray.concat(found, "kind").assign_coords(kind=list(cells))


def _run(cell: Cell, steps: int, seed: Seed) -> tuple[FloatArray, float]:
    """Full-batch gradient descent; a teacher, sequences and weights of its own for every draw."""
    import torch

    from foretrain.training.tasks import GaussianSequences

    for_weights, for_inputs, for_features, for_fresh, for_teacher = spawn(seed, 5)
    task = GaussianSequences(cell.n_in, cell.steps, teacher=integer(for_teacher))
    x, y = task.batch(_TRAINING, for_inputs)
    block = cell.block(for_weights, for_features)
    optimizer = torch.optim.SGD(block.parameters(), _RATE)

    def loss(x: Tensor, y: Tensor) -> Any:
        return (block(x) - y).square().mean() / y.square().mean()

    losses = descend(optimizer, lambda: loss(x, y), steps)
    with torch.no_grad():
        return np.append(losses, loss(x, y).item()), float(loss(*task.batch(_FRESH, for_fresh)))
