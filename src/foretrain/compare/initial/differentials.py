"""P, Q, R, S, T, U of ensembles: differentials of the NTK of many random torch networks, averaged batch by batch.

Layer l of a walk is seen as the output of the networks up to l. Its neurons are independent given the layer before,
so that any rows drawn from their law will do: ``PROBES`` of them, fresh ones, whatever the width of the layer. In P
and Q one neuron i appears twice, in z_i and linearly in dH; the average over its own weights is exact: a row
C_W s_3 in its place gives n E[dH z_i;3] (11.34). What R, S, T, U are means of is averaged over pairs of rows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.build import torch_activation
from foretrain.compare.ensembles import Ensemble, TorchLayer
from foretrain.compare.judging.ladder import BatchValues, Entry
from foretrain.empirical.differentials.layered import LayeredDifferentials, Rates, Stack, with_derivatives
from foretrain.support.errors import NotSupportedError
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP, FloatArray


def differential_batch_values(ensemble: Ensemble, entries: list[Entry]) -> BatchValues:
    """The mean over the networks of each batch, of every entry."""
    names = frozenset(entry.observable for entry in entries)
    kept = 8 * ensemble.batches * (ensemble.mlp.depth - 1) * len(names) * len(ensemble.X) ** 4
    require_memory(kept, f"the differentials of {ensemble.batches} batches", "use fewer draws or inputs")

    def one_batch(number: int) -> list[float]:
        source = ensemble.probe_source(number)
        with torch.no_grad():
            sums = [
                list(tensors_of_networks(ensemble.mlp, ensemble.X, walk, source, names))
                for walk in ensemble.walks(number)
            ]
        means = [
            {name: sum(part[name].numpy() for part in parts) / ensemble.draws_per_batch for name in names}
            for parts in zip(*sums)  # by layer from the second on
        ]
        return [means[entry.layer - 2][entry.observable][entry.inputs] for entry in entries]

    return BatchValues(np.array(ensemble.each_batch(one_batch)))


PROBES = 3
_COPIES = 6  # of the largest changes of fields, held at once


def bytes_per_network(mlp: MLP, inputs: int) -> int:
    """What :func:`tensors_of_networks` holds for one network."""
    directions = PROBES * inputs
    fields = (PROBES + inputs) * inputs * directions * sum(mlp.hidden_widths)
    return 8 * _COPIES * (fields + directions**4)


def tensors_of_networks(
    mlp: MLP, X: FloatArray, walk: Iterator[TorchLayer], source: torch.Generator, wanted: frozenset[str]
) -> Iterator[dict[str, Tensor]]:
    """For layers 2..L the sums over the networks of what P, Q, R, S, T, U are means of, by name: (inputs,) * 4."""
    function = torch_activation(mlp.activation)
    signals = [torch.from_numpy(X).expand(next(walk).count, -1, -1)]
    derivatives: list[tuple[Tensor, Tensor, Tensor]] = []
    weights: list[Tensor] = []
    for state in walk:
        if state.previous is None or state.layer.gamma:
            raise NotSupportedError("differentials of the NTK are carried through plain layers only.")
        signal, *slopes = with_derivatives(function, state.previous.mT.contiguous())
        signals.append(signal)
        derivatives.append((slopes[0], slopes[1], slopes[2]))
        # Rows of W^(l) for the probes, and C_W s_3 for every input 3: (networks, PROBES + inputs, n).
        networks, _, width = signal.shape
        normals = torch.randn((networks, PROBES, width), dtype=torch.float64, generator=source)
        deviation = (state.layer.C_W / width) ** 0.5
        rows = torch.cat([normals * deviation, state.layer.C_W * signal], dim=1)
        rates = [
            Rates(layer.lambda_W / fan_in, layer.lambda_b)
            for layer, fan_in in zip(mlp.layers[: state.layer.number], mlp.widths)
        ]
        stack = Stack(tuple(signals), tuple(derivatives), (*weights, rows), rates, directions=PROBES)
        yield _sums(LayeredDifferentials(stack), signal.shape[-1], wanted)
        if state.layer.number < mlp.depth:
            if state.parameters is None:
                raise NotSupportedError("differentials of the NTK are carried by weights: draw them.")
            drawn, _, scale = state.parameters
            weights.append(drawn * scale)


def _sums(kernels: LayeredDifferentials, fan_in: int, wanted: frozenset[str]) -> dict[str, Tensor]:
    inputs = kernels.stack.samples
    found: dict[str, Tensor] = {}
    if wanted & {"P", "Q"}:
        outputs = PROBES + inputs
        first = kernels.first().sum(dim=0).view(outputs, inputs, outputs, inputs, PROBES, inputs)
        found["P"] = torch.einsum("vajbjc->abcv", first[PROBES:, :, :PROBES]) / PROBES
        found["Q"] = torch.einsum("iavcib->abcv", first[:PROBES, :, PROBES:]) / PROBES
    if "R" in wanted:
        found["R"] = _over_pairs(kernels.third(), inputs, fan_in, "iaibjcjd->abcd")
    if wanted & {"S", "T", "U"}:
        second = kernels.second()
        found["S"] = _over_pairs(second, inputs, fan_in, "iaibjcjd->abcd")
        found["T"] = _over_pairs(second, inputs, fan_in, "iajbicjd->acdb")
        found["U"] = _over_pairs(second, inputs, fan_in, "iajbjcid->adbc")
    return {name: tensor for name, tensor in found.items() if name in wanted}


def _over_pairs(tensor: Tensor, inputs: int, fan_in: int, pattern: str) -> Tensor:
    """n times the mean over pairs i ≠ j of probes with this pattern of legs."""
    legs = tensor.sum(dim=0).view((PROBES, inputs) * 4)
    equal = torch.einsum(pattern.replace("j", "i"), legs)
    return (torch.einsum(pattern, legs) - equal) * (fan_in / (PROBES * (PROBES - 1)))
