"""What answers about comparisons share: all of them judged together, and their data in one dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.comparison import Comparison


class Verdict(NamedTuple):
    """Whether theory agrees with all networks, why in words, and the numbers behind it."""

    agrees: bool
    found: str
    numbers: dict[str, Any]

    def sentence(self, theory: str, networks: str) -> str:
        """The verdict on what was compared with what."""
        word = "agrees" if self.agrees else "does NOT agree"
        return f"{theory} {word} with {networks}: {self.found}."


def judged(found: Sequence[Comparison]) -> Verdict:
    """All comparisons together."""
    from foretrain.compare.agreement import judge

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
