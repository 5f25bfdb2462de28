"""Small networks are examined by one thread, large ones by all, and nobody's setting is changed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.setup import Work, count_work, suited_threads
from foretrain.support import threads as free_threads


@pytest.fixture
def _two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(free_threads, "free_cores", lambda: 2)  # whatever else the machine is doing
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("model", "shape", "work"),
    [
        (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), (5,), Work(35, 35 + 21, 7 + 7 + 3)),
        (
            nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Flatten()),
            (2, 4, 4),
            Work(3 * 16 * 18, 3 * 16 * 18, 2 * 3 * 16),
        ),
        # The largest call is one step in time.
        (nn.LSTM(4, 6, batch_first=True), (9, 4), Work(24 * 6, 9 * 24 * (4 + 6), 9 * 6)),
        (nn.ReLU(), (5,), Work(0, 0, 5)),
    ],
)
def test_multiplications_and_results_of_the_layers(
    model: nn.Module, shape: tuple[int, ...], work: Work
) -> None:
    assert count_work(model, torch.randn(1, *shape)) == work


@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize(("width", "threads"), [(16, 1), (2000, 2)])
def test_threads_by_the_size_of_layers(width: int, threads: int) -> None:
    model = nn.Sequential(nn.Linear(2, width), nn.Linear(width, width), nn.Linear(width, 1)).train()
    setup = make_setup(model, torch.randn(64, 2), torch.randn(64, 1), Training(optimizer=0.1))
    seen = list[int]()

    def interrupted() -> None:
        with suited_threads(setup):
            seen.append(torch.get_num_threads())
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert seen == [threads]
    assert torch.get_num_threads() == 2
    assert setup.model.training
