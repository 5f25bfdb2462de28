"""Trainings as Lightning and Hugging Face describe them, beside what these frameworks do themselves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import foretrain as ft
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.step_task import StepTask
from foretrain.doctor.trials import descend, trial

X = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
Y = X[:, :1].tanh()
TOKENS = torch.randint(0, 20, (32, 8), generator=torch.Generator().manual_seed(0))


class Sentences(Dataset[Any]):
    """Tokens and labels by name, as the datasets of Hugging Face give them."""

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels

    def __len__(self) -> int:
        return len(TOKENS)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        mask = torch.ones(8, dtype=torch.long)
        return {"input_ids": TOKENS[place], "attention_mask": mask, "labels": self.labels[place]}


def losses_by(setup: Any, steps: int) -> list[float]:
    """All data in every step."""
    model = setup.model.train()
    optimizer = setup.recipe.build(model)
    return [descend(optimizer, model, setup.task) for _ in range(steps)]


@pytest.mark.slow
def test_lightning_modules_bring_loss_optimizer_and_schedule() -> None:
    lightning = pytest.importorskip("lightning")

    class Regression(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
            self.seen = list[float]()

        def forward(self, x: Tensor) -> Tensor:
            outputs: Tensor = self.body(x)
            return outputs

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            x, y = batch
            loss = nn.functional.mse_loss(self(x), y)
            self.log("train_loss", loss)
            self.seen.append(float(loss.detach()))
            return loss

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.parameters(), lr=0.02)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)
            return {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
            }

    loader = DataLoader(TensorDataset(X, Y), 64)
    model = Regression()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        setup = make_setup(model, loader, training=Training(clip_norm=0.5))
        measured = trial(setup, 5, 64).losses
        found = ft.doctor(model, loader)
    assert not model.seen
    assert setup.task.loss_name == "training_step"
    assert torch.equal(setup.task.y, Y)
    assert "Adam with rate 0.02, rates on a schedule" in str(found)
    trainer = lightning.Trainer(
        max_steps=6,
        gradient_clip_val=0.5,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(model, loader)
    np.testing.assert_allclose(measured, model.seen, rtol=1e-5)


def bert(labels: int = 3) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=labels,
    )
    return transformers.BertForSequenceClassification(config)


@pytest.mark.slow
def test_a_trainer_brings_everything_and_is_left_as_it_was(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    labels = TOKENS.sum(1) % 3
    model = bert()
    seen = list[float]()

    class Own(transformers.Trainer):  # type: ignore[misc, name-defined]
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
            loss = super().compute_loss(model, inputs, *given, **named)
            seen.append(float(loss.detach()))
            return loss

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        max_steps=4,
        learning_rate=0.01,
        warmup_steps=2,
        max_grad_norm=0.5,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        logging_strategy="no",
    )
    trainer = Own(model=model, args=arguments, train_dataset=Sentences(labels))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        first = float(model(TOKENS, labels=labels).loss)
    setup = make_setup(trainer)
    ours = losses_by(setup, 4)
    found = ft.doctor(trainer, checks=["learning_rate", "inputs"])
    assert trainer.optimizer is None
    assert trainer.lr_scheduler is None
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert isinstance(setup.task, StepTask)
    assert setup.batch_size is None  # two batches of sixteen are all samples
    assert sorted(setup.task.y.tolist()) == sorted(labels.tolist())
    assert setup.recipe.clip_norm == 0.5
    assert setup.recipe.accumulate == 2
    assert setup.recipe.groups[0].rate_at(0) == 0  # the warm-up begins with nothing
    assert "AdamW" in str(found)
    seen.clear()
    trainer.train()
    # Each step takes all samples: in another order the losses are the same.
    theirs = np.array(seen).reshape(4, 2).sum(1)
    assert ours[0] == pytest.approx(first, rel=1e-5)
    # Versions differ in whether they divide by the number of micro-batches before this or after it.
    np.testing.assert_allclose(ours, theirs * first / theirs[0], rtol=1e-4)


@pytest.mark.slow
def test_models_of_hugging_face_have_their_own_loss() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20,
        n_positions=8,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    loader = DataLoader(Sentences(TOKENS), 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # a check that fails warns
        found = ft.doctor(model, loader, optimizer=optimizer)
    setup = found.setup
    assert setup.task.loss_name == "the model's own loss"
    assert torch.equal(setup.task.y, TOKENS)
    assert setup.model(setup.task.x).shape == (32, 20, 8)
    ours, theirs = losses_by(setup, 4), list[float]()
    model.train()
    batch = next(iter(loader))
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        theirs.append(float(loss.detach()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)


@pytest.mark.slow
def test_models_of_hugging_face_take_a_loss_of_ones_own() -> None:
    model = bert()
    labels = TOKENS.sum(1) % 3
    setup = make_setup(
        model, DataLoader(Sentences(labels), 32), training=Training(nn.CrossEntropyLoss(), optimizer=0.1)
    )
    assert not isinstance(setup.task, StepTask)
    expected = model.eval()(TOKENS, labels=labels).loss
    assert setup.task.value(setup.model.eval()) == pytest.approx(float(expected.detach()), rel=1e-5)
