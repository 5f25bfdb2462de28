"""What the effective theory recommends for one activation and width: numbers, sentences, and code to paste."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.answers import Answer, Code, Result, Table, labelled
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.support.seeds import Seed
from foretrain.theory.advice.depths import (
    PerturbativeDepths,
    StableStep,
    advice_figure,
    check_loss,
    perturbative_depths,
    stable_step,
)
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import Criticality, CriticalPoint, criticality
from foretrain.theory.criticality.critical_initialisation import critical_side
from foretrain.theory.finite_width import LARGE, SMALL
from foretrain.theory.information import next_coefficient, turning_point
from foretrain.theory.residual_networks import fluctuation_rate, optimal_skip

if TYPE_CHECKING:
    import xarray as xr


_DEEPEST = 100_000  # layers of the network that is handed back, each with its rates


def advise(
    activation: Any,
    width: int,
    *,
    n_out: int = 1,
    n_in: int | None = None,
    gamma: float | None = None,
    depth: int | None = None,
    X: ArrayLike | None = None,
    loss: str = "squared_error",
) -> Advice:
    """What the effective theory recommends for networks with this activation and width.

    Depth: how deep the expansion in 1/n reaches, and r* = L/n at which the truncated information between the two
    halves of the output peaks. Initialisation: critical C_b and C_W. Training: learning rates by layer.

    Parameters
    ----------
    gamma
        Skip connections of all hidden layers but the first.
    depth
        A depth to judge; without it the network is as deep as r* says.
    X
        Typical inputs, a few hundred at most: fluctuations are then those of the one of median size, rates are
        balanced for them where the class has no law, and there is a largest stable step for the ``loss``.
    loss
        That the largest stable step on X is for: ``squared_error``, half the SUM of squares as in ``predict``,
        ``mse``, the mean over inputs and outputs as torch has it, or ``cross_entropy``, the mean over inputs.

    Examples
    --------
    >>> found = advise("tanh", 256, n_out=10)
    >>> found.best_depth, found.depths.small, found.depths.large
    (30, 40, 118)
    """
    act = find_activation(activation)
    if isinstance(width, bool) or not isinstance(width, int | np.integer):
        raise InputError(f"`width` is {width!r}: give one whole number, the width of all hidden layers.")
    check_loss(loss, n_out)
    plain = MLP.critical(act, 2, int(width), n_in=n_in, n_out=n_out)  # refuses what cannot be a network
    if X is not None:
        plain = plain.with_inputs(X)
    if gamma is not None and (isinstance(gamma, bool) or not isinstance(gamma, int | float | np.number)):
        raise InputError(f"`gamma` is {gamma!r}: give one number between -1 and 1.")
    skip = float(gamma or 0.0)
    found = criticality(act, skip)
    point = found.point
    assert point is not None  # or the network had been refused
    # nu of V / (n K^2) = nu L/n, complete and as printed; at a half-stable K* that of a signal at K*.
    nu = nu_printed = point.coefficients["nu"]
    if point.kind != "half-stable":
        nu, nu_printed = (fluctuation_rate(act, skip, way) for way in ("complete", "book"))
    start = _first_kernel(plain, point, X)
    depths = perturbative_depths(act, int(width), start, nu, skip)
    half = n_out / 2
    best = turning_point(half, half) / nu
    complete = None
    if point.kind != "half-stable":
        complete = turning_point(half, half, next_coefficient(point.kind)) / nu
    chosen = _chosen_depth(depth, best, width, skip)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)  # the notes say which side of K* inputs are on
        network = MLP.critical(act, chosen, width, plain.n_in, plain.n_out, skip or None, X)
    return Advice(
        criticality=criticality(act),
        width=int(width),
        n_out=n_out,
        gamma=skip,
        nu=nu,
        nu_printed=nu_printed,
        best_ratio=best,
        complete_ratio=complete,
        depths=depths,
        first_kernel=start,
        depth=depth,
        skip=_skip(act, depth, width, n_out),
        network=network,
        step=None if X is None else stable_step(network, X, loss),
        notes=_notes(found, point, plain, X, n_out, best * width),
    )


def _first_kernel(plain: MLP, point: CriticalPoint, X: ArrayLike | None) -> float:
    """Of the input of median size; without inputs K*, or one where K* is 0 or anything."""
    if X is not None:
        kernels = np.sort(np.diag(plain.first_kernel(X)))
        kernel = float(kernels[len(kernels) // 2])
        if kernel <= 0:
            raise InputError(
                "most inputs are zero, and with C_b = 0 they give no signal: leave those out of X."
            )
        return kernel
    return point.K_star or 1.0


def _chosen_depth(depth: int | None, best: float, width: int, gamma: float) -> int:
    least = 3 if gamma else 2
    if depth is None:
        there = max(least, math.floor(best * width))
        if there > _DEEPEST:
            raise InputError(
                f"r* is depth {there:,} at width {width:,}, more layers than can be written down: ask about a depth "
                f"of at most {_DEEPEST:,}."
            )
        return there
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < least:
        raise InputError(f"`depth` is {depth!r}: give a whole number of layers, at least {least}.")
    if depth > _DEEPEST:
        raise InputError(f"`depth` is {depth}: ask about at most {_DEEPEST:,} layers.")
    return int(depth)


def _skip(act: Activation, depth: int | None, width: int, n_out: int) -> float | None:
    """gamma* of the depth that is asked about; None where none is known or asked for."""
    if depth is None:
        return None
    try:
        return optimal_skip(act, depth / width, n_out=n_out)
    except NotSupportedError:
        return None


def _notes(
    found: Criticality, point: CriticalPoint, plain: MLP, X: ArrayLike | None, n_out: int, best: float
) -> tuple[str, ...]:
    notes = [
        "r* is a property of the truncated series: the exact information grows with depth without a maximum, and is "
        "larger than the truncated one at r* (about twice in deep scale-invariant networks)."
    ]
    if point.kind == "half-stable":
        notes.append(
            f"{found.activation.label} is critical at K* = {point.K_star:.6g} only and attracts from one side: nu is "
            "that of signals at K*, and falls to a fifth of it for those that come from far away."
        )
        assert point.K_star is not None
        square = (point.K_star - plain.C_b[0]) / plain.C_W[0]
        scaling = f"scale inputs to a mean square of {square:.6g} (per component), so that they start at K*."
        notes.append(scaling if X is None else critical_side(plain, X).sentence)
    if found.gamma and point.kind == "half-stable":
        notes.append("nu with skip connections is the printed kind here, without what neurons remember.")
    if n_out == 1:
        notes.append("one output has no halves: r* is (A.73) at its word.")
    if best < 2:
        notes.append(
            f"r* allows no hidden layer at width {plain.hidden_widths[0]}: that takes width "
            f"{math.ceil(2 * plain.hidden_widths[0] / best)}."
        )
    return tuple(notes)


@dataclass(frozen=True, eq=False, repr=False)
class Advice(Result):
    """Depth, initialisation, learning rates and skip connections for one activation and width.

    ``nu`` is the growth of V/(nK^2) with L/n; ``best_ratio`` is r* by (A.73) with it, ``complete_ratio`` r* with all
    terms of third order (None where they are not known). ``network`` is the recommended MLP: of the depth asked
    about, or of that at r*. ``skip`` is the gamma* of (B.36) for the depth that was asked about.
    """

    criticality: (
        Criticality  # of the plain network: layers with a skip connection have 1 - gamma^2 times C_b, C_W
    )
    width: int
    n_out: int
    gamma: float
    nu: float
    nu_printed: float
    best_ratio: float
    complete_ratio: float | None
    depths: PerturbativeDepths
    first_kernel: float  # K at layer 1 that the depths are for
    depth: int | None
    skip: float | None
    network: MLP
    step: StableStep | None
    notes: tuple[str, ...]

    @property
    def best_depth(self) -> int:
        """The depth at r*, rounded down; below 2 there is no hidden layer left."""
        return math.floor(self.best_ratio * self.width * (1 + 1e-12))

    @property
    def breakdown_depth(self) -> int:
        """The depth at which the truncated information is negative, 3/2 r*."""
        return math.ceil(1.5 * self.best_ratio * self.width)

    @property
    def position(self) -> str | None:
        """Of the depth that was asked about: "inside", "at the edge" or "outside" the perturbative range."""
        if self.depth is None:
            return None
        if self.depth <= self.depths.small:
            return "inside"
        return "at the edge" if self.depth <= self.depths.large else "outside"

    @property
    def verdict(self) -> str:
        """One sentence about the depth that was asked about, or about which depths to choose."""
        reach = f"perturbative up to depth {self.depths.small}, and marginally up to {self.depths.large}"
        if self.depth is None:
            optimum = f"is depth {self.best_depth}" if self.best_depth > 1 else "allows no hidden layer"
            return f"Width {self.width} is {reach}; r* = {self.best_ratio:.4g} {optimum}."
        name, size = self.depths.at(self.depth)
        told = f"Depth {self.depth} at width {self.width} is {self.position}: its largest ratio {name} is {size:.3g}"
        if self.position == "inside":
            return f"{told}, below {SMALL:g}."
        limit = f"not below {SMALL:g}" if self.position == "at the edge" else f"above {LARGE:g}"
        wide = math.ceil(self.width * size / SMALL)
        cure = f"take width {wide}" + (f", or depth {self.depths.small}" if self.depths.small > 1 else "")
        if self.skip and not self.gamma:
            turn = self.best_ratio * self.nu  # at the maximum of the truncated information
            cure += f", or skip connections gamma = {_below_one(self.skip)}, which bring nu L/n to {turn:.3g}"
        return f"{told}, {limit}; {cure}."

    @property
    def code(self) -> str:
        """Python that builds the network and its optimizer."""
        options = [self.network.activation.code, f"depth={self.network.depth}", f"width={self.width}"]
        balanced = self.step is not None and self.criticality.universality_class == "half-stable"
        if balanced:  # there the inputs themselves say what rates balance the layers
            options.append("X=x")
        elif self.network.n_in is not None:
            options.append(f"n_in={self.network.n_in}")
        options += [f"n_out={self.n_out}"] if self.n_out != 1 else []
        options += [f"gamma={self.gamma!r}"] if self.gamma else []
        inputs = "" if self.network.n_in is not None else ", n_in=x.shape[1]"
        eta = "0.1" if self.step is None else f"{self.step.recommended:.3g}"
        return "\n".join(
            [
                "import torch, foretrain as ft",
                "from foretrain.compare.build import build, parameter_groups",
                f"mlp = ft.MLP.critical({', '.join(options)})",
                f"network = build(mlp{inputs})",
                f"optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta={eta}))",
            ]
        )

    def _rows(self) -> list[tuple[str, str, str]]:
        """The numbers: quantity, value, meaning."""
        found, depths, layers = self.criticality, self.depths, self.network.layers
        first, last = layers[0], layers[-1]
        shown = {"p_0": "p_0", "p_perpendicular": "p_perp", "p_V": "p_V"}
        named = (
            f"{short} {found.exponents[key]:.4g}" for key, short in shown.items() if key in found.exponents
        )
        K_star = "any" if found.K_star is None else f"{found.K_star:.8g}"
        share = f" (times {1 - self.gamma**2:.4g} where there is a skip)" if self.gamma else ""
        complete = "not known" if self.complete_ratio is None else f"{self.complete_ratio:.6g}"
        peak = f"L/n where the truncated information peaks (A.73): depth {self.best_depth}"
        inside = f"depths with all ratios below {SMALL:g}; the first above it is {depths.small_criterion}"
        negative = "depth from which the truncated information is negative"
        edge = f"the same below {LARGE:g}; the first above it is {depths.large_criterion}"
        bias, weight = (f"{one:.4g} to {other:.4g}" for one, other in zip(first[4:6], last[4:6], strict=True))
        rows = [
            ("C_b", f"{found.C_b:.8g}", f"variance of biases{share}"),
            ("C_W", f"{found.C_W:.8g}", f"variance of weights times fan-in{share}"),
            ("K*", K_star, f"fixed point of the kernel, class {found.universality_class}"),
            ("exponents", ", ".join(named), "p of what falls as depth^-p"),
            ("nu", f"{self.nu:.6g}", "growth of V/(nK^2) with L/n"),
            ("r*", f"{self.best_ratio:.6g}", peak),
            ("r* complete", complete, "the same with all terms of third order"),
            ("breakdown", str(self.breakdown_depth), negative),
            ("inside", self._range(2, depths.small), inside),
            ("edge", self._range(max(2, depths.small + 1), depths.large), edge),
            ("lambda_b", bias, f"rates of biases, layers 1 to {last.number}"),
            ("lambda_W", weight, "rates of weights, before dividing by fan-in"),
        ]
        if self.skip is not None:
            meaning = f"skip that makes depth {self.depth} optimal (B.36); 0: none needed"
            rows.append(("gamma*", _below_one(self.skip), meaning))
        if self.step is not None:
            meaning = f"largest stable eta on {self.step.inputs} inputs, loss {self.step.loss}"
            rows.append(("eta", f"{self.step.largest:.4g}", meaning))
        return rows

    @staticmethod
    def _range(first: int, last: int) -> str:
        return f"{first} to {last}" if last > first else str(first) if last == first else "none"

    def answer(self, seed: Seed = 0) -> Answer:
        """The verdict, its numbers and code to paste; the picture draws random networks with ``seed``."""
        return Answer(
            self.verdict,
            [
                Table(("quantity", "value", "meaning"), self._rows()),
                *(f"Note: {note}" for note in self.notes),
                Code(self.code, "In Python:"),
                lambda: advice_figure(self, seed),
            ],
            data=self._dataset,
            record=self._record(),
            holds=self.position != "outside",
        )

    def _record(self) -> dict[str, Any]:
        found, depths = self.criticality, self.depths
        same = ("C_b", "C_W", "K_star", "exponents", "universality_class")
        own = "width gamma nu nu_printed best_ratio complete_ratio best_depth breakdown_depth first_kernel"
        return {
            "activation": found.activation.label,
            **{name: getattr(found, name) for name in same},
            **{name: getattr(self, name) for name in f"{own} depth position verdict code".split()},
            "outputs": self.n_out,
            "perturbative_depth": depths.small,
            "perturbative_criterion": depths.small_criterion,
            "marginal_depth": depths.large,
            "marginal_criterion": depths.large_criterion,
            "optimal_skip": self.skip,
            "layers": [layer._asdict() for layer in self.network.layers],
            "stable_step": None if self.step is None else self.step._asdict(),
            "notes": list(self.notes),
        }

    def _dataset(self) -> xr.Dataset:
        """Ratios of order 1/n by name and layer, and the learning rates of the recommended network."""
        layers, ratios = self.network.layers, self.depths.ratios
        names = [str(name) for name in ratios]
        return labelled(
            {
                "size": ("ratio layer", np.stack([ratios[name].values for name in names])),
                "lambda_b": ("network_layer", [layer.lambda_b for layer in layers]),
                "lambda_W": ("network_layer", [layer.lambda_W for layer in layers]),
            },
            {k: value for k, value in self._record().items() if isinstance(value, str | int | float)},
            ratio=names,
            layer=ratios["layer"],
            network_layer=[layer.number for layer in layers],
        )


def _below_one(gamma: float) -> str:
    """With as many digits as tell it from 1, at which no network is critical."""
    digits = 4 if gamma < 0.999 else 3 - math.floor(math.log10(1 - gamma))
    return f"{gamma:.{digits}g}"
