"""The search for fixed points of a plain RNN or GRU at a constant input: its own steps, then Newton's method."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.recurrent.cells import Cell, cell_of
from foretrain.support.answers import Answer, Axis, Figure, Part, Result, dataset_table, labelled, picked
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, torch_generator

_NEWTON_STEPS = 60
_HALVINGS = 8
_BLOCK = 32  # starts whose Jacobians are held at once


@dataclass(frozen=True, eq=False, repr=False)
class FixedPoints(Result):
    """Points that a step leaves as they are: (points, units), the stable ones first, then by spectral radius.

    ``radius`` is the spectral radius of the step's Jacobian, ``residual`` the largest entry of |step(h) - h|, and
    ``hits`` the number of starts that ended there.
    """

    points: Tensor
    radius: Tensor
    residual: Tensor
    hits: Tensor

    @property
    def stable(self) -> Tensor:
        """Which points attract their surroundings."""
        return self.radius < 1

    def __len__(self) -> int:
        return len(self.points)

    def answer(self) -> Answer:
        """How many there are and are stable, each with its spectral radius, and the picture."""
        worst = float(self.residual.max()) if len(self) else 0.0
        statement = (
            f"{len(self)} points, {int(self.stable.sum())} of them stable; residuals up to {worst:.1g}."
        )
        data = labelled(
            {
                "state": ("point unit", self.points),
                **{
                    name: ("point", value)
                    for name, value in picked(self, "radius residual hits stable").items()
                },
            }
        )
        parts: list[Part] = [dataset_table(data, "point").thinned(12), self.figure] if len(self) else []
        return Answer(statement, parts, data)

    def figure(self) -> Figure:
        """The states, and how far each is from being stable."""
        return points_figure(self.points, self.radius)


def points_figure(points: Tensor, radius: Tensor) -> Figure:
    """States (points, units) in colours, and the spectral radius at each beside the bound of stability."""
    figure = Figure("Fixed points", columns=2)
    states = figure.panel("states", x=Axis("unit", whole=True), y=Axis("point", whole=True))
    states.heat_map(points.numpy(), label="state", diverging=True)
    stability = figure.panel("stability", x=Axis("point", whole=True), y="spectral radius of a step")
    stability.level(y=1, label="stable below", dash="--")
    stability.curve(range(len(radius)), radius.numpy(), "o")
    return figure


def find_fixed_points(
    module: nn.RNNBase,
    x: Tensor | None = None,
    *,
    starts: Tensor | int = 100,
    steps: int = 200,
    tolerance: float = 1e-10,
    distance: float = 1e-5,
    seed: Seed = 0,
) -> FixedPoints:
    """Fixed points of an nn.RNN or nn.GRU at a constant input, from many starts, in float64.

    Every start is followed by the layer's own steps, which leads to what is stable; Newton's method with halved steps
    goes on from the start, from a few places on the way and from the end, which also finds saddles that the way
    passes. No search can promise to be complete: more starts find more.

    Parameters
    ----------
    x
        The input, (n_in,); zero by default.
    starts
        States (starts, units), or how many to draw: uniformly from the cube of side 2, shrunk by a random factor.
    steps
        How long each start is followed.
    tolerance
        What counts as fixed: no entry of step(h) - h is larger.
    distance
        Points with no entry further apart than this are the same.
    """
    step = Step.of(module, x)
    if not isinstance(starts, Tensor):
        count, source = whole_number("starts", starts), torch_generator(seed)
        cube = 2 * torch.rand(count, module.hidden_size, dtype=torch.float64, generator=source) - 1
        starts = cube * torch.rand(count, 1, dtype=torch.float64, generator=source)
    if starts.ndim != 2 or starts.shape[1] != module.hidden_size:
        raise InputError(
            f"starts has shape {tuple(starts.shape)}, but must be (starts, {module.hidden_size} units)."
        )
    units = module.hidden_size
    require_memory(
        8 * 6 * _BLOCK * units**2,
        f"Jacobians of {units} units from {_BLOCK} starts",
        "use a smaller layer",
    )
    kept, state = [starts.double()], starts.double()
    for time in track(range(1, steps + 1), "following the steps"):
        state = step(state)
        if time in (5, 20, steps):
            kept.append(state)
    candidates = torch.cat(kept)
    ended = torch.cat(
        [_newton(step, block) for block in track(torch.split(candidates, _BLOCK), "Newton's method")]
    )
    fixed = (step(ended) - ended).abs().amax(1) <= tolerance
    return described(step, *_distinct(ended[fixed], distance))


@dataclass(frozen=True, eq=False)
class Step:
    """h -> step(h) at a constant input, in float64, and its Jacobian."""

    cell: Cell
    weight: Tensor  # (gates * units, units)
    bias: Tensor
    given: Tensor  # what the input adds, (gates * units)

    @classmethod
    def of(cls, module: nn.RNNBase, x: Tensor | None) -> Step:
        """Of a layer, in float64, with its weights as they are now."""
        if not isinstance(module, nn.RNN | nn.GRU) or module.num_layers > 1 or module.bidirectional:
            raise NotSupportedError(
                "fixed points are sought in an nn.RNN or nn.GRU of one layer and direction."
            )
        values = {name: value.detach().double().cpu() for name, value in module.named_parameters()}
        zero = torch.zeros(len(values["weight_hh_l0"]), dtype=torch.float64)
        given = values.get("bias_ih_l0", zero)
        if x is not None:
            if tuple(x.shape) != (module.input_size,):
                raise InputError(f"x has shape {tuple(x.shape)}, but the layer takes ({module.input_size},).")
            given = given + values["weight_ih_l0"] @ x.double().cpu()
        return cls(cell_of(module), values["weight_hh_l0"], values.get("bias_hh_l0", zero), given)

    def __call__(self, state: Tensor) -> Tensor:
        """The next state: (states, units)."""
        return self.cell.step((state,), self.products(state), self.given)[0]

    def products(self, state: Tensor) -> Tensor:
        """W_hh h + b_hh: (states, gates * units)."""
        return state @ self.weight.t() + self.bias

    def jacobian(self, state: Tensor) -> Tensor:
        """d step / d h: (states, units, units)."""
        slopes = self.cell.slopes((state,), self.products(state), self.given.expand(len(state), -1))
        gates = self.weight.view(self.cell.gates, -1, state.shape[1])
        found = torch.einsum("sgu,guv->suv", slopes.by_slot[0][:, : self.cell.gates], gates)
        if (0, 0) in slopes.carry:
            found = found + torch.diag_embed(slopes.carry[0, 0])
        return found


def _newton(step: Step, state: Tensor) -> Tensor:
    """Newton's method on step(h) - h, each start with its own step length, halved until the residual falls."""
    one = torch.eye(state.shape[1], dtype=torch.float64)
    rest = _residual(step, state)
    for _ in range(_NEWTON_STEPS):
        move, _ = torch.linalg.solve_ex(one - step.jacobian(state), step(state) - state)
        move = torch.where(move.isfinite(), move, 0.0)
        moved = state + move
        left = _residual(step, moved)
        for _ in range(_HALVINGS):
            if not bool((left >= rest).any()):
                break
            move = torch.where((left >= rest)[:, None], move / 2, move)
            moved = state + move
            left = _residual(step, moved)
        better = left < rest
        state, rest = torch.where(better[:, None], moved, state), torch.where(better, left, rest)
        if not bool(better.any()):
            break
    return state


def _residual(step: Step, state: Tensor) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(step(state) - state, dim=1)
    return found


def _distinct(points: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    """One of each, and how often each came."""
    kept: list[Tensor] = []
    hits: list[int] = []
    for point in points:
        same = [place for place, other in enumerate(kept) if float((point - other).abs().max()) <= distance]
        if same:
            hits[same[0]] += 1
        else:
            kept.append(point)
            hits.append(1)
    stacked = torch.stack(kept) if kept else points[:0]
    return stacked, torch.tensor(hits, dtype=torch.int64)


def described(step: Step, points: Tensor, hits: Tensor) -> FixedPoints:
    """Polished, with their stability, in order."""
    points = (
        torch.cat([_newton(step, block) for block in torch.split(points, _BLOCK)]) if len(points) else points
    )
    radii = [
        torch.linalg.eigvals(step.jacobian(block)).abs().amax(1) for block in torch.split(points, _BLOCK)
    ]
    radius = torch.cat(radii) if len(points) else points.new_zeros(0)
    order = torch.argsort(radius)
    residual = (step(points) - points).abs().amax(1) if len(points) else points.new_zeros(0)
    return FixedPoints(points[order], radius[order], residual[order], hits[order])
