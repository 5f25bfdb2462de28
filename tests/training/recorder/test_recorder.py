"""The recorder attached to training loops: what it counts, when it records, what it refuses, what it says."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from recorded_runs import MSE, data, network, recorder, sgd, train, weight_sum
from torch import nn

import foretrain as ft
from foretrain.support.errors import FileError, InputError
from foretrain.training.recorder import live_line, read


def test_the_loop_is_recorded_as_it_is(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    first = float(MSE(model(data()[0]), data()[1]).detach())
    with recorder(tmp_path / "run", model, optimizer=optimizer, every=1, metadata={"seed": 5}) as found:
        losses = train(model, optimizer, 7)
    records = read(tmp_path / "run")
    np.testing.assert_array_equal(records["step"], range(8))
    np.testing.assert_allclose(records["loss"], [first, *losses], rtol=1e-6)
    assert (np.diff(records["seconds"]) > 0).all()
    assert (records["cost"] > 0).all()
    assert records.attrs["metadata"] == {"seed": 5}
    assert records.attrs["steps"] == found.steps == 7
    assert found.records == 8
    xr.testing.assert_identical(ft.load(tmp_path / "run"), records)
    train(model, optimizer, 1)  # the hook is gone
    assert found.steps == 7


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"every": 3}, [0, 3, 6, 9, 12, 14]),
        ({"schedule": [2, 5]}, [0, 2, 5, 14]),
        ({"schedule": lambda step: step in (4, 14)}, [0, 4, 14]),
        ({"schedule": "log", "per_decade": 2}, [0, 1, 3, 10, 14]),
        ({}, [0, 1, 2, 3, 4, 5, 6, 8, 10, 13, 14]),
    ],
)
def test_schedules_with_first_and_last_step(
    tmp_path: Path, options: dict[str, Any], expected: list[int]
) -> None:
    model = network()
    optimizer = sgd(model)
    with recorder(tmp_path / "run", model, optimizer=optimizer, **options):
        train(model, optimizer, 14)
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], expected)


def test_accumulation_loader_and_scheduler_do_not_confuse_it(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model, lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data()), batch_size=3, shuffle=True)
    with recorder(
        tmp_path / "run", model, ["loss", "learning_rate"], batch=loader, optimizer=optimizer, every=1
    ) as found:
        for _ in range(3):
            for number, (x, y) in enumerate(loader):
                (MSE(model(x), y) / 2).backward()
                if number % 2:
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=True)
            scheduler.step()
    assert found.steps == 6  # twelve batches, two for each step
    rates = read(tmp_path / "run")["learning_rate"]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.1, 0.05, 0.05, 0.025, 0.025])


def test_a_closure_counts_one_step_whatever_it_evaluates(tmp_path: Path) -> None:
    model, (x, y) = network(), data()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = MSE(model(x), y)
        value.backward()
        return value

    with recorder(tmp_path / "run", model, ["loss", "gradient_norm"], optimizer=optimizer, every=1) as found:
        for _ in range(3):
            optimizer.step(closure)
    assert found.steps == 3
    loss = read(tmp_path / "run")["loss"].values
    assert (np.diff(loss) < 0).all()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_callers_without_gradients(tmp_path: Path, mode: Any) -> None:
    model = network()
    with recorder(tmp_path / "run", model, ["gradient_norm", "ntk_shares"], every=1) as found, mode():
        found.step()
    records = read(tmp_path / "run")
    assert float(records["gradient_norm"][1]) == float(records["gradient_norm"][0]) > 0
    assert records.attrs.get("failures") is None


def test_autocast_of_the_loop_stays_outside(tmp_path: Path) -> None:
    model = network()
    with recorder(tmp_path / "run", model, every=1) as found, torch.autocast("cpu", dtype=torch.bfloat16):
        found.step()
        assert torch.is_autocast_enabled("cpu")
    loss = read(tmp_path / "run")["loss"]
    assert float(loss[0]) == float(loss[1])


def test_a_callback_with_numbers_of_the_caller(tmp_path: Path) -> None:
    model = network()
    found = recorder(tmp_path / "run", model, {"sum": weight_sum}, every=2)
    for number in range(1, 6):
        found.step(train_loss=torch.tensor(number / 2, requires_grad=True), pair=np.array([number, -number]))
    found.close()
    found.close()
    records = read(tmp_path / "run")
    np.testing.assert_array_equal(records["step"], [0, 2, 4, 5])
    np.testing.assert_array_equal(records["train_loss"], [np.nan, 1, 2, 2.5])
    np.testing.assert_array_equal(records["pair"][-1], [5, -5])
    np.testing.assert_allclose(records["sum"], weight_sum(model, None))
    with pytest.raises(InputError, match="closed"):
        found.step()


def test_an_optimizer_that_counts_takes_notes(tmp_path: Path) -> None:
    model = network()
    optimizer = sgd(model)
    with recorder(tmp_path / "a", model, optimizer=optimizer, every=1) as found:
        with pytest.raises(InputError, match="counts the steps already"):
            found.step()
        with pytest.raises(InputError, match="is an observable"):
            found.note(loss=1.0)
        found.note(mine=3.0)
        train(model, optimizer, 2)
    np.testing.assert_array_equal(read(tmp_path / "a")["mine"], [np.nan, 3, np.nan])
    with recorder(
        tmp_path / "b", model, "learning_rate", optimizer=optimizer, count="calls", every=1
    ) as found:
        train(model, optimizer, 2)
        found.step()
    assert found.steps == 1


def test_labels_are_kept_and_unlike_axes_told_apart(tmp_path: Path) -> None:
    def spectrum(model: nn.Module, batch: Any) -> xr.DataArray:
        return xr.DataArray([3.0, 1.0], {"mode": ["slow", "fast"]}, ["mode"], attrs={"unit": "1/s"})

    def other(model: nn.Module, batch: Any) -> xr.Dataset:
        return xr.Dataset({"a": ("mode", [1, 2, 3]), "b": ("place", [1 + 2j, 0])}, {"place": [0.5, 1.5]})

    with recorder(tmp_path / "run", network(), [spectrum, other], every=1) as found:
        found.step()
    records = read(tmp_path / "run")
    assert records["spectrum"].dims == ("step", "spectrum_mode")
    assert float(records["spectrum"].sel(spectrum_mode="fast", step=1)) == 1
    assert records["spectrum"].attrs == {"unit": "1/s", "observable": "spectrum"}
    assert records["other_a"].dims == ("step", "other_mode")
    assert complex(records["other_b"].sel(place=0.5, step=0)) == 1 + 2j
    alone = read(tmp_path / "run", only="other")
    assert set(alone.data_vars) == {"other_a", "other_b"}
    with pytest.raises(InputError, match="did you mean 'other'"):
        read(tmp_path / "run", only="othr")


def test_nan_and_infinity_are_recorded_as_they_are(tmp_path: Path) -> None:
    values = iter([1.0, 1.0, float("nan"), float("inf"), -float("inf")])
    with recorder(tmp_path / "run", network(), {"odd": lambda *_: next(values)}, every=1) as found:
        for _ in range(3):
            found.step()
    records = read(tmp_path / "run")
    np.testing.assert_array_equal(records["odd"], [1, np.nan, np.inf, -np.inf])
    assert records["recorded"].sel(observable="odd").all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"observables": ["los"]}, "did you mean 'loss'"),
        ({"observables": []}, "no observable"),
        ({"observables": {"a/b": weight_sum}}, "cannot name an observable"),
        ({"observables": {"step": weight_sum}}, "their own"),
        ({"loss": None}, "'loss' needs loss="),
        ({"observables": "learning_rate"}, "needs optimizer="),
        ({"every": 0}, "every is 0"),
        ({"every": 1, "schedule": "log"}, "give one of them"),
        ({"every": 1, "per_decade": 3}, "belongs to schedule='log'"),
        ({"schedule": "lg"}, "unknown schedule"),
        ({"schedule": [1.5]}, "whole numbers"),
        ({"schedule": []}, "whole numbers"),
        ({"budget": 0.0}, "budget is 0.0"),
        ({"budget": 1.5}, "budget is 1.5"),
        ({"optimizer": [1]}, "give one torch optimizer"),
        ({"count": "optimizer"}, "needs optimizer="),
        ({"count": "both"}, "'optimizer' or 'calls'"),
        ({"resume_from": -1}, "resume_from is -1"),
        ({"resume": True, "overwrite": True}, "exclude each other"),
        ({"metadata": {"a": object()}}, "metadata at 'a'"),
        ({"model": "net"}, "give an nn.Module"),
        ({"model": nn.LazyLinear(2)}, "has no shape yet"),
    ],
)
def test_wrong_arguments_are_refused_at_once(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    given = {"model": network(), "observables": "loss"} | options
    with pytest.raises(InputError, match=words):
        recorder(tmp_path / "run", given.pop("model"), given.pop("observables"), **given)
    assert not (tmp_path / "run").exists()


def test_a_schedule_that_raises_is_seen_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        recorder(tmp_path / "run", network(), schedule=lambda step: 1 / step > 0)


def test_the_batch_is_kept_or_asked_for(tmp_path: Path) -> None:
    x, y = data()
    model = network()
    with recorder(tmp_path / "kept", model, batch=(x, y), every=1) as found:
        x.zero_()
        found.step()
    loss = read(tmp_path / "kept")["loss"]
    assert float(loss[0]) == float(loss[1])
    with recorder(tmp_path / "asked", model, batch=lambda: (x, y), every=1) as found:
        x.add_(1)
        found.step()
    loss = read(tmp_path / "asked")["loss"]
    assert float(loss[0]) != float(loss[1])


def test_one_live_line_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(live_line, "_PATIENCE", 0.0)
    monkeypatch.setattr(live_line, "_PAUSE", 0.0)
    for screen, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", screen)
        with recorder(tmp_path / str(shown), network(), every=1) as found:
            found.step()
            found.step()
        states = screen.getvalue().split("\r\x1b[K")
        if not shown:
            assert states == [""]
            continue
        assert "\n" not in screen.getvalue()
        assert states[1].startswith("step 1 | loss ")
        assert "| 3 records | overhead" in states[2]
        assert states[-1] == ""  # nothing is left of it


def test_the_summary_teaches(tmp_path: Path) -> None:
    model = network()
    with recorder(tmp_path / "run", model, ["loss", "weight_spectra"], every=1) as found:
        found.step()
    summary = found.summary()
    assert summary.observables["loss"].records == 2
    assert 0 < summary.overhead == found.overhead < 1
    parts = sum(own.seconds for own in summary.observables.values()) + summary.bookkeeping_seconds
    assert parts / summary.seconds == pytest.approx(summary.overhead)
    assert len(found.plot().axes) >= 2
    text = repr(found)
    for expected in (
        "1 steps, 2 records",
        "no limit",
        "share of the time",
        "writing the dataset at the end",
    ):
        assert expected in text


def test_what_is_no_recording(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no recording"):
        read(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="is a file"):
        recorder(tmp_path / "file", network())
    with pytest.raises(FileError, match="holds other files"):
        recorder(tmp_path, network(), overwrite=True)
