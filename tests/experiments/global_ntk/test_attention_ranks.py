"""Ranks of attention blocks: against dense Jacobians on tiny blocks, and the three experiments at toy size."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from foretrain.experiments.global_ntk import attention_blocks as measuring
from foretrain.experiments.global_ntk import attention_ranks as experiment
from foretrain.experiments.global_ntk import attention_rows as rows_module
from foretrain.experiments.global_ntk.attention_blocks import Cell, Course, trained
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row
from foretrain.support.seeds import spawn
from foretrain.training.tasks import AttentionBlock, GaussianSequences, GlobalState

TINY = Cell(2, n_x=2, attention=4, heads=2, mlp=3, steps=3)


def dense(cell: Cell, seed: np.random.SeedSequence, names: tuple[str, ...] | None) -> torch.Tensor:
    """NTK_S as (places, units, places, units) from the Jacobian of the block that the experiment draws."""
    weights, inputs, _ = spawn(seed, 3)
    block = AttentionBlock(
        cell.n_in, attention=cell.attention, heads=cell.heads, hidden=(cell.mlp,) * 3, seed=weights
    ).double()
    x = GaussianSequences(cell.n_in, cell.steps).inputs(cell.n_x, inputs).double()
    module = GlobalState(block, names)
    jacobians = torch.func.jacrev(lambda p: torch.func.functional_call(module, p, (x,)).flatten(0, 1))(
        dict(module.named_parameters())
    )
    J = torch.cat([part.detach().flatten(2) for part in jacobians.values()], 2)
    return torch.einsum("pua,qva->puqv", J, J)


def ratio(matrix: torch.Tensor) -> float:
    return float(matrix.diagonal().sum() ** 2 / matrix.square().sum())


def test_every_rank_is_that_of_dense_jacobians() -> None:
    quantities = ["temporal", "spatial", "total", "pairs", "mlp", "sites"]
    found = measuring.measured([TINY], quantities, 1, 4, Parts())[TINY]
    own = spawn(4, 1)[0]
    whole, mlp = dense(TINY, own, None), dense(TINY, own, measuring._MLP)
    size = whole.shape[0] * whole.shape[1]
    temporal = torch.einsum("puqu->pq", whole)
    expected = {
        "temporal": ratio(temporal),
        "spatial": ratio(torch.einsum("pupv->uv", whole)),
        "total": ratio(whole.reshape(size, size)),
        "temporal_pairs": ratio(torch.einsum("puqv->pq", whole)),
        "spatial_pairs": ratio(torch.einsum("puqv->uv", whole)),
        "temporal_mlp": ratio(torch.einsum("puqu->pq", mlp)),
        "spatial_mlp": ratio(torch.einsum("pupv->uv", mlp)),
    }
    assert {name: found[name][0] for name in expected} == pytest.approx(expected, rel=1e-4)
    shares = torch.linalg.eigvalsh(temporal).flip(0).cumsum(0) / temporal.trace()
    modes = int(found["modes"][0])
    assert float(shares[modes - 1]) >= 0.95
    assert modes == 1 or float(shares[modes - 2]) < 0.95


def test_sites_keep_both_bounds_and_reach_the_sharper_one() -> None:
    cell = Cell(3, n_x=4, attention=8, heads=2, mlp=5, steps=10)
    found = measuring.measured([cell], ["sites"], 2, 0, Parts())[cell]
    assert cell.site_bound == 3 * 3 + 8 + 3 * 5
    assert cell.sharper_bound == 3 + 6 + 3 * 5
    np.testing.assert_array_equal(found["site_rank"], cell.sharper_bound)


def test_widths_of_inputs_count_features() -> None:
    assert Cell(7).width_of_input == 7
    assert Cell(1, octaves=4).width_of_input == 8
    assert Cell(1, waves=5).width_of_input == 10
    seed = np.random.SeedSequence(0)
    assert Cell(1).features(seed) is None
    assert Cell(1, waves=5, scale=2.0).features(seed).count == 10


def test_trends_of_known_laws() -> None:
    places = [1, 2, 4, 8]
    law = np.array(places)[:, None] ** np.array([0.5, 0.7])
    slope = measuring.log_slope(places, law)
    assert slope == pytest.approx((0.6, 0.1))
    assert measuring.rank_correlation(places, law) == pytest.approx(1)
    assert measuring.rank_correlation(places, 1 / law) == pytest.approx(-1)
    assert measuring.spread(law).mean == pytest.approx(0.6 * np.log(8))


def test_a_claim_that_holds_from_some_size_on_is_left_open_below_it() -> None:
    rows = [Row("a", "hardly any", 0.3, 0.0, verdict) for verdict in (False, True, True)]
    told = list(rows_module._where_it_appears(rows, [1, 2, 4]))
    assert [row.agrees for row in told] == [None, True, True]
    assert "from n_in = 2 on" in told[0].note
    rows[2] = replace(rows[2], agrees=False)
    assert [row.agrees for row in rows_module._where_it_appears(rows, [1, 2, 4])] == [False, True, False]


def test_training_is_gradient_descent_and_starts_at_the_mean_square() -> None:
    cells = {
        "plain": Cell(1, attention=4, mlp=3, steps=5),
        "features": Cell(1, attention=4, mlp=3, octaves=2),
    }
    data = trained(cells, Course(steps=3, draws=2), 0, Parts())
    assert dict(data.loss.sizes) == {"kind": 2, "draw": 2, "step": 4}
    assert np.all(np.isfinite(data.fresh_loss))
    np.testing.assert_allclose(data.loss.isel(step=0), 1, atol=0.2)  # outputs are small at the start


TOY = experiment.Plan((1, 10, 100), (1, 8), (2, 4), (2, 4), (1, 8), (0.3, 3.0), Course(3, 2), 2, (1, 2))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few units and sequences of a few steps."""
    small = partial(Cell, mlp=1, steps=2)
    monkeypatch.setattr(
        experiment, "Cell", lambda *args, **options: small(*args, **{"attention": 2, **options})
    )
    monkeypatch.setattr(experiment, "_KINDS", {"plain": small(1), "8 octaves": small(1, octaves=8)})


@pytest.mark.slow
@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("name", ["input_dimension", "width_and_heads", "fourier_features"])
def test_toy_runs_tell_draw_and_go_on_from_parts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = getattr(experiment, name)
    result: Result = run(TOY, 0, Parts(tmp_path, {"experiment": name}))
    for words in ("tr(A)^2 / tr(A^2)", "partial trace"):
        assert words in result.table[0].note  # the first row says what the names mean
    assert result.verdict[0].isupper()
    assert result.figure is not None
    result.plot()
    monkeypatch.setattr(measuring, "_QUANTITIES", {})  # nothing can be measured again
    again: Result = run(TOY, 0, Parts(tmp_path, {"experiment": name}))
    assert again.data.equals(result.data)
    assert again.table == result.table


@pytest.mark.statistical
def test_the_rank_in_time_follows_the_input_at_the_size_of_the_source() -> None:
    cells = [Cell(1), Cell(10), Cell(1, octaves=8)]
    found = measuring.measured(cells, ["temporal"], 2, 0, Parts())
    plain, ten, lifted = (measuring.sampled(found[cell]["temporal"]) for cell in cells)
    assert 1 <= plain.mean < 1.6
    # Gaussian X of 500 rows has participation ratio 500 n / (500 + n + 1): 9.8 and near 16 for these
    assert ten.mean == pytest.approx(9.8, rel=0.1)
    assert lifted.mean == pytest.approx(15.5, rel=0.1)
