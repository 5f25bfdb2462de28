from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments import Result, Row, get
from foretrain.experiments.effective_theory import deep_linear
from foretrain.experiments.effective_theory.deep_linear import Network
from foretrain.experiments.effective_theory.fluctuations import MetricPlan, _exact
from foretrain.experiments.effective_theory.width_limits import limits_of_batches
from foretrain.experiments.judgements import agreeing, agreement_rows, limit_row, rows_of, sampled
from foretrain.experiments.pictures import add_scores, coloured, draw_guide, draw_limit, draw_means
from foretrain.support.answers import BLUE, PALETTE, Figure
from foretrain.theory.architecture import MLP

TINY: dict[str, Any] = {
    "deep-linear-vertex": deep_linear.Plan((Network(10, 6, 400), Network(20, 11, 300))),
    "deep-linear-scaling": deep_linear.ScalingPlan(0.2, {10: 300, 20: 200}),
    "log-variance": deep_linear.Plan((Network(10, 5, 200), Network(8, 8, 300))),
    "metric-fluctuations": MetricPlan(("tanh", "relu"), (3,), 400),
}
SAMPLED = tuple(TINY)


def tiny_run(name: str, seed: int) -> Result:
    """The experiment with so few draws that only its mechanics can be tested."""
    return get(name).run(seed=seed, plan=TINY[name])


def test_parameter_count_is_the_printed_one() -> None:
    result = get("parameter-count").run()
    assert result.agrees
    assert [row.expected for row in result.table] == [91, 91]
    assert result.data.weights.values.tolist() == [20, 25, 25, 5]
    assert "91" in result.verdict


def test_activation_curves_agree_with_the_source() -> None:
    result = get("activation-curves").run()
    assert result.agrees
    assert len(result.table) == 32
    swish = result.data.value.sel(activation="swish")
    assert float(swish.min()) == pytest.approx(-0.278465, abs=1e-4)
    assert result.data.value.sel(activation="perceptron").sel(z=0.0, method="nearest").item() == 1.0


@pytest.mark.parametrize("name", ["parameter-count", "activation-curves"])
def test_pictures_of_chapter_two_can_be_drawn(name: str) -> None:
    get(name).run().plot()


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_experiments_are_reproducible_and_labelled(name: str) -> None:
    first, again, other = (tiny_run(name, seed) for seed in (3, 3, 4))
    assert first.data.identical(again.data)
    assert first.table == again.table
    assert not first.data.equals(other.data)
    sampled = [row for row in first.table if row.standard_error is not None]
    assert sampled
    assert all(math.isfinite(row.here) and row.standard_error > 0 for row in sampled if row.standard_error)
    assert first.figure is not None
    first.plot()


def test_a_wrong_theory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five per cent on the vertex must turn the verdict."""
    exact = deep_linear.vertex
    monkeypatch.setattr(deep_linear, "vertex", lambda width, layers: 1.05 * exact(width, layers))
    plan = deep_linear.Plan((Network(10, 6, 60_000),))
    assert not get("deep-linear-vertex").run("quick", 0, plan=plan).agrees


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.statistical
def test_quick_scale_agrees(name: str) -> None:
    result = get(name).run("quick", seed=0)
    assert result.agrees, result.verdict


def test_exact_layer_two_of_relu_on_one_input() -> None:
    """Equal inputs: ⟨σ²⟩ = K/2, ⟨σ⁴⟩ = 3K²/2, so V/n_1 = C_W² (5/4) K² / n_1 in every entry."""
    mlp = MLP("relu", depth=2, width=3, n_out=2, C_b=0.2, C_W=1.5)
    values = _exact(mlp, np.full((4, 2), 1.0))
    K = 0.2 + 1.5
    np.testing.assert_allclose(values[:10], 0.2 + 1.5 * K / 2, rtol=1e-8)
    np.testing.assert_allclose(values[10:], 1.5**2 * 1.25 * K**2 / 3, rtol=1e-8)
    assert len(values) == 10 + 55


def test_bound_on_the_largest_score() -> None:
    """One entry: the two-sided 1 % point; many: exceeded in 1 % of repeated runs."""
    assert largest_score_allowed(1) == pytest.approx(2.575829, abs=1e-6)
    runs = np.abs(np.random.default_rng(0).normal(size=(20_000, 50))).max(axis=1)
    share = float((runs > largest_score_allowed(50)).mean())
    assert abs(share - 0.01) < 4 * math.sqrt(0.01 * 0.99 / 20_000)


def test_agreement_rows_judge_spread_and_largest() -> None:
    good = np.array([1.0, -1.0, 1.0, -1.0])
    assert [row.agrees for row in agreement_rows(good)] == [True, True]
    assert [row.agrees for row in agreement_rows(1.4 * good)] == [False, True]
    assert [row.agrees for row in agreement_rows(np.append(np.zeros(30), 5.0))] == [True, False]


def limits() -> xr.Dataset:
    """Two numbers measured at three widths, without a dependence on the width."""
    batches = dict(zip((8, 16, 32), np.random.default_rng(0).normal([2.0, -4.0], size=(3, 40, 2))))
    theory, draws = np.array([2.0, 9.0]), dict.fromkeys(batches, 40)
    return limits_of_batches(draws, 0, lambda width, *_: batches[width], theory, "entry", ["a", "b"])


def test_rows_of_limits_agree_within_their_errors() -> None:
    data = limits()
    good, bad = (limit_row(label, data.sel(entry=label), 4.0) for label in ("a", "b"))
    assert (good.expected, good.agrees, bad.expected, bad.agrees) == (2.0, True, 9.0, False)
    assert good.here == float(data.limit[0])
    assert good.z == pytest.approx(float(data.z[0]))
    disputed = limit_row("b", data.sel(entry="b"), 4.0, note="why", disputed=True)
    assert (disputed.disputed, disputed.note) == (True, "why")
    assert rows_of("tanh", [bad]) == [dataclasses.replace(bad, quantity="tanh: b")]


def test_limits_are_drawn_over_one_over_n_in_their_unit() -> None:
    panel, one = Figure().panel(), limits().sel(entry="b")
    draw_limit(panel, one, "b", BLUE, unit=-2.0, shift=0.1)
    points, end = panel.marks
    assert points.x.tolist() == pytest.approx([1 / 8 + 1 / 80, 1 / 16 + 1 / 80, 1 / 32 + 1 / 80])
    assert points.y.tolist() == pytest.approx((one.measured / -2).values.tolist())
    assert (end.x.tolist(), end.marker) == ([1 / 80], "D")
    assert end.error.tolist() == pytest.approx([float(one.standard_error) / 2])


def test_what_is_sampled_has_the_standard_error_of_its_mean() -> None:
    assert sampled(np.array([1.0, 2.0, 3.0])) == pytest.approx((2.0, 1 / math.sqrt(3)))


def test_rows_without_a_claim_are_not_counted() -> None:
    rows = [Row("x", 1.0, 1.0, agrees=verdict) for verdict in (True, None, False, True)]
    assert agreeing(rows) == "2 of 3"


def test_every_place_along_a_dimension_has_its_colour() -> None:
    found = list(coloured(limits(), "width"))
    assert [(width, color) for width, _, color in found] == list(zip((8, 16, 32), PALETTE))
    assert all(own.equals(limits().sel(width=width)) for width, own, _ in found)


def test_means_are_drawn_with_errors_and_guides_with_their_words() -> None:
    panel, x = Figure().panel(), np.array([2.0, 4.0, 8.0])
    values = xr.DataArray([[1.0, 2.0, 4.0], [3.0, 4.0, 6.0]], dims=("draw", "x"))
    draw_means(panel, x, values, "draw", "o-", "means", BLUE)
    draw_guide(panel, x, 6.0, -1, "1/n", 1, above=True)
    means, guide, words = panel.marks
    assert (means.y.tolist(), means.error.tolist()) == ([2.0, 3.0, 5.0], pytest.approx([1.0, 1.0, 1.0]))
    assert guide.y.tolist() == pytest.approx([6.0, 3.0, 1.5])
    assert (words.x, words.y, words.text) == (4.0, pytest.approx(3.0), "1/n")


def test_scores_are_shown_beside_the_normal_law() -> None:
    figure, scores = Figure(), np.append(np.random.default_rng(0).normal(size=2000), 1e6)
    add_scores(figure, scores, "scores")
    bars, law = figure.panels[0].marks
    step = bars.places[1] - bars.places[0]
    assert float(bars.values.sum() * step) == pytest.approx(1)
    assert bars.values[-1] > 0  # what lies beyond counts at the end
    np.testing.assert_allclose(bars.values, np.interp(bars.places, law.x, law.y), atol=0.06)
