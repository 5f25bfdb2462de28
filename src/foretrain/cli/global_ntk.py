"""``foretrain global``: the tangent kernel of everything that a model computes, in space and time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from foretrain.cli.frame import Command, Seed
from foretrain.cli.models import as_inputs, check_takes, model_from, takes_time_first
from foretrain.cli.options import Model, names_in
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk import GlobalNTK


def global_ntk(
    model: Model,
    data: Annotated[
        Path,
        typer.Argument(
            help="data.npz with x (samples, steps, features), and y for the alignment, perhaps with a mask of y."
        ),
    ],
    states: Annotated[
        str | None,
        "hidden,cell of a recurrent layer, paths of modules such as layers.0,layers.1, or output.1, the second thing "
        "that a model with a loop of its own returns [default: what the recurrent layer, or the model, returns].",
    ] = None,
    readout: Annotated[
        str | None, "Path of the linear layer that reads the states [default: the one that does]."
    ] = None,
    components: Annotated[
        str, "Whose modes: trials (the mean over them, and the deviations from it) or target (the whole)."
    ] = "trials",
    samples: Annotated[
        int, typer.Option("--samples", min=1, help="How many samples of x, drawn at random if it has more.")
    ] = 16,
    parameters: Annotated[
        str | None,
        'Patterns of those that count, such as "cell.*" [default: all].',
    ] = None,
    modes: Annotated[int, typer.Option("--modes", min=1, help="How many leading modes.")] = 5,
    accuracy: Annotated[float, "Relative standard error of traces and ranks."] = 0.02,
    seed: Seed = 0,
) -> Answer:
    """Show what gradient descent can change in a model's states, in space and time.

    The global-state NTK says how one step of gradient descent changes all states of a batch at all times: in how
    many directions (effective ranks, in all, in time and in space), in which ones (modes), by which weights, and
    how close it is to the Gram matrix of what the weights are applied to (the core). With targets y: which of
    their modes can be learned from here. A linear layer that reads the states is found and used for it; y is
    (samples, steps, outputs), or (samples, outputs) for the last step; a mask with its first axes weighs its places.
    """
    if not 0 < accuracy < 1:
        raise InputError(
            f"--accuracy is {accuracy:g}, but it is a relative error between 0 and 1, such as 0.02."
        )
    from foretrain.empirical.global_ntk import global_ntk as kernel_of
    from foretrain.empirical.global_ntk.readout import as_readout, find_readout
    from foretrain.empirical.global_ntk.summary import global_summary, members_of
    from foretrain.support.loading import load_samples

    found = load_samples(data)
    count = len(found.x)
    chosen = np.arange(count)
    if count > samples:
        chosen = np.sort(np.random.default_rng(seed).choice(count, samples, replace=False))
    network = model_from(model, seed)
    inputs = as_inputs(found.x[chosen], network)
    if takes_time_first(network, inputs):
        inputs = inputs.transpose(0, 1)
    check_takes(network, inputs)
    wanted = None if states is None else [_place(name) for name in names_in("--states", states)]
    counted = None if parameters is None else names_in("--parameters", parameters)
    kernel = kernel_of(network, inputs, wanted, parameters=counted)
    _check_batch(kernel, len(chosen))
    y, mask = (
        None if each is None else each[chosen] if len(each) == count else each
        for each in (found.y, found.mask)
    )
    members = members_of(kernel)
    readouts = {name: find_readout(network, inputs, part) for name, part in members.items()}
    if readout is not None:
        readouts = {next(iter(members)): as_readout(readout, network, y is not None and y.ndim == 2)}
    summary = global_summary(
        kernel,
        y,
        {name: one for name, one in readouts.items() if one is not None},
        modes=modes,
        accuracy=accuracy,
        seed=seed,
        title=f"Global-state NTK of {model}",
        components=components,
        mask=mask,
    )
    used = (
        f"all {count} samples" if len(chosen) == count else f"{len(chosen)} of {count} samples (seed {seed})"
    )
    answer = summary.answer()
    record = {**answer.document(), "samples": {"count": count, "used": chosen}, "seed": seed}
    labelled = summary.to_dataset().assign_attrs(samples=chosen.tolist())
    return replace(answer, parts=[f"Computed on {used}.", *answer.parts], data=labelled, record=record)


def _place(name: str) -> str | tuple[str, int]:
    """A path of a module, or output.1 and so on: an entry of what the model returns."""
    entry = name.removeprefix("output.")
    return ("", int(entry)) if entry != name and entry.isdigit() else name


def _check_batch(kernel: GlobalNTK, count: int) -> None:
    from foretrain.operators import SumSpace

    space = kernel.domain
    for part in [space[name] for name in space.names] if isinstance(space, SumSpace) else [space]:
        axes = part.plain("the command")
        if "batch" in axes.names and axes.shape[axes.names.index("batch")] != count:
            raise InputError(
                f"the states are {axes.describe()}, but x has {count} samples: x is (samples, steps, features), so "
                "let the model take samples first, with `batch_first=True`."
            )


COMMAND = Command(
    global_ntk,
    examples=(
        "foretrain global model.py:make data.npz --plot states.png",
        "foretrain global model.py:make data.npz --states hidden,cell --samples 8",
        "foretrain global model.py:loop data.npz --states output.1 --readout head",
        'foretrain global model.py:make data.npz --parameters "cell.weight_ih*" --accuracy 0.01 --save answer',
    ),
)
