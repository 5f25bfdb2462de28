"""What was examined: the network, its data and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.numbers import number
from foretrain.report.page.patient import Patient


def facts(patient: Patient) -> Markup:
    """The network, its data and its optimizer, in a few words each."""
    setup = patient.diagnosis.setup
    trained = sum(p.numel() for p in setup.model.parameters() if p.requires_grad)
    samples, *shape = setup.task.x.shape
    told = {
        "Network": type(setup.model).__name__,
        "Trained parameters": f"{trained:,}",
        "Samples": f"{samples:,}" + (f" ({' × '.join(map(str, shape))} each)" if shape else ""),
        "Loss": setup.task.loss_name,
        "Optimizer": str(setup.recipe) + (" (chosen by the doctor)" if setup.recipe.chosen else ""),
        "Batch": "all samples" if setup.batch_size is None else number(setup.batch_size),
    }
    return tiles(told)


def tiles(told: Mapping[str, str]) -> Markup:
    """A few facts, each with its name, in rows of equal length."""
    cells = [element("div", element("dt", k), element("dd", text)) for k, text in told.items()]
    columns = next((number for number in (3, 4) if len(told) % number == 0), 3)
    return element("dl", cells, class_="facts", style=f"--columns:{columns}")
