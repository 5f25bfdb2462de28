from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from foretrain.support import memory
from foretrain.support.errors import InputError, NotEnoughMemoryError


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_500_000, "2.5 MB"), (999_900, "1 MB"), (3e15, "3 PB")],
)
def test_sizes_are_readable(count: float, text: str) -> None:
    assert memory.human_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2GB", 2 * 10**9),
        ("500 mb", 5 * 10**8),
        ("1.5GiB", 3 * 2**29),
        ("7", 7),
        ("3k", 3000),
        (".5TB", 5 * 10**11),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert memory.parse_bytes(text, origin="it") == size


@pytest.mark.parametrize("text", ["lots", "-2GB", "2 GB of", "2iB", "1e9", "GB"])
def test_a_malformed_limit_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", text)
    with pytest.raises(InputError, match=r"FORETRAIN_MEMORY .*500MB"):
        memory.available_bytes()


def test_the_variable_lowers_the_limit_and_never_raises_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    assert memory.available_bytes() == 10**6
    monkeypatch.setenv("FORETRAIN_MEMORY", "1000TB")
    assert 0 < memory.available_bytes() <= psutil.virtual_memory().total


def test_a_job_that_does_not_fit_is_refused_with_estimate_and_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    memory.require_memory(800_000, "the kernel", "use fewer inputs")
    with pytest.raises(NotEnoughMemoryError) as caught:
        memory.require_memory(800_001, "the kernel", "use fewer inputs")
    assert str(caught.value) == (
        "the kernel needs about 800 kB of memory, but only 800 kB may be used (80% of the 1 MB available): "
        "use fewer inputs."
    )
    memory.require_memory(10**6, "the kernel", "use fewer inputs", share=1.0)


def write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_control_groups_of_version_2_count_with_their_ancestors(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/user/job\n")
    root = tmp_path / "fs"
    write(root / "user" / "job", memory__max="max\n", memory__current="5\n")
    write(
        root / "user",
        memory__max="1000\n",
        memory__current="700\n",
        memory__stat="anon 1\ninactive_file 50\n",
    )
    assert memory._control_group_headrooms(root, membership) == [350]


def test_control_groups_of_version_1(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("5:cpu,cpuacct:/a\n4:memory:/a\n")
    root = tmp_path / "fs"
    names = {"memory__limit_in_bytes": "1000\n", "memory__usage_in_bytes": "1200\n"}
    write(root / "memory" / "a", **names)
    write(root / "memory", memory__limit_in_bytes="5000\n", memory__usage_in_bytes="1\n")
    assert memory._control_group_headrooms(root, membership) == [0, 4999]


def test_without_control_groups_there_is_no_such_limit(tmp_path: Path) -> None:
    assert memory._control_group_headrooms(tmp_path, tmp_path / "absent") == []
