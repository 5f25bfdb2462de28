"""Trained networks of finite width beside theory: brute force, exact cases, the reference's numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.trained import Training, draw_ensemble, train_ensemble
from foretrain.compare.trained.ensemble import two_step_ensemble
from foretrain.compare.trained.finite import FiniteComparison, compare_trained_finite
from foretrain.compare.trained.finite_goals import FiniteGoal, finite_goal, posterior_goal
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import spawn
from foretrain.theory.prediction.bayes import importance_posterior

TRAIN, TEST = np.array([(-0.1, -0.7), (2.1, 0.25)]), np.array([(-1.2, -0.95)])
Y, TWO = np.array([[-0.3], [1.6]]), np.array([(-0.3, 0.8), (1.6, -0.5)])
ETA = 0.40263690  # 1.2 over the largest eigenvalue, for sin and two layers


def network(activation: str, depth: int, width: int = 64, outputs: int = 1, **options: Any) -> ft.MLP:
    sizes = {"depth": depth, "width": width, "n_in": 2, "n_out": outputs}
    return ft.MLP(
        activation, **sizes, **({"C_b": 0.1, "C_W": 1.3, "lambda_b": 0.5, "lambda_W": 1.0} | options)
    )


TINY = network("sin", 3, 6, 2, lambda_b=(0.2, 0.3, 0.1), lambda_W=(0.6, 0.8, 0.5))


@pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
def test_the_linear_part_is_the_derivative_along_the_fluctuation_of_the_kernel() -> None:
    goal = finite_goal(TINY, TRAIN, TWO, TEST, "gradient_descent", None)
    found = draw_ensemble(TINY, TRAIN, TEST, goal.goal.training, 3, keep=("kernel_before", "free"))
    assert found.kernel_before is not None
    everything = np.concatenate([TRAIN, TEST])
    Theta = np.kron(np.eye(2), ft.flow(TINY, everything, ["Theta"])["Theta"].values[-1])
    for place, linear in enumerate(goal.linearised(found)):
        own = found.kernel_before[place].transpose(0, 2, 1, 3).reshape(6, 6)  # rows (output, sample)
        z, seen = found.start[place].T.reshape(-1), [0, 1, 3, 4]

        def end(share: float, own: np.ndarray = own, z: np.ndarray = z, seen: list[int] = seen) -> np.ndarray:
            kernel = Theta + share * (own - Theta)
            return z - kernel[:, seen] @ np.linalg.solve(
                kernel[np.ix_(seen, seen)], z[seen] - TWO.T.reshape(-1)
            )

        slope = (end(1e-4) - end(-1e-4)) / 2e-4
        np.testing.assert_allclose(linear.T.reshape(-1), (end(0) + slope)[[2, 5]], rtol=1e-6, atol=1e-6)
        assert np.abs(end(1) - end(0) - slope)[[2, 5]].max() > 1e-3


def test_entries_are_means_over_networks() -> None:
    options: dict[str, Any] = {"widths": (8, 16, 32), "draws": (200, 200, 200), "seed": 7, "eta": 0.2}
    found = compare_trained_finite(network("sin", 2, 8, 2), TRAIN, TWO, TEST, **options)
    goal, mlp, own = found.goal, network("sin", 2, 16, 2), spawn(7, 3)[1]
    first, second = spawn(own, 2)
    how = Training(TWO, 0.2, tolerance=1e-5 / 16)
    trained = train_ensemble(
        mlp, TRAIN, TEST, how, 200, seed=first, mirrored=True, keep=("free", "kernel_before", "kernel_after")
    )
    drawn = draw_ensemble(
        mlp, TRAIN, TEST, how, 400, seed=second, mirrored=True, keep=("free", "kernel_before")
    )
    assert isinstance(goal, FiniteGoal)
    assert drawn.free is not None
    assert trained.kernel_before is not None
    assert trained.kernel_after is not None
    interaction = 16 * (trained.end - trained.free)[:, 2].mean(axis=0)
    curved = 16 * (drawn.free[:, 2] - goal.linearised(drawn)[:, 0]).mean(axis=0)
    change = 16 * (trained.kernel_after - trained.kernel_before).mean(axis=0)
    values = dict(zip([entry.label for entry in found.entries], found.measured[1]))
    for output in (0, 1):
        where = f"of output {output} at 0"
        assert values[f"interaction {where}"] == pytest.approx(interaction[output], rel=1e-9)
        assert values[f"ntk_variance {where}"] == pytest.approx(curved[output], rel=1e-9)
        assert values[f"mean {where}"] == pytest.approx(interaction[output] + curved[output], rel=1e-9)
    assert values["ntk_change of outputs 0 1 at 1 2"] == pytest.approx(change[0, 1, 1, 2], rel=1e-9)
    assert len(found.entries) == 3 * 2 + 6 * 7 // 2


@pytest.mark.slow
def test_training_the_last_layer_alone_has_no_interaction() -> None:
    mlp = network("sin", 3, 16, lambda_b=(0, 0, 0.1), lambda_W=(0, 0, 1.3))
    for algorithm in ("gradient_descent", "two_step"):
        found = compare_trained_finite(
            mlp,
            TRAIN,
            Y,
            TEST,
            algorithm=algorithm,
            widths=(16, 24, 32),
            draws=(200, 200, 200),
        )
        for name in ("interaction", "ntk_change"):
            np.testing.assert_allclose(found.measured[:, found.of(name)], 0, atol=1e-4)
            np.testing.assert_allclose(found.theory[found.of(name)], 0, atol=1e-12)
        assert not found.fluctuates[found.of("interaction")].any()
        assert found.agrees
        assert found.exact_agrees
        moved = replace(found, theory=found.theory + 0.01)
        assert not moved.exact_agrees
        assert not moved.agrees


# Table E of the reference: n times every contribution at the test point.
@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("activation", "depth", "algorithm", "eta", "expected"),
    [
        ("sin", 2, "gradient_descent", ETA, (-0.31863683, -0.22567594 - 0.33243439 + 0.15626180, 0.0)),
        ("sin", 2, "flow", None, (-0.31863683, -0.19586554 - 0.32290333 + 0.70180121, 0.0)),
        ("sin", 2, "two_step", None, (-0.31863683, -0.23129760 - 0.25516035, 0.0)),
        (
            "tanh",
            3,
            "gradient_descent",
            0.40939094,
            (-0.33250362, -0.45028956 - 1.8092364 + 1.3995916, 0.0162422),
        ),
    ],
)
def test_theory_is_the_references(
    activation: str, depth: int, algorithm: Any, eta: float | None, expected: tuple[float, float, float]
) -> None:
    theory = finite_goal(network(activation, depth, 512), TRAIN, Y, TEST, algorithm, eta).theory()
    variance, interaction, shift = expected
    assert theory["ntk_variance"].item() == pytest.approx(variance, abs=2e-7)
    assert theory["interaction"].item() == pytest.approx(interaction, abs=5e-7)
    assert theory["mean"].item() == pytest.approx(variance + interaction + shift, abs=6e-7)


def test_theory_of_two_outputs_and_of_the_kernel_is_the_references() -> None:
    theory = finite_goal(network("sin", 2, 512, 2), TRAIN, TWO, TEST, "gradient_descent", ETA).theory()
    np.testing.assert_allclose(theory["ntk_variance"][0], (-0.41061703, 0.35877747), atol=1e-7)
    np.testing.assert_allclose(theory["interaction"][0], (-0.38419374, -0.00449034), atol=1e-7)
    change = finite_goal(network("sin", 2, 512), TRAIN, Y, TEST, "gradient_descent", ETA).theory()[
        "ntk_change"
    ]
    expected = {(0, 0): -0.21139463, (0, 1): -0.47625321, (1, 1): -12.245344, (2, 2): -1.4760937}
    for place, value in expected.items():
        assert change[(*place, 0, 0)] == pytest.approx(value, rel=2e-7)


FIRST = np.array([[1.0, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]])
INPUTS = np.linalg.cholesky((FIRST - 0.1) / 1.5) * np.sqrt(3)
TARGETS = np.array([(0.7, -0.4), (0.2, 0.9)]).T
BAYES = ft.MLP("tanh", 3, 32, n_in=3, n_out=2, C_b=0.1, C_W=1.5)


@pytest.mark.slow
def test_posterior_is_that_of_weighted_networks() -> None:
    theory = posterior_goal(BAYES, INPUTS[:2], TARGETS, INPUTS[2:], 0.0).theory()
    assert theory["log_evidence"] == pytest.approx(-3.672560350, abs=1e-7)
    np.testing.assert_allclose(theory["mean"][0], (0.352063599, 0.264170558), atol=1e-7)
    np.testing.assert_allclose(theory["covariance"], -1.494715315, atol=1e-7)
    np.testing.assert_allclose(
        theory["wiring"][0, 0], [[1.839399705, -1.023924756], [-1.023924756, 1.071173719]], atol=1e-7
    )
    found = compare_trained_finite(
        BAYES,
        INPUTS[:2],
        TARGETS,
        INPUTS[2:],
        learner="bayes",
        widths=(32, 64, 128),
        draws=(20_000,) * 3,
        seed=1,
    )
    assert found.agrees
    assert [entry.label for entry in found.entries][:3] == [
        "log_evidence",
        "mean of output 0 at 0",
        "mean of output 1 at 0",
    ]
    batch = importance_posterior(
        BAYES, INPUTS[:2], TARGETS, INPUTS[2:], draws=500, seed=spawn(spawn(1, 3)[0], 40)[3]
    )
    own = 32 * (batch.mean.values - found.goal.prediction.infinite_mean.values)[0]
    np.testing.assert_allclose(found.batches[0].values[3, 1:3], own, rtol=1e-9)
    assert "weighted with the density" in repr(found)


def small(**options: Any) -> FiniteComparison:
    settings: dict[str, Any] = {"widths": (32, 64, 128), "draws": (400, 400, 400), "seed": 3} | options
    return compare_trained_finite(network("sin", 2), TRAIN, Y, TEST, **settings)


@pytest.mark.slow
def test_a_wrong_theory_is_noticed_and_all_is_told(tmp_path: Path) -> None:
    found = small(eta=ETA)
    assert found.agrees
    assert "agrees with networks" in found.verdict
    assert "of 1 means within 2 standard errors" in found.verdict
    assert "interaction of output 0 at 0" in repr(found)
    assert "gradient descent at eta 0.402637" in repr(found)
    wrong = replace(found, theory=2 * found.theory)
    assert not wrong.agrees
    assert "does NOT agree" in wrong.verdict
    ft.save(found.to_dataset(), tmp_path / "found.zarr")
    data = ft.load(tmp_path / "found.zarr")
    np.testing.assert_array_equal(data["limit"], found.limit)
    assert data["term_ntk_variance"].item() == pytest.approx(-0.31863683, abs=2e-7)
    assert found.rows()[1]["measured"] == found.measured[:, 1].tolist()
    sizes = found.sizes("ntk_change")
    assert sizes.root[0] > sizes.root[-1]


@pytest.mark.slow
def test_parts_are_kept() -> None:
    kept: dict[str, Any] = {}

    def keeper(name: str, compute: Any) -> Any:
        kept.setdefault(name, compute())
        return kept[name]

    found = small(keeper=keeper)
    assert list(kept) == ["width 32", "width 64", "width 128"]
    again = small(keeper=lambda name, compute: kept[name])
    np.testing.assert_array_equal(again.measured, found.measured)
    other = small(seed=4)
    assert np.abs(other.measured - found.measured).min() > 0


@pytest.mark.slow
def test_it_is_reached_by_the_regime() -> None:
    mlp = ft.MLP("sin", depth=2, width=8, C_b=0.1, C_W=1.3, lambda_b=0.5)
    data = [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 0.4], [[-1.2, -0.95]]
    options: dict[str, Any] = {
        "widths": (32, 64, 128),
        "draws": (200, 200, 200),
        "algorithm": "two_step",
        "seed": 3,
    }
    found = ft.compare(mlp, *data, trained=True, regime="finite", **options)
    assert isinstance(found, FiniteComparison)
    np.testing.assert_array_equal(found.measured, compare_trained_finite(mlp, *data, **options).measured)
    scaled = options | {"widths": None, "scales": (4, 8, 16)}
    np.testing.assert_array_equal(found.measured, compare_trained_finite(mlp, *data, **scaled).measured)
    with pytest.raises(InputError, match="regime"):
        ft.compare(mlp, *data, trained=True, regime="thermal")


def test_unequal_widths_grow_together_by_scales() -> None:
    found = compare_trained_finite(
        network("sin", 3, [16, 24]),  # type: ignore[arg-type]
        TRAIN,
        Y,
        TEST,
        scales=(1, 2, 4),
        draws=(200, 200, 200),
        algorithm="two_step",
    )
    assert [one.hidden_widths for one in found.ladder.networks] == [(16, 24), (32, 48), (64, 96)]
    assert found.widths.tolist() == [24, 48, 96]


def test_bad_input() -> None:
    with pytest.raises(InputError, match="unknown algorithm 'leap'"):
        small(algorithm="leap")
    with pytest.raises(InputError, match="unknown learner"):
        small(learner="guess")
    with pytest.raises(InputError, match="eta and time"):
        small(algorithm="two_step", eta=0.1)
    with pytest.raises(InputError, match="converges only below"):
        small(eta=3.0)
    with pytest.raises(InputError, match="algorithm"):
        small(learner="bayes", eta=0.1)
    with pytest.raises(InputError, match="noise is a matter"):
        small(noise=0.1)
    with pytest.raises(InputError, match="200"):
        small(draws=20)
    with pytest.raises(InputError, match="3 widths"):
        small(draws=(400, 400))
    with pytest.raises(InputError, match="either widths or scales"):
        small(scales=(1, 2, 4))
    with pytest.raises(InputError, match="equal ones only"):
        compare_trained_finite(network("sin", 3, [8, 16]), TRAIN, Y, TEST, widths=(8, 16, 32))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="singular"):
        compare_trained_finite(network("sin", 2), TRAIN[[0, 0]], Y, TEST)
    with pytest.raises(NotSupportedError, match="slope jumps"):
        compare_trained_finite(network("relu", 2), TRAIN, Y, TEST)


def test_networks_that_run_away_are_refused() -> None:
    goal = finite_goal(network("sin", 2), TRAIN, Y, TEST, "gradient_descent", ETA)

    def run_away(*_: Any) -> Any:
        found = two_step_ensemble(network("sin", 2), TRAIN, TEST, Y, range(4))
        return replace(found, diverged=np.array([False, True, False, True]))

    object.__setattr__(goal, "train", run_away)
    with pytest.raises(InputError, match="2 of 4 networks of width 64"):
        goal.measure(network("sin", 2), 4, 2, 0)


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("algorithm", "eta", "reference"),
    [
        ("gradient_descent", ETA, {64: (-0.374, 0.012), 128: (-0.395, 0.012), 256: (-0.389, 0.020)}),
        ("gradient_descent", ETA / 6, {64: (0.092, 0.018)}),
        ("two_step", None, {64: (-0.363, 0.010), 256: (-0.464, 0.011)}),
    ],
)
def test_networks_end_where_those_of_the_reference_did(
    algorithm: Any, eta: float | None, reference: dict[int, tuple[float, float]]
) -> None:
    found = small(algorithm=algorithm, eta=eta, widths=(64, 128, 256), draws=(6000, 6000, 5000), seed=0)
    assert found.agrees
    column = int(np.flatnonzero(found.of("interaction"))[0])
    for width, (value, error) in reference.items():
        row = found.widths.tolist().index(width)
        gap = found.measured[row, column] - value
        assert abs(gap) < 3.3 * np.hypot(error, found.measured_error[row, column])
    assert (np.abs(found.scores[:, found.of("ntk_variance")]) < 3.3).all()


@pytest.mark.statistical
def test_deeper_networks_and_two_outputs_agree() -> None:
    deep = compare_trained_finite(
        network("sin", 3),
        TRAIN,
        Y,
        TEST,
        algorithm="two_step",
        widths=(64, 128, 256),
        draws=(4000, 4000, 2000),
    )
    assert deep.agrees
    two = compare_trained_finite(
        network("sin", 2, outputs=2), TRAIN, TWO, TEST, eta=ETA, widths=(64, 128, 256), draws=4000
    )
    assert two.agrees
    row = two.widths.tolist().index(128)
    for name, reference, error in (
        ("interaction", (-0.359, -0.017), 0.022),
        ("ntk_variance", (-0.396, 0.358), 0.024),
    ):
        chosen = two.of(name)
        gap = two.measured[row, chosen] - reference
        assert (np.abs(gap) < 3.3 * np.hypot(error, two.measured_error[row, chosen])).all()
