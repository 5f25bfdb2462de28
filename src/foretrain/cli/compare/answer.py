"""What answers about comparisons share: all of them judged together, their facts, and their data in one dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from foretrain.cli.frame import command_answer
from foretrain.support.answers import Answer, Table

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from foretrain.compare.comparison import Comparison


class Kind(NamedTuple):
    """Who is compared with whom, in words, and how one comparison is told."""

    theory: str
    networks: str
    paragraphs: Callable[[Any], list[str | Table]]
    document: Callable[[Any], dict[str, Any]]
    figure: Callable[[Sequence[xarray.Dataset]], Figure]


class Verdict(NamedTuple):
    """Whether theory agrees with all networks, why in words, and the numbers behind it."""

    agrees: bool
    found: str
    numbers: dict[str, Any]

    def sentence(self, theory: str, networks: str) -> str:
        """The verdict on what was compared with what."""
        word = "agrees" if self.agrees else "does NOT agree"
        return f"{theory} {word} with {networks}: {self.found}."


def answer(found: Sequence[Comparison], kind: Kind, seed: int) -> Answer:
    """One after the other, then all of them together."""
    verdict = judged(found)
    text = [part for each in found for part in kind.paragraphs(each)]
    if len(found) > 1:
        text.append(_overview(found))
    datasets = [each.to_dataset() for each in found]
    documents = [facts(each) | kind.document(each) for each in found]
    return command_answer(
        {**verdict.numbers, "seed": seed, "comparisons": documents},
        [*text, verdict.sentence(kind.theory, kind.networks)],
        data=joined(datasets),
        figure=partial(kind.figure, datasets),
        holds=verdict.agrees,
    )


def judged(found: Sequence[Comparison]) -> Verdict:
    """All comparisons together."""
    from foretrain.compare.judging.agreement import judge

    together = judge([(each.z[each.fluctuates], each.independent_scores) for each in found])
    exact = all(each.exact_agrees for each in found)
    agrees = together.agrees and exact
    numbers = {
        "agrees": agrees,
        "rms_z": together.rms,
        "rms_bound": together.rms_bound,
        "largest_z": together.largest,
        "bound": together.bound,
        "entries": together.entries,
        "independent": together.independent,
    }
    return Verdict(agrees, together.told(exact_agrees=exact), numbers)


def facts(found: Comparison) -> dict[str, Any]:
    """What a comparison of any kind says to machines."""
    return {
        "activation": found.mlp.activation.label,
        "C_b": list(found.mlp.C_b),
        "C_W": list(found.mlp.C_W),
        "gamma": list(found.mlp.gamma),
        "depth": found.mlp.depth,
        "method": found.ladder.method,
        "widths": [network.hidden_widths[0] for network in found.ladder.networks],
        "draws": list(found.ladder.draws),
        "rms_z": found.judgement.rms,
        "largest_z": found.judgement.largest,
        "verdict": found.verdict,
        "entries": found.rows(),
    }


def _overview(found: Sequence[Comparison]) -> Table:
    columns = (
        "activation",
        "C_b of layer 2",
        "C_W of layer 2",
        "entries",
        "independent",
        "rms z",
        "largest |z|",
    )
    rows = [
        (
            each.mlp.activation.label,
            each.mlp.C_b[1],
            each.mlp.C_W[1],
            each.judgement.entries,
            each.judgement.independent,
            round(each.judgement.rms, 2),
            round(each.judgement.largest, 2),
        )
        for each in found
    ]
    return Table(columns, rows)


def joined(datasets: Sequence[xarray.Dataset]) -> xarray.Dataset:
    """One dataset; several activations along a dimension of that name, attributes as a column each."""
    import xarray

    if len(datasets) == 1:
        return datasets[0]
    names = [data.attrs["activation"] for data in datasets]
    whole = xarray.concat(
        [data.drop_attrs() for data in datasets], "activation", join="outer", combine_attrs="drop"
    )
    verdicts = [data.attrs["verdict"] for data in datasets]
    return whole.assign_coords(activation=names, verdict=("activation", verdicts))
