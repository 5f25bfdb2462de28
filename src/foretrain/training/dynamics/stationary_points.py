"""Fixed and slow points of recurrent models at a constant input, with the linear dynamics around them.

Points are sought where the speed |f(h) - h| has a minimum (Sussillo & Barak 2013), by damped Gauss-Newton steps
(Levenberg-Marquardt, with Nielsen's rule for the damping) from many starts. A minimum of zero is a fixed point; a
positive one is a slow point, such as the ghost of two points that have just vanished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.support.answers import Answer, Axis, Figure, Part, Result, dataset_table, labelled, picked
from foretrain.support.arguments import not_negative, positive, whole_number
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, torch_generator
from foretrain.training.dynamics.recurrence import (
    FunctionMap,
    StateMap,
    States,
    flat,
    is_plain,
    parts_of,
    random_states,
    read_map,
    read_run,
)

_ITERATIONS = 500
_POLISHING = 4  # Newton steps at the end, where they still lower the speed
_MOST_DAMPING = 1e12  # times the first one: no step lowers the speed any more
_PUSH = 1e-3  # of a minimum, by unit
_BLOCK = 32  # starts whose Jacobians are held at once
_ON_THE_WAY = (5, 20)  # steps after which the search begins, too


@dataclass(frozen=True, eq=False, repr=False)
class FixedPoints(Result):
    """Points (points, units) where a step stands still or is slow: fixed ones first, then by spectral radius.

    ``residual`` is the largest entry of |f(h) - h|, ``speed`` its root mean square over units, ``eigenvalues`` are
    those of the step's Jacobian, largest modulus first, and ``hits`` the candidates that ended there. ``unfinished``
    of the ``searched`` candidates ended at minima that are not slow, or were still on the way. ``distance`` is that
    of the nearest state that was visited, if there were such.
    """

    points: Tensor
    fixed: Tensor
    eigenvalues: Tensor
    residual: Tensor
    speed: Tensor
    hits: Tensor
    searched: int = 0
    unfinished: int = 0
    dt: float = 1.0
    distance: Tensor | None = None

    @property
    def radius(self) -> Tensor:
        """The spectral radius of the Jacobian."""
        return self.eigenvalues.abs().amax(1) if len(self) else self.speed

    @property
    def stable(self) -> Tensor:
        """Which fixed points attract their surroundings."""
        return self.fixed & (self.radius < 1)

    @property
    def unstable_dimension(self) -> Tensor:
        """How many directions lead away from each."""
        return (self.eigenvalues.abs() > 1).sum(1)

    @property
    def time_constants(self) -> Tensor:
        """-dt / log |eigenvalue|: the time in which a mode decays by a factor e, negative where it grows."""
        return -self.dt / self.eigenvalues.abs().log()

    def __len__(self) -> int:
        return len(self.points)

    def answer(self) -> Answer:
        """How many there are and are stable, each with its linear dynamics, and the picture."""
        slow = len(self) - int(self.fixed.sum())
        worst = float(self.residual[self.fixed].max()) if slow < len(self) else 0.0
        statement = (
            f"Fixed points: {len(self) - slow}, stable: {int(self.stable.sum())}, slow points: {slow}; residuals up "
            f"to {worst:.1g}."
        )
        if self.unfinished:
            statement += (
                f" {self.unfinished} of {self.searched} candidates ended at faster minima or nowhere."
            )
        names = "fixed stable radius unstable_dimension speed residual hits distance"
        numbers = {name: value for name, value in picked(self, names).items() if value is not None}
        if len(self):
            numbers["longest_time"] = self.time_constants.abs().amax(1)
        data = labelled(
            {
                **{name: ("point", value) for name, value in numbers.items()},
                "state": ("point unit", self.points),
                "eigenvalue_real": ("point mode", self.eigenvalues.real),
                "eigenvalue_imaginary": ("point mode", self.eigenvalues.imag),
            },
            {"searched": self.searched, "unfinished": self.unfinished, "dt": self.dt},
        )
        parts: list[Part] = [dataset_table(data, "point").thinned(12), self.figure] if len(self) else []
        return Answer(statement, parts, data)

    def figure(self) -> Figure:
        """The states, and the eigenvalues around each beside the circle of stability."""
        figure = points_figure(self.points, self.radius)
        circle = figure.panel("eigenvalues", x="real part", y="imaginary part", equal=True)
        angle = torch.linspace(0, 2 * torch.pi, 200)
        circle.curve(angle.cos().numpy(), angle.sin().numpy(), "--", color="#999999")
        for place, own in enumerate(self.eigenvalues[:8]):
            circle.curve(own.real.numpy(), own.imag.numpy(), ".", f"point {place}")
        return figure


def points_figure(points: Tensor, radius: Tensor) -> Figure:
    """States (points, units) in colours, and the spectral radius at each beside the bound of stability."""
    figure = Figure("Fixed points", columns=3)
    states = figure.panel("states", x=Axis("unit", whole=True), y=Axis("point", whole=True))
    states.heat_map(points.numpy(), label="state", diverging=True)
    stability = figure.panel("stability", x=Axis("point", whole=True), y="spectral radius of a step")
    stability.level(y=1, label="stable below", dash="--")
    stability.curve(range(len(radius)), radius.numpy(), "o")
    return figure


def fixed_points(
    model: Any,
    x: Tensor | None = None,
    *,
    starts: Any = 100,
    trials: Any = None,
    states: States = None,
    steps: int = 200,
    slow: float = 0.01,
    tolerance: float | None = None,
    distance: float = 1e-5,
    dt: float = 1.0,
    seed: Seed = 0,
) -> FixedPoints:
    """Fixed and slow points of a recurrent model at a constant input, with their stability.

    Every start is followed by the model's own steps, which leads to what is stable; minima of the speed are sought
    from the start, from two places on the way and from the end, which also finds saddles that the way passes. No
    search can promise to be complete: more starts find more.

    Parameters
    ----------
    model
        A recurrent layer or cell of torch, a model with one inside (``states``: its path, where there are several),
        or one step as a function f(h, x) of states and inputs of a batch. Layers are searched in float64, a function
        in the precision of its ``starts``.
    x
        What every step is given, (n_in,); of a layer zero by default, while a function is called as f(h).
    starts
        States (starts, units), as a function needs them; or how many to draw: of the states visited in ``trials``, or
        else from the cube of side 2, shrunk by a random factor.
    trials
        Inputs as the model takes them: the search begins at states that they lead it through.
    steps
        How long each start is followed.
    slow
        The largest speed, as a root mean square over units, of what counts as a slow point.
    tolerance
        What counts as fixed: no entry of f(h) - h is larger; by default 1e-10, 1e-5 in float32.
    distance
        Points with no entry further apart than this are the same.
    dt
        The time of a step, for ``time_constants``.

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> found = ft.fixed_points(lambda h: torch.tanh(2 * h), starts=torch.linspace(-1, 1, 8)[:, None].double())
    >>> found.fixed.sum().item(), found.stable.sum().item(), found.unstable_dimension.tolist()
    (3, 2, [0, 0, 1])
    """
    steps, slow, dt = whole_number("steps", steps, least=0), not_negative("slow", slow), positive("dt", dt)
    distance = not_negative("distance", distance)
    are_given = isinstance(starts, Tensor | tuple | list)
    step = read_map(model, starts if are_given else None, states)
    visited = None
    if trials is not None:
        if isinstance(step, FunctionMap) and not isinstance(model, nn.Module):
            raise InputError(
                "`trials=` is for models: of a function f(h, x) give the states it visits as `starts=`."
            )
        visited = read_run(model, trials, states=states, seed=seed).states.flatten(0, 1)
        if visited.shape[1] != step.units:
            raise InputError(
                f"`trials=` leads through {visited.shape[1]} units, but a step has {step.units}."
            )
    if are_given:
        first = flat(parts_of(starts)).detach()
    elif visited is not None:
        order = torch.randperm(len(visited), generator=torch_generator(seed))
        first = visited[order[: whole_number("starts", starts)]]
    else:
        first = random_states(step, whole_number("starts", starts), seed)
    if first.shape[1] != step.units or not bool(torch.isfinite(first).all()):
        raise InputError(
            f"`starts` has shape {tuple(first.shape)}: give finite states (starts, {step.units} units)."
        )
    first = first.to(step.dtype)
    given = None
    if x is not None:
        if not is_plain(x) or x.ndim != 1 or step.inputs not in (None, len(x)):
            wanted = "n_in" if step.inputs is None else step.inputs
            kind = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"`x` is {kind}, but a step takes a real tensor ({wanted},).")
        given = x.detach().to(step.dtype).cpu() if step.inputs is not None else x
    item = torch.finfo(step.dtype).bits // 8
    require_memory(
        item * 8 * _BLOCK * step.units**2, f"Jacobians of {step.units} units", "use a smaller model"
    )
    held = Held(step, given)
    candidates = [first]
    state = first
    for time in track(range(1, steps + 1), "following the steps"):
        state = held(state)
        if time in (*_ON_THE_WAY, steps):
            candidates.append(state)
    everything = torch.cat(candidates)
    everything = everything[torch.isfinite(everything).all(1)]
    return held.points(everything, tolerance, slow, distance, dt, visited)


@dataclass(frozen=True)
class Held:
    """A step whose input is held constant."""

    step: StateMap
    x: Tensor | None = None

    def __call__(self, state: Tensor) -> Tensor:
        """The next states."""
        with torch.no_grad():
            return self.step(state, self._given(state))

    def jacobian(self, state: Tensor) -> Tensor:
        """(states, units, units)."""
        return self.step.jacobian(state, self._given(state))

    def _given(self, state: Tensor) -> Tensor | None:
        return None if self.x is None else self.x.expand(len(state), -1)

    def points(
        self,
        candidates: Tensor,
        tolerance: float | None = None,
        slow: float = 0.0,
        distance: float = 1e-5,
        dt: float = 1.0,
        visited: Tensor | None = None,
    ) -> FixedPoints:
        """The distinct minima of the speed that candidates lead to, with the linear dynamics there."""
        single = torch.finfo(candidates.dtype).bits < 64
        tolerance = (1e-5 if single else 1e-10) if tolerance is None else positive("tolerance", tolerance)
        blocks = [
            self._minima(block, tolerance)
            for block in track(torch.split(candidates, _BLOCK), "Newton's method")
        ]
        ended = torch.cat([block[0] for block in blocks])
        at_rest = torch.cat([block[1] for block in blocks])
        change = self(ended) - ended
        fixed, speed = change.abs().amax(1) <= tolerance, change.square().mean(1).sqrt()
        kept = fixed | (at_rest & (speed <= slow))
        # One of each: fixed points and slow ones apart, the best first.
        order = torch.argsort(speed[kept])
        place, hits = _distinct(ended[kept][order], fixed[kept][order], distance)
        points, is_fixed = ended[kept][order][place], fixed[kept][order][place]
        eigenvalues = [
            torch.linalg.eigvals(self.jacobian(block)) for block in torch.split(points, _BLOCK) if len(block)
        ]
        empty = points.new_zeros(0, points.shape[1]).to(torch.promote_types(points.dtype, torch.complex64))
        values = torch.cat(eigenvalues) if eigenvalues else empty
        values = values.gather(1, values.abs().argsort(1, descending=True))
        radius = values.abs().amax(1) if len(points) else speed[:0]
        order = torch.argsort(
            torch.where(is_fixed, radius, radius + 2 * radius.max() + 1 if len(points) else radius)
        )
        change = self(points) - points
        near = None if visited is None else torch.cdist(points, visited.to(points)).amin(1)[order]
        return FixedPoints(
            points[order],
            is_fixed[order],
            values[order],
            change.abs().amax(1)[order] if len(points) else radius,
            change.square().mean(1).sqrt()[order],
            hits[order],
            searched=len(candidates),
            unfinished=int((~kept).sum()),
            dt=dt,
            distance=near,
        )

    def _minima(self, state: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Where descents end; those at rest without being fixed are pushed a little, which maxima do not survive."""
        ended, at_rest = self._descend(state, tolerance)
        doubtful = at_rest & (self._rest(ended)[0].abs().amax(1) > tolerance)
        if bool(doubtful.any()):
            again = ended[doubtful]
            push = torch.randn(again.shape, generator=torch_generator(0), dtype=torch.float64).to(again)
            ended[doubtful], at_rest[doubtful] = self._descend(again + _PUSH * push, tolerance)
        return ended, at_rest

    def _descend(self, state: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
        """Minima of |f(h) - h|^2 / 2 from every start, and which of them are such minima."""
        one = torch.eye(state.shape[1], dtype=state.dtype, device=state.device)
        rest, cost = self._rest(state)
        slopes = self.jacobian(state) - one
        first = slopes.square().sum(1).amax(1).clamp_min(torch.finfo(state.dtype).tiny)
        damping, growth = 1e-3 * first, torch.full_like(first, 2.0)
        at_rest = torch.zeros_like(first, dtype=torch.bool)
        least = 8 * torch.finfo(state.dtype).eps ** 0.5  # of the speed: a gradient that counts as none
        for _ in range(_ITERATIONS):
            gradient = (slopes.mT @ rest[..., None])[..., 0]
            # The gradient vanishes where the rest is orthogonal to all that changes of h can do.
            size = rest.norm(dim=1)
            is_fixed = rest.abs().amax(1) <= tolerance
            at_rest = is_fixed | (gradient.norm(dim=1) <= least * size)
            active = ~at_rest & (damping < _MOST_DAMPING * first) & torch.isfinite(cost)
            if not bool(active.any()):
                break
            # One damped step of all that are still on the way.
            now, normal = state[active], slopes[active].mT @ slopes[active]
            matrix = normal + damping[active, None, None] * one
            move = -torch.linalg.solve_ex(matrix, gradient[active])[0]
            moved = now + torch.where(move.isfinite(), move, 0.0)
            new_rest, new_cost = self._rest(moved)
            expected = 0.5 * (move * (damping[active, None] * move - gradient[active])).sum(1)
            gain = ((cost[active] - new_cost) / expected).nan_to_num(-1.0)
            better = (gain > 0) & (new_cost < cost[active])
            # Nielsen's rule: less damping the better the step was foreseen, more and more after steps in vain.
            factor = torch.where(better, (1 - (2 * gain - 1) ** 3).clamp_min(1 / 3), growth[active])
            damping[active] *= factor
            growth[active] = torch.where(better, 2.0, 2 * growth[active])
            places = active.nonzero()[:, 0][better]
            state, rest, cost, slopes = (value.clone() for value in (state, rest, cost, slopes))
            state[places], rest[places], cost[places] = moved[better], new_rest[better], new_cost[better]
            if len(places):
                slopes[places] = self.jacobian(state[places]) - one
        for _ in range(_POLISHING):
            move = torch.linalg.solve_ex(self.jacobian(state) - one, -rest)[0]
            moved = state + torch.where(move.isfinite(), move, 0.0)
            new_rest, new_cost = self._rest(moved)
            better = (new_cost < cost) & (rest.abs().amax(1) <= tolerance)
            state, rest = (
                torch.where(better[:, None], moved, state),
                torch.where(better[:, None], new_rest, rest),
            )
            cost = torch.where(better, new_cost, cost)
        return state.clone(), at_rest

    def _rest(self, state: Tensor) -> tuple[Tensor, Tensor]:
        found = self(state) - state
        return found, 0.5 * found.square().sum(1)


def _distinct(points: Tensor, fixed: Tensor, distance: float) -> tuple[Tensor, Tensor]:
    """The places of one point of each kind, and how often each came."""
    kept: list[int] = []
    hits: list[int] = []
    for place, point in enumerate(points):
        near = [
            number
            for number, other in enumerate(kept)
            if fixed[other] == fixed[place] and float((point - points[other]).abs().max()) <= distance
        ]
        if near:
            hits[near[0]] += 1
        else:
            kept.append(place)
            hits.append(1)
    return torch.tensor(kept, dtype=torch.int64), torch.tensor(hits, dtype=torch.int64)
