"""Logs as libraries write them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from foretrain.doctor.training_log.columns import from_source
from foretrain.support.errors import FileError, InputError

LOSSES = 2.0 * 0.9 ** np.arange(12)


def test_the_trainer_of_hugging_face(tmp_path: Path) -> None:
    history = [
        {"epoch": i / 4, "grad_norm": 1.5, "learning_rate": 1e-3, "loss": x, "step": 10 * i + 10}
        for i, x in enumerate(LOSSES)
    ]
    history[4:4] = [{"epoch": 1.0, "eval_loss": 1.7, "eval_runtime": 2.0, "step": 40}]
    history.append({"epoch": 3.0, "step": 120, "train_loss": 1.1, "train_runtime": 9.0})
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps({"best_metric": None, "log_history": history}))
    curves = from_source(path)
    np.testing.assert_allclose(curves.losses, LOSSES)
    np.testing.assert_allclose(curves.steps, 10 * np.arange(12) + 10)
    assert curves.rates is not None
    assert curves.gradient_norms is not None
    assert curves.validation_steps is not None
    assert curves.validation_steps.tolist() == [40]


def test_the_csv_of_lightning_has_gaps(tmp_path: Path) -> None:
    rows = ["epoch,lr-Adam,step,train_loss_step,val_loss"]
    for i, x in enumerate(LOSSES):
        rows += [f",0.01,{i},,", f"{i // 4},,{i},{x},"]
        rows += [f"{i // 4},,{i},,{x + 0.1}"] if i % 4 == 3 else []
    path = tmp_path / "metrics.csv"
    path.write_text("\n".join(rows))
    curves = from_source(path)
    np.testing.assert_allclose(curves.losses, LOSSES)
    assert curves.rates is not None
    assert curves.rates.tolist() == [0.01] * 12
    assert curves.validation_losses is not None
    np.testing.assert_allclose(curves.validation_losses, LOSSES[3::4] + 0.1)
    assert curves.epochs is not None
    assert curves.epochs.tolist() == [0] * 4 + [1] * 4 + [2] * 4


def test_lines_of_json_may_end_in_the_middle_and_hold_nan(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    lines = [json.dumps({"train/loss": x, "step": i}) for i, x in enumerate([*LOSSES, math.nan])]
    path.write_text("\n".join([*lines, '{"train/lo']))
    curves = from_source(path)
    assert len(curves.losses) == 13
    assert math.isnan(curves.losses[-1])
    path.write_text("\n".join([lines[0], "{oops", *lines[1:]]))
    with pytest.raises(FileError, match="line 2 of"):
        from_source(path)


def test_tables_and_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"Loss": LOSSES, "Learning Rate": np.full(12, 0.1)}
    path = tmp_path / "log.csv"
    pandas.DataFrame(columns).to_csv(path, sep=";", index=False)
    rows = [{"loss": x, "lr": 0.1} for x in LOSSES]
    for source in (columns, pandas.DataFrame(columns), path, str(path), rows):
        curves = from_source(source)
        np.testing.assert_allclose(curves.losses, LOSSES)
        np.testing.assert_allclose(curves.steps, np.arange(12))
        assert curves.rates is not None


def test_gaps_of_a_table_are_gaps_and_its_last_nan_is_a_divergence() -> None:
    loss, validation = np.full(30, np.nan), np.full(30, np.nan)
    loss[:24:2], validation[1:24:2] = LOSSES, LOSSES
    curves = from_source({"loss": loss, "val_loss": validation})
    np.testing.assert_allclose(curves.losses[:12], LOSSES)
    assert np.isnan(curves.losses[12:]).sum() == 6


def test_steps_that_start_anew_and_steps_that_were_resumed(tmp_path: Path) -> None:
    anew = [{"loss": x, "step": i % 4, "epoch": i // 4} for i, x in enumerate(LOSSES)]
    np.testing.assert_allclose(from_source(anew).losses, LOSSES)
    resumed = [{"loss": 9.0 if i < 8 else x, "step": i} for i, x in enumerate(LOSSES[:10])]
    resumed += [{"loss": x, "step": i} for i, x in enumerate(LOSSES) if i >= 5]
    curves = from_source(resumed)
    np.testing.assert_allclose(curves.losses[5:], LOSSES[5:])
    assert curves.steps.tolist() == list(range(12))


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with pytest.raises(FileError, match="cannot be read"):
        from_source(path)
    path.write_bytes(b"\x80\x04\x95\xff\xfe")  # how a pickle begins
    with pytest.raises(FileError, match="is no text"):
        from_source(path)
    path.write_text("step,accuracy\n1,0.5\n")
    with pytest.raises(InputError, match=r"no column of losses \(step, accuracy\)"):
        from_source(path)
    path.write_text("[1, 2, 3]")
    with pytest.raises(FileError, match="a list of other things than records"):
        from_source(path)
