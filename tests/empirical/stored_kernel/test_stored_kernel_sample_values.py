"""A store is refused for a model that computes something else, however alike it looks, and for no other reason."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from stored_models import inputs, kinds, lose, network, stored
from torch import Tensor, nn

from foretrain.empirical.stored_kernel.identity import SampleValues, sample_values
from foretrain.empirical.stored_kernel.layout import Layout
from foretrain.empirical.tangent_kernel.kernel import prepare
from foretrain.support.errors import FileError

REFUSED = "other outputs or gradients than the one the store was made with"


class Scaled(nn.Module):
    def __init__(self, factor: Any) -> None:
        super().__init__()
        self.inner, self.factor = network(), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.factor


def closure(act: Callable[[Tensor], Tensor]) -> nn.Module:
    class Acting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, x: Tensor) -> Tensor:
            return act(self.inner(x))

    return Acting()


def hooked(factor: float) -> nn.Module:
    model = network()
    model[0].register_forward_hook(lambda module, given, found: found * factor)
    return model


def with_forward(factor: float) -> nn.Module:
    model = Scaled(1.0)
    model.forward = lambda x: model.inner(x) * factor  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Scaled(1.0), Scaled(3.0)),
        (Scaled(torch.ones(3)), Scaled(torch.tensor([1.0, 1.0, 2.0]))),
        (closure(torch.tanh), closure(torch.sin)),
        (closure(lambda z: z * 1.0), closure(lambda z: z * 1.000001)),
        (hooked(1.0), hooked(2.0)),
        (with_forward(1.0), with_forward(7.0)),
    ],
)
def test_another_function_of_the_same_parameters(first: nn.Module, second: nn.Module, tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, first, inputs(12), side=5, workers=1)
    with pytest.raises(FileError, match=REFUSED):
        stored(path, second, inputs(12), workers=1)
    lose(path, "0-1")
    with pytest.raises(FileError, match=REFUSED):
        stored(path, second, inputs(12), workers=1)
    stored(path, first, inputs(12), workers=1)


def test_functions_of_parameters_and_of_outputs(tmp_path: Path) -> None:
    given = {"w": torch.ones(4, 2, dtype=torch.float64, requires_grad=True)}
    stored(tmp_path / "f.zarr", lambda p, x: (x @ p["w"]).tanh(), inputs(9), parameters=given, workers=1)
    with pytest.raises(FileError, match=REFUSED):
        stored(tmp_path / "f.zarr", lambda p, x: (x @ p["w"]).sin(), inputs(9), parameters=given)
    stored(tmp_path / "o.zarr", network(), inputs(9), output=lambda found: found, workers=1)
    with pytest.raises(FileError, match=REFUSED):
        stored(tmp_path / "o.zarr", network(), inputs(9), output=lambda found: 2 * found)


def test_the_same_outputs_with_other_gradients(tmp_path: Path) -> None:
    held = closure(lambda z: z.detach() + 0.5 * (z - z.detach()))
    stored(tmp_path / "k.zarr", closure(lambda z: z), inputs(9), workers=1)
    with pytest.raises(FileError, match=REFUSED):
        stored(tmp_path / "k.zarr", held, inputs(9))


class Far(nn.Module):
    """Another factor for samples that are far away."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner, self.factor = network(), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * torch.where(x.norm(dim=1, keepdim=True) > 20, self.factor, 1.0)


def test_both_sides_of_a_kernel_are_looked_at(tmp_path: Path) -> None:
    x, far = inputs(9), 100 * inputs(8, seed=2)
    for name, sides in (("one", (far, x)), ("other", (x, far))):
        stored(tmp_path / name, Far(1.0), *sides, workers=1)
        with pytest.raises(FileError, match=REFUSED):
            stored(tmp_path / name, Far(2.0), *sides)


def seen(model: nn.Module, x: Tensor) -> SampleValues:
    return sample_values(*prepare(model, x))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("kind", ["convolutions", "normed", "words", "recurrent"])
def test_threads_and_single_precision_do_not_matter(kind: str) -> None:
    model, x = kinds()[kind]
    before = torch.get_num_threads()
    found = []
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(seen(model, x))
    torch.set_num_threads(before)
    assert found[0].agrees(found[1])
    assert found[1].agrees(found[0])
    assert found[0].tolerance == 1e-4
    nudged = copy.deepcopy(model)
    with torch.no_grad():
        next(nudged.parameters()).mul_(1.01)
    assert not found[0].agrees(seen(nudged, x))


def test_a_difference_at_any_sample_of_a_small_batch_shows(tmp_path: Path) -> None:
    for sample in range(9):
        x = inputs(9)
        x[sample] *= 100 / x[sample].norm()
        assert not seen(Far(1.0), x).agrees(seen(Far(1.001), x))


def test_outputs_that_cancel_are_measured_by_their_gradients() -> None:
    model = network()
    with torch.no_grad():
        model[2].weight.zero_()
        model[2].bias.zero_()
    found = seen(model, inputs(9))
    assert set(found.outputs) == {0.0}
    noise, more = (tuple(size * (-1) ** k for k in range(24)) for size in (1e-15, 1e-3))
    assert found.agrees(replace(found, outputs=noise))
    assert not found.agrees(replace(found, outputs=more))


def test_numbers_that_are_not_finite_agree_only_with_each_other() -> None:
    one = SampleValues((None, 1.0), (None, 1.0), (1.0, None), 1e-9)
    assert one.agrees(one)
    assert not one.agrees(replace(one, outputs=(0.0, 1.0)))
    assert not one.agrees(replace(one, gradients=(1.0,)))
    assert not one.agrees(replace(one, gradients=(2.0, None)))


def test_a_kernel_of_nothing_agrees_with_itself() -> None:
    none = SampleValues((0.0,), (0.0,), (0.0,), 1e-9)
    assert none.agrees(none)
    assert not none.agrees(replace(none, outputs=(1e-200,)))


def test_it_is_kept_in_the_store(tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", network(), inputs(9), workers=1)
    tiles = json.loads((tmp_path / "k.zarr" / ".zattrs").read_text())["foretrain_tiles"]
    assert Layout.from_json(tiles).sample_values == seen(network(), inputs(9))


SCRIPT = """
import sys, torch
sys.path.insert(0, {folder!r})
from stored_models import inputs, stored
class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 2).double()
    def forward(self, x):
        return torch.{act}(self.inner(x))
if __name__ == "__main__":
    stored(sys.argv[1], Own(), inputs(12), side=5, workers=1)
"""


@pytest.mark.slow
def test_a_script_may_be_imported_but_not_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, path = tmp_path / "own_script.py", tmp_path / "k.zarr"
    monkeypatch.syspath_prepend(tmp_path)

    def run(act: str) -> str:
        script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), act=act))
        done = subprocess.run(
            [sys.executable, str(script), str(path)], capture_output=True, text=True, timeout=120, check=False
        )
        return done.stderr

    assert run("tanh") == ""
    assert REFUSED in run("sin")
    script.write_text(SCRIPT.format(folder=str(Path(__file__).parent), act="tanh"))
    import own_script  # type: ignore[import-not-found]

    stored(path, own_script.Own(), inputs(12), workers=1)
