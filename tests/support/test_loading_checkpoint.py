from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from foretrain.support.errors import FileError, InputError
from foretrain.support.loading import load_checkpoint


def model(width: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(2, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
    )


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values()))


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model_state_dict"])
def test_weights_are_put_into_the_model(tmp_path: Path, wrapper: str | None) -> None:
    source, target = model(), model()
    state: Any = source.state_dict()
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "w.pt")
    assert not same(source, target)
    load_checkpoint(target, tmp_path / "w.pt")
    assert same(source, target)


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (model(4), r"0\.bias \(\(4,\) instead of \(3,\)\), .* 4 more"),
        (
            torch.nn.Linear(2, 1),
            r"lacks 0\.bias, 0\.weight, 1\.bias and 6 more .*bias, weight",
        ),
    ],
)
def test_weights_of_another_model_are_refused_as_a_whole(
    tmp_path: Path, other: torch.nn.Module, reason: str
) -> None:
    torch.save(other.state_dict(), tmp_path / "w.pt")
    target = model()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    with pytest.raises(InputError, match=reason):
        load_checkpoint(target, tmp_path / "w.pt")
    assert all(torch.equal(before[name], value) for name, value in target.state_dict().items())


def test_pickles_are_never_run(tmp_path: Path, trap: Any) -> None:
    torch.save({"weight": trap}, tmp_path / "w.pt")
    with pytest.raises(FileError, match="run code"):
        load_checkpoint(model(), tmp_path / "w.pt")
    assert not trap.mark.exists()
    torch.load(tmp_path / "w.pt", weights_only=False)
    assert trap.mark.exists()  # the trap works


def test_a_pickled_model_is_refused(tmp_path: Path) -> None:
    torch.save(model(), tmp_path / "w.pt")
    with pytest.raises(FileError, match="Python objects"):
        load_checkpoint(model(), tmp_path / "w.pt")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 broken archive"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(FileError, match="damaged"):
        load_checkpoint(model(), tmp_path / "w.pt")


@pytest.mark.parametrize("content", [torch.zeros(2), {"epoch": 3}, [1, 2]])
def test_what_holds_no_weights_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(FileError, match="dictionary of tensors"):
        load_checkpoint(model(), tmp_path / "w.pt")


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a file"):
        load_checkpoint(model(), tmp_path / "absent.pt")
