"""kill -9 at random moments: no finished record is lost, and the recording goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from foretrain.training.recorder import read

KILLS = 20

# One process imports everything once; its children train, say which records are finished, and are killed.
VICTIMS = '''
import json, os, random, select, signal, sys, time
import torch
import xarray, zarr
from foretrain.training.recorder import Recorder
from foretrain.training import observables

def train(folder, report):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    x, y = torch.randn(10, 3), torch.randn(10, 1)
    mse = torch.nn.functional.mse_loss
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    wide = {"wide": lambda model, batch: torch.full((5000,), float(recorder.steps if recorder else -1))}
    recorder = None
    recorder = Recorder(
        folder, model, {"loss": "loss"} | wide, batch=(x, y), loss=mse, optimizer=optimizer, every=2, budget=None,
        resume=True,
    )
    said = recorder.records
    while True:
        optimizer.zero_grad()
        mse(model(x), y).backward()
        optimizer.step()
        if recorder.records > said:
            said = recorder.records
            os.write(report, f"{recorder.steps}\\n".encode())

def run(folder, seconds):
    """Train for so long after the first words of the child, then kill it; what it said."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ours)
        try:
            train(folder, theirs)
        finally:
            os._exit(1)
    os.close(theirs)
    heard = os.read(ours, 1)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    while part := os.read(ours, 65536):
        heard += part
    os.close(ours)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, status
    return [int(line) for line in heard.decode().split()]

torch.set_num_threads(1)
parameter = torch.zeros(1, requires_grad=True)
parameter.grad = torch.zeros(1)
torch.optim.SGD([parameter], lr=0.01).step()  # imports, once for all children
chance = random.Random(7)
print(json.dumps([run(sys.argv[1], chance.uniform(0, 0.12)) for _ in range(int(sys.argv[2]))]))
'''


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A folder after many kills, each followed by a new process that goes on, and what every process said."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    run = subprocess.run(
        [sys.executable, "-c", VICTIMS, str(folder), str(KILLS)],
        check=False,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stderr
    return folder, json.loads(run.stdout)


@pytest.mark.slow
def test_no_finished_record_is_lost(killed: tuple[Path, list[list[int]]]) -> None:
    folder, said = killed
    assert len(said) == KILLS
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing between the records is damaged either
        records = read(folder)
    finished = {step for steps in said for step in steps}
    assert len(finished) > 2 * KILLS
    assert finished <= set(records["step"].values.tolist())
    assert records["loss"].notnull().all()


@pytest.mark.slow
def test_what_was_recorded_is_whole(killed: tuple[Path, list[list[int]]]) -> None:
    """Every entry of the large array holds the step at which it was made, except in the first record."""
    folder, _ = killed
    records = read(folder)
    later = records["wide"].isel(step=slice(1, None))
    np.testing.assert_array_equal(later, np.broadcast_to(later["step"].values[:, None], later.shape))
    assert (np.diff(records["step"]) > 0).all()


@pytest.mark.slow
def test_every_process_went_on_where_the_records_ended(killed: tuple[Path, list[list[int]]]) -> None:
    _, said = killed
    for before, after in pairwise(said):
        assert after[0] > before[-1]
        # At most the record that the killed process had no time to speak of lies between.
        assert after[0] - before[-1] <= 4
