"""``ft.fields(model, x)``: the collective fields of a network, each computed when it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.chain import find_chain
from foretrain.empirical.fields import spectra, transport
from foretrain.empirical.fields.one_step import FirstOrderStep, StepReport, step_report
from foretrain.empirical.fields.spectra import HeavyTail, heavy_tail, observe
from foretrain.empirical.fields.state import (
    OUTPUTS,
    PAIR,
    FieldState,
    ReadoutLike,
    check_loss_scale,
    check_rate,
    check_targets,
    find_state,
    joined,
    labelled,
)
from foretrain.support.answers import Answer, Axis, Figure, Part, Result, dataset_table
from foretrain.support.answers import labelled as labelled_dataset
from foretrain.support.errors import InputError
from foretrain.support.threads import on_free_cores

if TYPE_CHECKING:
    import xarray as xr

Inputs: TypeAlias = int | Sequence[int] | None  # one input, some, or all
Vector: TypeAlias = Tensor | NDArray[np.floating]

_STORED = 10_000_000  # numbers of pairs of inputs in a dataset; of more, ask the methods for what is wanted


@on_free_cores()
def fields(model: nn.Module, x: Tensor, *, readout: ReadoutLike = None, normalized: bool = False) -> Fields:
    """The collective fields of a feed-forward network on inputs x (M, ...).

    Parameters
    ----------
    model
        Any module that is a chain of ``nn.Linear`` layers and elementwise activations, of any widths, with or without
        biases; parameters with ``requires_grad=False`` do not learn. Anything else is refused by name.
    readout
        How outputs are read from what the module returns. None: each returned unit is an output (a trained last
        linear layer is then simply layer L). ``"mean"``: the note's fixed readout (9). Or a fixed vector (n_L,) or
        matrix (outputs, n_L).
    normalized
        False: inner products Q = u . u, S = z . z are raw, and the readout's factor stands in front once,
        K = scale^2 sum Q S. True: they are divided by the width of their layer, and the transport operators carry the
        readout's factor; with equal widths and the mean readout every object is then the note's. K is the same.

    The fields are those of the model as it is now: copies are kept, the model is not changed.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    >>> found = fields(model, torch.randn(5, 3))
    >>> found.kernel_by_layer.sizes["layer"]
    2
    """
    return Fields(find_state(model, x, readout), normalized)


class Fields(Result):
    """Overlaps, conjugate fields, kernels and metrics of M inputs in layers 1..L; u_0 are the inputs."""

    def __init__(self, state: FieldState, normalized: bool = False) -> None:
        self.state = state
        self.normalized = normalized

    @property
    def depth(self) -> int:
        """The number L of linear layers."""
        return self.state.chain.depth

    @property
    def widths(self) -> tuple[int, ...]:
        """n_0..n_L."""
        return self.state.chain.widths

    @property
    def readout_scale(self) -> float:
        """The factor in front of the readout: 1/n_L for the mean, else 1."""
        return self.state.readout.scale

    def answer(self) -> Answer:
        """The layers with their share of the kernel, and what to ask next."""
        state, chain = self.state, self.state.chain
        traces = state.kernel_traces()
        total = float(traces.sum())
        data = labelled_dataset(
            {
                "weights": ("layer", [layer.name for layer in chain.layers]),
                "learns": ("layer", [layer.learns for layer in chain.layers]),
                "trace_share": ("layer", traces / total if total > 0 else np.full(chain.depth, np.nan)),
                "mean_slope": ("layer", [float(chain.a(n).mean()) for n in range(1, chain.depth + 1)]),
            },
            counted=["layer"],
        )
        # Which fields evolve without the weights.
        closure = "training needs G and the pullback hierarchy; the fields alone do not close"
        if chain.depth == 1:
            closure = "training closes on v_1: simulate(model, x, y, steps, lr) needs no weights (47)"
        elif chain.depth == 2 and state.has_plain_output:
            closure = "training closes on v_1 and b_1: simulate(model, x, y, steps, lr) needs no weights"
        elif chain.depth == 2:
            closure = "training needs {u_1, u_2, b_1} and the forward transport"
        factor = "" if self.readout_scale == 1 else f"{self.readout_scale**2:g} times "
        raw = f"raw: K is {factor}the sum over layers of Q * S"
        statement = (
            f"Fields of {chain.inputs} inputs in {' -> '.join(map(str, chain.widths))}, read out as "
            f"{state.readout.label}: {closure}."
        )
        more = (
            f"inner products {'divided by the width' if self.normalized else raw}\n"
            "of inputs: overlap(l) conjugate(l) masked_conjugate(l) correlator(l) coactivation(l) kernel "
            "kernel_by_layer\n"
            "of pairs: projector metric pullback transport apply_transport(l, vectors, first, second)\n"
            "of a step: first_order(lr, y) step_report(lr, y); spectra: kernel_spectrum metric_spectrum(l) "
            "weight_spectrum(l) tail(l)"
        )
        names = {"weights": "weights", "learns": "learns"}
        names |= {"trace_share": "share of tr K", "mean_slope": "mean slope"}
        parts: list[Part] = [dataset_table(data, "layer", names), more, self._coactivation_figure]
        return Answer(statement, parts, lambda: data.assign(self._arrays()))

    def _arrays(self) -> dict[str, xr.DataArray]:
        """Outputs and conjugate fields; overlaps, co-activation and kernels too while they are of moderate size."""
        import xarray as xr

        above, everywhere = np.arange(1, self.depth + 1), np.arange(self.depth + 1)
        arrays = {"outputs": self.outputs}
        for number in everywhere.tolist():
            arrays[f"conjugate_{number}"] = self.conjugate(number).rename(unit=f"unit_{number}")
        pairs = self.state.chain.inputs**2
        if pairs * (self.depth + 1) <= _STORED:
            overlaps = xr.concat([self.overlap(number) for number in everywhere.tolist()], "activation_layer")
            meaning = "overlap Q^l of the activations u_l; layer 0 are the inputs (14)"
            arrays["overlap"] = overlaps.assign_coords(activation_layer=everywhere).assign_attrs(
                meaning=meaning
            )
            shared = xr.concat([self.coactivation(number) for number in above.tolist()], "layer")
            arrays["coactivation"] = shared.assign_coords(layer=above).assign_attrs(
                meaning="co-activation overlap A^l"
            )
        if pairs * self.state.readout.outputs**2 * self.depth <= _STORED or "kernel_by_layer" in vars(self):
            arrays["kernel_by_layer"] = self.kernel_by_layer
        return arrays

    def _coactivation_figure(self) -> Figure:
        """A^l of all pairs of inputs, one panel for each layer: the mean over units of the product of slopes."""
        # A last layer without activation has slope 1 everywhere.
        plain = self.depth > 1 and self.state.has_plain_output
        layers = range(1, self.depth + (not plain))
        units = [1 if self.normalized else self.widths[layer] for layer in layers]
        means = [self.coactivation(layer).values / unit for layer, unit in zip(layers, units)]
        top = float(np.abs(means).max()) or 1.0
        signed = bool(np.min(means) < 0)
        figure = Figure("Co-activation of inputs", columns=min(4, len(layers)))
        for layer, matrix in zip(layers, means):
            upright = Axis("input" if layer == 1 else "", whole=True, reverse=True)
            panel = figure.panel(f"layer {layer}", Axis("input", whole=True), upright, equal=True)
            label = "mean product of slopes" if layer == layers[-1] else ""
            panel.heat_map(matrix, label=label, diverging=signed, low=-top if signed else 0.0, high=top)
        return figure

    @property
    def outputs(self) -> xr.DataArray:
        """Y (input, output) (9)."""
        return labelled(self.state.outputs, ("input", "output"), "outputs of the network (9)")

    def activation(self, layer: int) -> xr.DataArray:
        """u_l (input, unit), l = 0..L."""
        number = self._check(layer, 0, self.depth)
        return labelled(self.state.chain.u(number), ("input", "unit"), f"activations u_{layer}")

    def preactivation(self, layer: int) -> xr.DataArray:
        """v_l (input, unit), l = 1..L."""
        number = self._check(layer, 1, self.depth)
        return labelled(self.state.chain.v(number), ("input", "unit"), f"preactivations v_{layer}")

    def slope(self, layer: int) -> xr.DataArray:
        """a_l = sigma'(v_l) (input, unit), l = 1..L: the mask of ReLU units."""
        number = self._check(layer, 1, self.depth)
        return labelled(self.state.chain.a(number), ("input", "unit"), f"slopes a_{layer} = sigma'(v)")

    def overlap(self, layer: int) -> xr.DataArray:
        """Q^l of pairs of inputs, l = 0..L (14)."""
        values = self.state.overlap(self._check(layer, 0, self.depth))
        return labelled(values / self._per_unit(layer), PAIR, f"overlap Q^{layer} (14)")

    def conjugate(self, layer: int) -> xr.DataArray:
        """b_l (input, output, unit), l = 0..L: gradient of Y / readout_scale by u_l (156), (157)."""
        values = self.state.conjugates[self._check(layer, 0, self.depth)]
        return labelled(values, ("input", "output", "unit"), f"conjugate field b_{layer} (157)")

    def masked_conjugate(self, layer: int) -> xr.DataArray:
        """z_l = a_l * b_l, l = 1..L: gradient of Y / readout_scale by v_l (176)."""
        values = self.state.masked(self._check(layer, 1, self.depth))
        return labelled(values, ("input", "output", "unit"), f"masked conjugate z_{layer} (176)")

    def correlator(self, layer: int) -> xr.DataArray:
        """S^l of pairs of inputs and outputs, l = 1..L (160), (173)."""
        values = self.state.correlator(self._check(layer, 1, self.depth))
        return labelled(values / self._per_unit(layer), (*PAIR, *OUTPUTS), f"correlator S^{layer} (173)")

    def coactivation(self, layer: int) -> xr.DataArray:
        """A^l = a_l . a_l of pairs of inputs, l = 1..L: how many units are active for both (ReLU)."""
        slopes = self.state.chain.a(self._check(layer, 1, self.depth))
        values = slopes @ slopes.T / self._per_unit(layer)
        return labelled(values, PAIR, f"co-activation overlap A^{layer}")

    @cached_property
    def kernel_by_layer(self) -> xr.DataArray:
        """Each layer's part of the tangent kernel (layer, input_1, input_2, output_1, output_2) (172)."""
        size = (self.state.chain.inputs * self.state.readout.outputs) ** 2
        self.state.require((self.depth + 1) * size, f"the kernels of {self.depth} layers")
        values = torch.stack([self.state.layer_kernel(number) for number in range(1, self.depth + 1)])
        layers = {"layer": np.arange(1, self.depth + 1)}
        return labelled(values, ("layer", *PAIR, *OUTPUTS), "kernel of each layer (172)", layers)

    @cached_property
    def kernel(self) -> xr.DataArray:
        """The tangent kernel K of the outputs (input_1, input_2, output_1, output_2) (172)."""
        return labelled(self.state.kernel(), (*PAIR, *OUTPUTS), "tangent kernel K (172)")

    @property
    def J(self) -> xr.DataArray:
        """Q^0 * A^1, the kernel of a network with one layer and a fixed readout (52), weighted by the readout."""
        if self.depth != 1:
            raise InputError(
                f"J is the kernel of one layer with a fixed readout, but this chain has {self.depth} layers: use "
                ".kernel."
            )
        return self.kernel.assign_attrs(meaning="kernel J of one hidden layer (52)")

    def projector(self, layer: int, first: Inputs = None, second: Inputs = None) -> xr.DataArray:
        """Diagonal of the co-activation projector D_l, l = 0..L-1, over the units of layer l + 1 (20)."""
        pairs = self._pairs(first, second)
        values = transport.projector(self.state.chain, self._below(layer), *pairs)
        return self._of_pairs(values, ("unit",), f"co-activation projector D_{layer} (20)", first, second)

    def metric(self, layer: int, first: Inputs = None, second: Inputs = None) -> xr.DataArray:
        """Pullback Gram metric G_l = W_{l+1}^T D_l W_{l+1}, l = 0..L-1 (165); all pairs only if they fit."""
        values = transport.metric(self.state.chain, self._below(layer), *self._pairs(first, second))
        return self._of_pairs(
            values, ("unit_1", "unit_2"), f"pullback Gram metric G_{layer} (165)", first, second
        )

    def pullback(self, layer: int, X: Vector, first: Inputs = None, second: Inputs = None) -> xr.DataArray:
        """P_l[X] of a matrix X (n_{l+1}, n_{l+1}), l = 0..L-1 (184)."""
        upper = self.widths[self._below(layer) + 1]
        matrix = self._tensor(X, (upper, upper))
        pairs = self._pairs(first, second)
        transport.require_pairs(self.state.chain, layer, len(pairs[0]) * len(pairs[1]), 1)
        values = transport.pullback(self.state.chain, layer, *pairs, matrix)
        return self._of_pairs(values, ("unit_1", "unit_2"), f"pullback P_{layer}[X] (184)", first, second)

    def transport(self, layer: int, first: Inputs = None, second: Inputs = None) -> xr.DataArray:
        """The transport operator M_l as matrices, l = 0..L-1 (186), (187); see :meth:`apply_transport`."""
        values = transport.dense_transport(self.state, self._below(layer), *self._pairs(first, second))
        return self._of_pairs(
            self._transport_factor * values,
            (*OUTPUTS, "unit_1", "unit_2"),
            f"transport operator M_{layer} (187)",
            first,
            second,
        )

    def apply_transport(
        self, layer: int, vectors: Vector, first: Inputs = None, second: Inputs = None
    ) -> xr.DataArray:
        """M_l acting on one vector (n_l,), or one for each second input, by the recursion: M_l is not formed."""
        pairs = self._pairs(first, second)
        width = self.widths[self._below(layer)]
        given = torch.as_tensor(vectors)
        shape = (width,) if given.ndim == 1 else (len(pairs[1]), width)
        acted = self._tensor(given, shape).expand(len(pairs[1]), width)
        values = transport.apply_transport(self.state, layer, *pairs, acted)
        return self._of_pairs(
            self._transport_factor * values, (*OUTPUTS, "unit"), f"M_{layer} vector (187)", first, second
        )

    def transport_sum(self, layer: int, vectors: Vector, weights: Vector) -> xr.DataArray:
        """Sum over second inputs and outputs of M_l vector weight, as in (185), for all inputs at once.

        ``vectors`` (M, n_l), ``weights`` (M, C) or (M,).
        """
        chain, outputs = self.state.chain, self.state.outputs
        acted = self._tensor(vectors, (chain.inputs, self.widths[self._below(layer)]))
        factors = check_targets(torch.as_tensor(weights), outputs)
        values = self._transport_factor * transport.transport_sum(self.state, layer, acted, factors)
        return labelled(values, ("input", "output", "unit"), f"sum of M_{layer} vector weight (185)")

    def forward_transport(self, start: int, end: int, inputs: Inputs = None) -> xr.DataArray:
        """F_{m->l} of each input (input, unit_end, unit_start), 0 <= m <= l <= L (153), (154)."""
        self._check(start, 0, self.depth)
        self._check(end, start, self.depth)
        values = transport.forward_transport(self.state.chain, start, end, self._selected(inputs))
        found = labelled(values, ("input", "unit_end", "unit_start"), f"transport F_{start}->{end} (153)")
        return found.isel(input=0) if _is_single(inputs) else found

    def first_order(
        self, lr: float, y: Tensor, *, unseen: Tensor | None = None, loss_scale: float | None = None
    ) -> FirstOrderStep:
        """First-order change of all fields by one step of gradient descent on targets y (M, C) or (M,).

        The loss is ``loss_scale`` times the sum of squares, 1/M if None (11). ``unseen`` inputs follow the trained
        ones and are driven by their residuals only (62)-(64).
        """
        residual = self.state.residual(y)
        scale = check_loss_scale(loss_scale, len(residual))
        state = self.state
        if unseen is not None:
            state.chain.check_unchanged()
            state = FieldState(find_chain(state.chain.model, joined(state.chain.x, unseen)), state.readout)
        return FirstOrderStep(state, residual, check_rate(lr), scale)

    def step_report(
        self, lr: float | Sequence[float], y: Tensor, *, loss_scale: float | None = None
    ) -> StepReport:
        """Predicted against real changes of r, u and b for one step at each lr, the mask-flip part separated."""
        scale = check_loss_scale(loss_scale, self.state.chain.inputs)
        return step_report(self.state, lr, y, scale)

    def observe(
        self,
        y: Tensor,
        *,
        loss_scale: float | None = None,
        modes: int = 8,
        inputs: Sequence[int] | None = None,
    ) -> xr.Dataset:
        """Layer contributions, spectra and alignment at this moment: one entry of ``record_fields``."""
        scale = check_loss_scale(loss_scale, self.state.chain.inputs)
        return observe(self.state, y, scale, modes=modes, inputs=inputs)

    @cached_property
    def kernel_spectrum(self) -> xr.DataArray:
        """Eigenvalues (part, mode) of K ("total") and of each layer's kernel ("1".."L"), from the largest down."""
        values = [spectra.kernel_eigenvalues(self.state.kernel())]
        for number in range(1, self.depth + 1):
            values.append(spectra.kernel_eigenvalues(self.state.layer_kernel(number)))
        parts = ["total", *(str(number) for number in range(1, self.depth + 1))]
        return labelled(torch.stack(values), ("part", "mode"), "eigenvalues of K and K_l", {"part": parts})

    def metric_spectrum(self, layer: int, inputs: Inputs = None) -> xr.DataArray:
        """Eigenvalues (input, mode) of G_l of inputs with themselves, l = 0..L-1; those zero by shape left out."""
        chosen = self._selected(inputs)
        values = spectra.metric_eigenvalues(self.state.chain, self._below(layer), chosen)
        found = labelled(values, ("input", "mode"), f"eigenvalues of G_{layer} of an input with itself")
        return found.isel(input=0) if _is_single(inputs) else found

    def weight_spectrum(self, layer: int) -> xr.DataArray:
        """Eigenvalues of W_l^T W_l, l = 1..L; those zero by shape left out."""
        weight = self.state.chain.layer(self._check(layer, 1, self.depth)).weight
        return labelled(
            spectra.weight_eigenvalues(weight), ("mode",), f"eigenvalues of W^T W of layer {layer}"
        )

    def tail(self, layer: int, smallest_tail: int = 10) -> HeavyTail:
        """Heavy-tail exponent of W_l^T W_l, l = 1..L: an experiment, not a theorem."""
        return heavy_tail(self.weight_spectrum(layer).values, smallest_tail)

    @property
    def _transport_factor(self) -> float:
        return self.readout_scale if self.normalized else 1.0

    def _per_unit(self, layer: int) -> int:
        return self.widths[layer] if self.normalized else 1

    def _below(self, layer: int) -> int:
        return self._check(layer, 0, self.depth - 1)

    def _check(self, layer: int, low: int, high: int) -> int:
        if isinstance(layer, bool) or not isinstance(layer, int | np.integer) or not low <= layer <= high:
            raise InputError(f"layer is {layer!r}: give a number from {low} to {high}.")
        return int(layer)

    def _selected(self, inputs: Inputs) -> Tensor:
        count = self.state.chain.inputs
        chosen = range(count) if inputs is None else np.atleast_1d(np.asarray(inputs, dtype=np.intp))
        numbers = [int(number) for number in chosen]
        if not numbers or not all(0 <= number < count for number in numbers):
            raise InputError(f"the inputs {inputs!r} are not all in 0..{count - 1}: give numbers of inputs.")
        return torch.tensor(numbers, device=self.state.chain.x.device)

    def _pairs(self, first: Inputs, second: Inputs) -> tuple[Tensor, Tensor]:
        return self._selected(first), self._selected(second)

    def _of_pairs(
        self, values: Tensor, dims: Sequence[str], meaning: str, first: Inputs, second: Inputs
    ) -> xr.DataArray:
        """Label an array whose first two axes are pairs; a single input loses its axis but keeps its number."""
        numbers = [chosen.cpu().numpy() for chosen in self._pairs(first, second)]
        found = labelled(values, (*PAIR, *dims), meaning, dict(zip(PAIR, numbers)))
        single = [name for name, given in zip(PAIR, (first, second)) if _is_single(given)]
        return found.isel(dict.fromkeys(single, 0))

    def _tensor(self, values: Vector, shape: tuple[int, ...]) -> Tensor:
        given = torch.as_tensor(values).detach().to(self.state.chain.u(0))
        if given.shape != shape:
            raise InputError(f"the array has shape {tuple(given.shape)}: give {shape}.")
        return given


def _is_single(inputs: Inputs) -> bool:
    return isinstance(inputs, int | np.integer)
