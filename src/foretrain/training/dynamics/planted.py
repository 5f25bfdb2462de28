"""Recurrent networks with fixed points of one's choice (Hazelden et al., (17) and figure 8).

For the autonomous network h <- W sigma(h) and points h_i whose images sigma(h_i) are orthogonal,

    W = sum_i h_i sigma(h_i)* / |sigma(h_i)|^2 + W_perp,    W_perp sigma(h_i) = 0,

holds every h_i fixed, and every -h_i too if sigma is odd. W_perp is a random matrix of a gain, projected. Being fixed
is not being stable: ``radius`` says which points attract.

>>> weights = fixed_point_weights(sign_points(units=8, count=2, size=1.5), gain=0.5)
>>> print(weights.answer().statement)
8 units, 4 fixed points, 4 of them attracting: spectral radii 0.30 to 0.30.

The state of ``nn.RNN`` is u = sigma(h), which obeys u <- sigma(W u) with the same matrix: ``weights.load_into(rnn)``
puts it there, and ``weights.images`` are the fixed points that the module shows.

A GRU at rest obeys h = n with n = tanh(W_in x + b_in + r * (W_hn h + b_hn)): the gate z says only how fast it comes
to rest. The gate r of a wanted point is known beforehand, so that W_hn has to send every h_i to
q_i = (artanh(h_i) - b_in) / r(h_i) - b_hn:

    W_hn <- Q H+ + W_hn (1 - H H+),    H = (h_1 ... h_m),  Q = (q_1 ... q_m),

with the pseudo-inverse H+, which is H* / |h|^2 where the points are orthogonal. Points have entries ±k, the same k in
all units: the slope along one of them at another is about (1 - k^2) artanh(k) / k < 1, and they can be stable. Points
k e_i on single units are not, since such a unit leaves zero by itself: only those with all of these units on are.

A GRU is not odd, since r(-h) = 1 - r(h) without biases: mirror images of the points are not fixed points, but there
are some near them, and mixtures may be stable too. ``ft.fixed_points`` tells how many there are altogether.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from foretrain.support.answers import Answer, Figure, Result, dataset_table, labelled, picked
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator
from foretrain.training.dynamics.recurrence import LayerMap
from foretrain.training.dynamics.stationary_points import FixedPoints, Held, points_figure

if TYPE_CHECKING:
    import xarray

Activation = Callable[[Tensor], Tensor]

_ORTHOGONAL = 1e-10  # cosine of two images up to which they count as orthogonal
_MODULE_ACTIVATIONS: dict[str, Activation] = {"tanh": torch.tanh, "relu": torch.relu}
_DRAWS = 100
_ROUNDING = 1e-3  # how far single precision may move a point


@dataclass(frozen=True, eq=False, repr=False)
class FixedPointWeights(Result):
    """W of h <- W sigma(h) in float64, with the points (count, units) that it holds fixed."""

    matrix: Tensor
    points: Tensor
    activation: Activation

    @property
    def images(self) -> Tensor:
        """sigma(h_i): the fixed points of u <- sigma(W u), as the state of nn.RNN is defined."""
        return self.activation(self.points)

    @property
    def residual(self) -> Tensor:
        """max |W sigma(h_i) - h_i| for every point, 0 up to rounding."""
        if not len(self.points):
            return self.points.new_zeros(0)
        return (self.images @ self.matrix.t() - self.points).abs().amax(1)

    @cached_property
    def radius(self) -> Tensor:
        """The spectral radius of W diag sigma'(h_i) for every point: it attracts if this is below 1."""
        return spectral_radii(self.matrix, self.points, self.activation)

    @property
    def stable(self) -> Tensor:
        """Which of the points are stable."""
        return self.radius < 1

    def load_into(self, module: nn.RNN) -> None:
        """Make W the recurrent matrix of a module and its biases zero: without inputs it has these fixed points."""
        if not isinstance(module, nn.RNN) or module.num_layers != 1 or module.bidirectional:
            raise NotSupportedError(
                "fixed points are put into an nn.RNN of one layer in one direction: make such a module."
            )
        if module.hidden_size != len(self.matrix):
            raise InputError(
                f"the module has {module.hidden_size} units, the matrix {len(self.matrix)}: make them equal."
            )
        if _MODULE_ACTIVATIONS[module.nonlinearity] is not self.activation:
            raise InputError(
                f"the module computes {module.nonlinearity}, which is not the activation that the points were made "
                f"for: make the weights with activation=torch.{module.nonlinearity}."
            )
        with torch.no_grad():
            for name, value in module.named_parameters():
                if name.startswith("bias"):
                    value.zero_()
            module.get_parameter("weight_hh_l0").copy_(self.matrix)

    def answer(self) -> Answer:
        """How many points it holds fixed and how many of them attract, and the picture."""
        units, count = len(self.matrix), len(self.points)
        if not count:
            return Answer(f"{units} units, no fixed points added.", data=self._data)
        radii = f"spectral radii {float(self.radius.min()):.2f} to {float(self.radius.max()):.2f}"
        statement = (
            f"{units} units, {count} fixed points, {int(self.stable.sum())} of them attracting: {radii}."
        )
        table = dataset_table(self._data(), "point").thinned(12)
        return Answer(statement, [table, self.figure], self._data)

    def figure(self) -> Figure:
        """The points, and how far each is from being stable."""
        return points_figure(self.points, self.radius)

    def _data(self) -> xarray.Dataset:
        return labelled(
            {
                "matrix": ("unit unit_2", self.matrix),
                "state": ("point unit", self.points),
                **{name: ("point", value) for name, value in picked(self, "radius residual stable").items()},
            }
        )


def fixed_point_weights(
    points: Tensor, *, activation: Activation = torch.tanh, gain: float = 1.0, seed: Seed = 0
) -> FixedPointWeights:
    """The matrix (17) for points (count, units); with no points it is the random matrix alone.

    ``activation`` acts element by element. ``gain`` is the spectral radius of the random matrix: its entries are
    normal with variance gain² / units before the projection. If the activation is odd the mirror images of the points
    are fixed points too and join the list.
    """
    if points.ndim != 2 or points.shape[1] < 1:
        raise InputError(f"`points` must be a matrix (count, units), not of shape {tuple(points.shape)}.")
    count, units = points.shape
    if count > units:
        raise InputError(
            f"there are {count} points, but {units} units have at most {units} whose images are orthogonal."
        )
    if not bool(torch.isfinite(points).all()):
        raise InputError("the points have entries that are nan or infinite: give finite ones.")
    points = points.detach().double()
    if not 0 <= gain < math.inf:
        raise InputError(f"gain is {gain}, but it must be finite and not negative.")
    drawn = torch.randn(units, units, dtype=torch.float64, generator=torch_generator(seed))
    random = gain / math.sqrt(units) * drawn
    if not len(points):
        return FixedPointWeights(random, points, activation)
    images = _checked_images(points, activation)
    duals = images / images.square().sum(1, keepdim=True)
    matrix = points.t() @ duals + random - (random @ images.t()) @ duals
    if torch.equal(activation(-points), -images):
        points = torch.cat([points, -points])
    return FixedPointWeights(matrix, points, activation)


def basis_points(units: int, count: int, size: float) -> Tensor:
    """size e_i: one unit each, the choice of (17); their images are orthogonal if sigma(0) = 0.

    All other units stay at 0, where they feel the whole gain of W_perp; and from two points on each is a saddle of
    slope size / sigma(size) towards the others: the attractors are the sums of ± size e_i, 2^count of them.
    """
    _check_counts(units, count, units, f"{units} units have {units} of them")
    return _checked_size(size) * torch.eye(units, dtype=torch.float64)[:count]


def sign_points(units: int, count: int, size: float) -> Tensor:
    """size times orthogonal vectors of signs (Sylvester's): every unit takes part, and the points attract.

    Their images under an odd function are orthogonal too. There are as many as the largest power of two in ``units``.
    """
    block = units & -units if units > 0 else 0
    _check_counts(
        units, count, block, f"{units} units have {block}, the largest power of two that divides them"
    )
    signs = torch.ones(1, 1, dtype=torch.float64)
    while len(signs) < block:
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    return _checked_size(size) * signs[:count].repeat(1, units // block)


def spectral_radii(matrix: Tensor, states: Tensor, activation: Activation) -> Tensor:
    """The spectral radius of W diag sigma'(h) at every state (count, units): of u <- sigma(W u) at sigma(h) too."""
    with torch.enable_grad():
        given = states.detach().clone().requires_grad_()
        (slopes,) = torch.autograd.grad(activation(given).sum(), given)
    found = [torch.linalg.eigvals(matrix * slope).abs().max() for slope in slopes]
    return torch.stack(found) if found else states.new_zeros(0)


def _checked_images(points: Tensor, activation: Activation) -> Tensor:
    """sigma(h_i), which must be orthogonal to each other and not zero."""
    images = activation(points)
    lengths = images.norm(dim=1)
    if bool((lengths == 0).any()):
        which = int((lengths == 0).nonzero()[0])
        raise InputError(
            f"sigma of point {which} is zero everywhere, so that no matrix leads back to it: give another point."
        )
    cosines = (images @ images.t() / torch.outer(lengths, lengths)).fill_diagonal_(0.0)
    if float(cosines.abs().max()) > _ORTHOGONAL:
        at_zero = float(activation(points.new_zeros(1)))
        why = f" (sigma(0) is {at_zero:.3g}, not 0, so that units at rest count)" if at_zero else ""
        raise InputError(
            f"the images of the points are not orthogonal{why}: their largest cosine is "
            f"{float(cosines.abs().max()):.2g}; give points whose images under sigma are, such as basis_points for a "
            "function with sigma(0) = 0 or sign_points for an odd one."
        )
    return images


def _checked_size(size: float) -> float:
    if not math.isfinite(size) or size == 0:
        raise InputError(
            f"size is {size}, but a point other than the origin needs a finite one that is not 0."
        )
    return float(size)


def _check_counts(units: int, count: int, most: int, why: str) -> None:
    if units < 1:
        raise InputError(f"units is {units}, but a network has at least one.")
    if not 0 <= count <= most:
        raise InputError(f"count is {count}, but {why}.")


def plant_fixed_points(
    gru: nn.RNNBase, count: int = 5, *, amplitude: float = 0.6, seed: Seed = 0
) -> FixedPoints:
    """Change the recurrent weights of a GRU's candidate so that it has stable fixed points at zero input.

    Each is a random pattern of ±amplitude; other weights stay. Patterns are drawn again, up to 100 times, until all
    are stable: they often are not if there are few units for each or the amplitude is small. Near 1 they are steep
    wells that inputs hardly choose between; smaller ones lie in a landscape with slow directions. Returned are the
    points after rounding to the module's precision, in float64; mirror images and mixtures are not among them.
    """
    if not isinstance(gru, nn.GRU) or gru.num_layers > 1 or gru.bidirectional:
        raise NotSupportedError(
            "plant_fixed_points changes the candidate of a GRU: give it an nn.GRU of one layer in one direction."
        )
    step = LayerMap(gru)
    units = gru.hidden_size
    if not 1 <= count <= units:
        raise InputError(f"count is {count}, but a GRU of {units} units has room for 1 to {units} points.")
    if not 0 < amplitude < 1:
        raise InputError(
            f"amplitude is {amplitude}, but states of a GRU lie between -1 and 1: choose e.g. 0.9."
        )
    weight = gru.get_parameter("weight_hh_l0")
    source, before = torch_generator(seed), weight.detach().clone()
    for _ in range(_DRAWS):
        signs = torch.randint(0, 2, (count, units), generator=source)
        patterns = amplitude * (2 * signs - 1).double()
        # W_hn such that every pattern is its own candidate at zero input.
        reset = torch.sigmoid(step.products(patterns) + step.given(None))[:, :units]
        wanted = (torch.atanh(patterns) - step.bias_of_inputs[2 * units :]) / reset - step.bias[2 * units :]
        inverse, old = torch.linalg.pinv(patterns.t()), step.weight[2 * units :]
        with torch.no_grad():
            new = wanted.t() @ inverse + old - old @ patterns.t() @ inverse
            weight[2 * units :] = new.to(weight)
        found = Held(LayerMap(gru)).points(patterns)
        if (
            len(found) == count
            and bool(found.stable.all())
            and float((found.points.abs() - amplitude).abs().max()) < _ROUNDING
        ):
            return found
    weight.data.copy_(before)
    raise InputError(
        f"no {_DRAWS} draws of {count} points of amplitude {amplitude} in {units} units were all stable: choose an "
        "amplitude nearer to 1, fewer points, more units or smaller recurrent weights."
    )
