"""The mean prediction at finite width: values of the reference, limits, symmetries, and refusals."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from finite_width_values import (
    INFINITE,
    INTERACTION,
    RATES,
    TERMS,
    VARIANCE,
    WIDTH,
    X_TEST,
    X_TRAIN,
    Y_TWO,
    Y,
    ensemble,
    network,
)

import foretrain as ft
from foretrain.support.errors import AccuracyWarning, InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.prediction.algorithms import Descent, GradientFlow, named_algorithm
from foretrain.theory.prediction.bayes import bayes_equivalent_rates
from foretrain.theory.prediction.finite_width import (
    FiniteWidth,
    algorithm_projectors,
    compare_algorithms,
    covariance_part_as_printed,
    descent_and_bayes,
    finite_prediction,
    terms_as_printed,
)
from foretrain.theory.prediction.infinite_width import GradientDescent


@pytest.fixture(scope="module")
def ensembles() -> dict[tuple[str, int], FiniteWidth]:
    return {case: ensemble(*case) for case in RATES}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("activation", "depth", "algorithm"), TERMS)
def test_values_of_the_reference(
    ensembles: dict[tuple[str, int], FiniteWidth], activation: str, depth: int, algorithm: str
) -> None:
    case = activation, depth
    found = ensembles[case].predict(
        named_algorithm(algorithm, RATES[case] if algorithm == "gradient_descent" else None)
    )
    terms = {name: WIDTH * term.item() for name, term in found.terms.items()}
    assert found.infinite_mean.item() == pytest.approx(INFINITE[case], abs=1e-8)
    assert terms["ntk_variance"] == pytest.approx(VARIANCE[case], abs=2e-8)
    for name, value in zip(INTERACTION, TERMS[activation, depth, algorithm], strict=True):
        assert terms[name] == pytest.approx(value, rel=1e-7, abs=1e-8), name
    assert terms["ntk_mean"] == pytest.approx(0.0162422 if depth == 3 else 0.0, abs=1e-7)
    assert found.mean.item() == pytest.approx(INFINITE[case] + sum(terms.values()) / WIDTH, abs=1e-8)


def test_two_outputs() -> None:
    found = finite_prediction(network(outputs=2), X_TRAIN, Y_TWO, X_TEST, Descent(RATES["sin", 2]))
    expected = {
        "ntk_variance": (-0.41061703, 0.35877747),
        "dntk": (-0.30805735, 0.34813064),
        "ddntk_1": (-0.31063342, -0.08153574),
        "ddntk_2": (0.23449703, -0.27108524),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(WIDTH * found.terms[name].values[0], values, rtol=1e-7, err_msg=name)
    assert found.ntk_change.shape == (3, 3, 2, 2)


def test_projectors_on_samples(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    modes = ensembles["sin", 2].store.modes
    Z = algorithm_projectors(Descent(RATES["sin", 2]), modes.values)
    rotate = modes.vectors
    pairs = np.einsum("ap,bq,pq,cp,dq->abcd", rotate, rotate, Z.A, rotate, rotate)
    assert pairs[0, 0, 0, 0] == pytest.approx(0.16552518, rel=1e-7)
    assert pairs[0, 1, 0, 1] == pytest.approx(0.12495265, rel=1e-7)
    for name, value in (("IIA", -0.015599948), ("IIB", -0.12036817)):
        corner = np.einsum("p,q,r,pqr->", *[rotate[0] ** 2] * 3, getattr(Z, name))
        assert corner == pytest.approx(value, rel=1e-7)


def test_change_of_the_tangent_kernel(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    expected = {
        "gradient_descent": (-0.21139463, -0.47625321, -12.245344, -1.4760937),
        "flow": (0.39985103, -0.31362525, -4.2121466, -0.43605966),
    }
    for algorithm, values in expected.items():
        eta = RATES["sin", 2] if algorithm == "gradient_descent" else None
        change = WIDTH * ensembles["sin", 2].predict(named_algorithm(algorithm, eta)).ntk_change
        found = [float(change[a, b, 0, 0]) for a, b in ((0, 0), (0, 1), (1, 1), (2, 2))]
        np.testing.assert_allclose(found, values, rtol=2e-7)
        np.testing.assert_allclose(change[:, :, 0, 0], change[:, :, 0, 0].T, rtol=1e-10)


def test_printed_formulas_differ(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    """Interaction -0.575 and total -0.257 as printed, against -0.402 and -0.7205."""
    found = {
        name: WIDTH * term.item()
        for name, term in terms_as_printed(ensembles["sin", 2], Descent(0.4026369)).items()
    }
    interaction = sum(found[name] for name in INTERACTION)
    assert interaction == pytest.approx(-0.575, abs=1e-3)
    assert interaction + found["ntk_variance"] == pytest.approx(-0.257, abs=1e-3)
    assert found["ntk_variance"] == pytest.approx(-VARIANCE["sin", 2], abs=1e-8)


def test_two_steps_as_printed_differ_in_the_sign_only(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    printed = terms_as_printed(ensembles["sin", 2], "two_step")
    for name, value in zip(INTERACTION, TERMS["sin", 2, "two_step"], strict=True):
        assert WIDTH * printed[name].item() == pytest.approx(value, rel=1e-7, abs=1e-8)


@pytest.mark.slow
def test_times_lead_from_nothing_to_the_end(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    for algorithm, eta, late in (("gradient_descent", 0.3, 300), ("flow", None, 200.0)):
        trained = ensembles["tanh", 3]
        start, end, last = (
            trained.predict(named_algorithm(algorithm, eta, time)) for time in (0, None, late)
        )
        assert not start.mean.values.any()
        for name, term in last.terms.items():
            assert term.item() == pytest.approx(end.terms[name].item(), rel=1e-8, abs=1e-12)
        assert last.mean.item() == pytest.approx(end.mean.item(), rel=1e-9)
        way = named_algorithm(algorithm, eta, 2 if algorithm != "flow" else 1.5)
        infinite = GradientDescent.of(trained.store.mlp, X_TRAIN, Y, X_TEST).after(named_algorithm(way))
        found = trained.predict(way)
        np.testing.assert_allclose(found.infinite_mean, infinite.mean, rtol=1e-9)
        np.testing.assert_allclose(found.covariance, infinite.covariance, rtol=1e-9)


def test_slow_steps_are_the_flow(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    flow = ensembles["sin", 2].predict(GradientFlow(0.7)).terms
    slow = ensembles["sin", 2].predict(Descent(0.7 / 20_000, 20_000)).terms
    for name in flow:
        assert slow[name].item() == pytest.approx(flow[name].item(), rel=2e-4)
    end, near = ensembles["sin", 2].predict("flow").terms, ensembles["sin", 2].predict(Descent(1e-5)).terms
    for name in end:
        assert near[name].item() == pytest.approx(end[name].item(), rel=2e-5)


@pytest.mark.slow
def test_training_inputs_among_the_tests() -> None:
    """At the end their mean is the target, on the way it moves there; order and other tests do not matter."""
    both = np.concatenate([X_TRAIN, X_TEST])
    found = finite_prediction(network(outputs=2), X_TRAIN, Y_TWO, both, "flow")
    np.testing.assert_allclose(found.mean[:2], Y_TWO, atol=1e-9)
    alone = finite_prediction(network(outputs=2), X_TRAIN[::-1], Y_TWO[::-1], X_TEST, "flow")
    np.testing.assert_allclose(found.mean[2], alone.mean[0], rtol=1e-10)
    change = found.ntk_change.values
    np.testing.assert_allclose(change[0], change[2], rtol=1e-8)
    correction = found.covariance_correction
    for part in correction.values():
        np.testing.assert_allclose(part.values[:2], 0, atol=1e-10)
    np.testing.assert_allclose(
        correction["total"].values[2, 2], alone.covariance_correction["total"].values[0, 0], rtol=1e-8
    )
    with pytest.raises(NotSupportedError, match="end of training only"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, GradientFlow(1.0)).covariance_correction  # noqa: B018
    early = finite_prediction(network(outputs=2), X_TRAIN, Y_TWO, both, GradientFlow(0.5))
    assert np.abs(early.mean[:2] - Y_TWO).min() > 0.05


def test_a_repeated_input_counts_twice() -> None:
    """Flow with a repeated input is flow with a double weight, which for one input alone is only faster."""
    once = finite_prediction(network(), X_TRAIN[:1], Y[:1], X_TEST, "flow")
    twice = finite_prediction(network(), X_TRAIN[[0, 0]], Y[[0, 0]], X_TEST, "flow")
    np.testing.assert_allclose(twice.mean, once.mean, rtol=1e-9)
    half = finite_prediction(network(), X_TRAIN[[0, 0]], Y[[0, 0]], X_TEST, GradientFlow(0.2))
    whole = finite_prediction(network(), X_TRAIN[:1], Y[:1], X_TEST, GradientFlow(0.4))
    np.testing.assert_allclose(half.mean, whole.mean, rtol=1e-9)


def test_one_layer_is_exact() -> None:
    found = finite_prediction(ft.MLP("tanh", 1, n_out=1, C_b=0.1, lambda_b=0.5), X_TRAIN, Y, X_TEST)
    assert not any(term.values.any() for term in found.terms.values())
    assert found.expansion.largest == 0


@pytest.mark.slow
def test_last_layer_only() -> None:
    """Theta = K, A = V, all else zero: a random-feature model (∞.173), which parts from exact inference at 1/n."""
    mlp = network("sin", 3)
    trained = finite_prediction(bayes_equivalent_rates(mlp), X_TRAIN, Y, X_TEST)
    assert not any(np.abs(trained.terms[name]).max() > 1e-14 for name in INTERACTION)
    K, V = (ft.flow(mlp, np.concatenate([X_TRAIN, X_TEST]), [name])[name].values[-1] for name in "KV")
    inverse = np.linalg.inv(K[:2, :2])
    moved = np.einsum("dabc,ab,ce,ei->di", V[:, :2, :2, :2], inverse, inverse, Y)
    expected = -(moved[2] - K[2, :2] @ inverse @ moved[:2])
    np.testing.assert_allclose(WIDTH * trained.terms["ntk_variance"][0], expected, rtol=1e-8)
    both = descent_and_bayes(mlp, X_TRAIN, Y, X_TEST)
    np.testing.assert_allclose(both["mean"].sel(learner="last_layer"), trained.mean, rtol=1e-12)
    infinite = both["infinite_mean"]
    assert infinite.sel(learner="last_layer").item() == pytest.approx(
        infinite.sel(learner="bayes").item(), rel=1e-9
    )
    assert abs((both["mean"] - infinite).diff("learner").isel(learner=-1).item()) > 1e-4


def test_algorithms_side_by_side(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    found = compare_algorithms(ensembles["sin", 2], {"slow": Descent(0.1), "leap": "two_step"})
    assert found["dntk"].sel(algorithm="leap").item() * WIDTH == pytest.approx(-0.23129760, rel=1e-7)
    assert list(compare_algorithms(ensembles["sin", 2])["algorithm"]) == [
        "gradient_descent",
        "flow",
        "two_step",
    ]
    with pytest.raises(InputError, match="at least one"):
        compare_algorithms(ensembles["sin", 2], {})


def test_given_projectors(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    known = ensembles["tanh", 3].predict("flow")
    given = ensembles["tanh", 3].predict(lambda values: algorithm_projectors("flow", values))
    np.testing.assert_allclose(given.mean, known.mean, rtol=1e-12)
    with pytest.raises(NotSupportedError, match="gradient_descent, flow and two_step"):
        given.ntk_change  # noqa: B018


@pytest.mark.slow
def test_widths_and_targets_without_new_tensors(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    wide, narrow = ensembles["tanh", 3].predict("flow"), ensembles["tanh", 3].with_width(50).predict("flow")
    for name, term in narrow.terms.items():
        np.testing.assert_allclose(term, 2 * wide.terms[name], rtol=1e-12)
    unequal = FiniteWidth.of(network("tanh", 3, [40, 80]), X_TRAIN, Y, X_TEST)  # type: ignore[arg-type]
    assert unequal.store.width == 80
    assert WIDTH * wide.terms["dntk"].item() != pytest.approx(
        80 * unequal.predict("flow").terms["dntk"].item(), rel=0.01
    )
    np.testing.assert_allclose(
        unequal.with_width([80, 160]).predict("flow").terms["dntk"],
        unequal.predict("flow").terms["dntk"] / 2,
        rtol=1e-12,
    )
    with pytest.raises(InputError, match="no multiple"):
        ensembles["tanh", 3].with_width([50, 100])
    other = ensembles["tanh", 3].with_targets(2 * Y).predict("flow")
    np.testing.assert_allclose(other.terms["dntk"], 2 * wide.terms["dntk"], rtol=1e-12)


def test_unequal_widths_follow_the_flow() -> None:
    """Against all tensors at once, contracted with the inverse kernels by hand."""
    mlp = network("sin", 3, [40, 80])  # type: ignore[arg-type]
    found = finite_prediction(mlp, X_TRAIN, Y, X_TEST, "flow")
    tensors = ft.flow(mlp, np.concatenate([X_TRAIN, X_TEST]), ["Theta", "A", "B"])
    Theta, A, B = (tensors[name].values[-1] for name in ("Theta", "A", "B"))
    inverse = np.linalg.inv(Theta[:2, :2])
    joined = A[:, :2, :2, :2] + B[:, :2, :2, :2].swapaxes(1, 2) + np.moveaxis(B[:, :2, :2, :2], 1, 3)
    moved = -np.einsum("dabc,ab,ce,ei->di", joined, inverse, inverse, Y)
    expected = (moved[2] - Theta[2, :2] @ inverse @ moved[:2]) / 80
    np.testing.assert_allclose(found.terms["ntk_variance"][0], expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the standard error")
def test_sampled_sums_have_honest_errors() -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(5, 3))
    trained = FiniteWidth.of(network(width=1000), X[:4], np.sin(X[:4, :1]), X[4:])
    exact = trained.predict("flow")
    gaps = []
    for seed in range(10):
        found = trained.predict("flow", draws=60, seed=seed)
        assert found.standard_error is not None
        gaps.append(float(((found.mean - exact.mean) / found.standard_error).item()))
    assert 0.4 < np.sqrt(np.mean(np.square(gaps))) < 1.8
    assert abs(np.mean(gaps)) < 3.5 / np.sqrt(10)
    assert "standard error" in repr(found)
    np.testing.assert_array_equal(found.mean, trained.predict("flow", draws=60, seed=9).mean)


def test_answers_teach(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    found = ensembles["tanh", 3].predict()
    text = repr(found)
    assert "width 100" in text
    assert "ddntk_2" in text
    assert "infinite width" in text
    data = found.to_dataset()
    assert {"mean", "infinite_mean", "term_dntk", "covariance"} <= {*data}
    assert data.attrs["eta"] == pytest.approx(ensembles["tanh", 3].rates.best)
    assert "infinite width" in found.covariance.attrs["meaning"]
    K, Theta, R = (
        ft.flow(network("tanh", 3), X_TRAIN, [name])[name].values[-1] for name in ("K", "Theta", "R")
    )
    size = np.diagonal(K) + np.mean(Y**2)
    ratio = np.mean([R[a, a, a, a] * size[a] / Theta[a, a] ** 3 for a in (0, 1)]) / WIDTH
    assert found.expansion.ratios["R"] == pytest.approx(ratio, rel=1e-8)
    assert found.expansion.correction == pytest.approx(
        abs((found.mean - found.infinite_mean).item() / found.infinite_mean.item())
    )
    assert "as many algorithms" in repr(ensembles["tanh", 3])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("spread", ["variance", "none"])
def test_less_spread(spread: str) -> None:
    found = finite_prediction(network(), X_TRAIN, Y, X_TEST, spread=spread)
    whole = finite_prediction(network(), X_TRAIN, Y, X_TEST)
    assert found.covariance is None
    assert (found.variance is None) == (spread == "none")
    np.testing.assert_allclose(found.mean, whole.mean, rtol=1e-12)
    if found.variance is not None:
        np.testing.assert_allclose(found.variance, np.diagonal(whole.covariance), rtol=1e-10)


def test_printed_part_of_the_covariance(ensembles: dict[tuple[str, int], FiniteWidth]) -> None:
    """(∞.167) by hand: with one output both orders of Q and P meet K + y y."""
    tensors = ft.flow(network(), np.concatenate([X_TRAIN, X_TEST]), ["K", "Theta", "P", "Q"])
    K, Theta, P, Q = (tensors[name].values[-1] for name in ("K", "Theta", "P", "Q"))
    inverse = np.linalg.inv(Theta[:2, :2])
    errors = inverse @ (K[:2, :2] + Y @ Y.T) @ inverse / 2
    raw = np.einsum("dabe,ab->de", P[:, :2, :2] + Q[:, :2, :2] + Q[:, :2, :2].swapaxes(1, 2), errors)
    for algorithm in ("flow", "two_step"):
        printed = covariance_part_as_printed(ensembles["sin", 2], algorithm)
        np.testing.assert_allclose(WIDTH * printed.values, raw[2:, 2:], rtol=1e-8)
    project = np.array([*(-Theta[2, :2] @ inverse), 1.0])
    leap = ensembles["sin", 2].predict("two_step").covariance_correction["dntk_and_output"]
    assert WIDTH * leap.item() == pytest.approx(2 * project @ raw @ project, rel=1e-8)


def test_last_layer_covariance() -> None:
    """Random features: l has the variance V K^-1 K^-1 (K + y y), and u meets the metric as it does itself."""
    mlp = bayes_equivalent_rates(network("sin", 3))
    found = WIDTH * finite_prediction(mlp, X_TRAIN, Y, X_TEST).covariance_correction
    tensors = ft.flow(mlp, np.concatenate([X_TRAIN, X_TEST]), ["K", "V", "G1"])
    K, V, G1 = (tensors[name].values[-1] for name in ("K", "V", "G1"))
    inverse = np.linalg.inv(K[:2, :2])
    project = np.array([*(-K[2, :2] @ inverse), 1.0])
    errors = inverse @ (K[:2, :2] + Y @ Y.T) @ inverse
    expected = np.einsum("x,y,xayb,ab->", project, project, V[:, :2, :, :2], errors)
    assert found["ntk_variance"].item() == pytest.approx(expected, rel=1e-8)
    assert found["metric"].item() == pytest.approx(project @ G1 @ project, rel=1e-8)
    crossed = -2 * np.einsum("x,y,xbya,ab->", project, project, V[:, :2, :, :2], inverse)
    assert found["ntk_and_output"].item() == pytest.approx(crossed, rel=1e-8)
    assert found["mean_response"].item() == pytest.approx(0, abs=1e-9)  # K_AA^-1 leaves u and z_A independent
    assert found["dntk_and_output"].item() == pytest.approx(0, abs=1e-12)


def test_large_corrections_are_reported() -> None:
    with pytest.warns(AccuracyWarning, match="not small"):
        finite_prediction(network(width=3), X_TRAIN, Y, X_TEST)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        finite_prediction(network(width=800), X_TRAIN, Y, X_TEST)


@pytest.mark.filterwarnings("ignore:the corrections")
def test_inputs_that_are_nearly_alike_are_reported() -> None:
    with pytest.warns(AccuracyWarning, match="nearly alike"):
        finite_prediction(network(), [*X_TRAIN, X_TRAIN[0] + 1e-5], [-0.3, 1.6, -0.3], X_TEST)


@pytest.mark.filterwarnings("ignore:the corrections")
def test_few_draws_are_reported() -> None:
    inputs = np.random.default_rng(3).normal(size=(6, 2))
    with pytest.warns(AccuracyWarning, match="more draws="):
        finite_prediction(network(), inputs, np.sin(inputs[:, 0]), X_TEST, draws=5)


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotSupportedError, match="smooth"):
        finite_prediction(network("relu"), X_TRAIN, Y, X_TEST)
    with pytest.raises(NotSupportedError, match="skip connections"):
        finite_prediction(ft.MLP("tanh", 3, 10, gamma=0.5), X_TRAIN, Y, X_TEST)
    with pytest.raises(InputError, match="converges only below"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, Descent(5.0))
    with pytest.raises(InputError, match="unknown algorithm"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, "newton")
    with pytest.raises(InputError, match="whole number"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, Descent(steps=1.5))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="ends at once"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, named_algorithm("two_step", time=1))
    with pytest.raises(InputError, match="unknown spread"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, spread="wide")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="draws is 1"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, draws=1)
    with pytest.raises(InputError, match="end of training only"):
        finite_prediction(network(), X_TRAIN, Y, X_TEST, Descent(steps=3), draws=10)
    with pytest.raises(InputError, match=r"\(2, 1\)"):
        finite_prediction(network(), X_TRAIN, Y_TWO, X_TEST)
    with pytest.raises(NotSupportedError, match="nothing is learned"):
        finite_prediction(network().replace(lambda_b=0.0, lambda_W=0.0), X_TRAIN, Y, X_TEST)
    many = np.random.default_rng(0).normal(size=(60, 2))
    with pytest.raises(NotSupportedError, match=r"hours.*draws="):
        finite_prediction(network(), many, np.ones((60, 1)), X_TEST)
    monkeypatch.setenv("FORETRAIN_MEMORY", "100MB")
    with pytest.raises(NotEnoughMemoryError, match="draws="):
        finite_prediction(network(), many[:20], np.ones((20, 1)), X_TEST)


@pytest.mark.slow
def test_a_zero_among_the_training_inputs_is_the_limit_of_small_ones() -> None:
    net, Y = ft.MLP("gelu", depth=3, width=100), [[1.0], [0.3]]
    zero, small = (
        ft.predict(net, [[e, 0], [0.5, 0.2]], Y, [[-0.4, 0.6]], regime="finite", algorithm="flow")
        for e in (0.0, 1e-6)
    )
    assert zero.terms["ddntk_1"].item() == pytest.approx(0.0062465, rel=1e-5)
    assert zero.terms["ddntk_1"].item() == pytest.approx(small.terms["ddntk_1"].item(), rel=1e-4)
    assert zero.mean.item() == pytest.approx(small.mean.item(), rel=1e-4)
