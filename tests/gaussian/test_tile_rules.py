"""Closed forms of tiles, by sweeps of numpy and in one pass of numba: against mpmath, and in every layout."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import mpmath
import numpy as np
import pytest

from foretrain.activations import Activation, activation
from foretrain.gaussian import gram
from foretrain.gaussian.closed_forms import tile_rule
from foretrain.gaussian.covariance import check_gram
from foretrain.support import acceleration
from foretrain.support.errors import InputError

ACTIVATIONS = {
    "relu": activation("relu"),
    "leaky": activation("leaky_relu", slope=0.1),
    "step": activation("perceptron"),
    "erf": activation("erf"),
    "gelu": activation("gelu"),
    "sin": activation("sin"),
    "cos": activation("cos"),
}
KINDS = ["spread", "near", "opposite", "equal", "mirrored", "zero", "tiny", "huge", "orthogonal"]
WIDE = ["huge and near"]  # where numpy loses the digits of ab - c^2 that 1 + a + b does not cover


def orders_of(act: Activation) -> tuple[int, ...]:
    return (0, 1) if act.degree != 0 or act.pieces is None else (0,)


def rule_of(act: Activation, loops: str) -> Any:
    return tile_rule(act, compiled=loops == "numba")


def pairs_of(kind: str, dtype: str, count: int = 100) -> tuple[Any, Any, Any]:
    """Variances and covariances of a list of pairs, as numbers of that precision."""
    rng = np.random.default_rng(0)
    a, b = np.exp(0.5 * rng.standard_normal((2, count)))
    apart = 10 ** rng.uniform(-16, -1, count)
    rho = {"opposite": apart - 1, "equal": np.ones(count), "mirrored": -np.ones(count)}.get(kind, 1 - apart)
    if kind in ("spread", "zero", "tiny", "huge"):
        rho = rng.uniform(-1, 1, count)
    elif kind == "orthogonal":
        rho = 10 ** rng.uniform(-300, -10, count) * rng.choice([-1, 1], count)
    elif kind in ("equal", "mirrored"):
        b = a
    if kind == "zero":
        a, b = np.where(np.arange(count) % 3 == 0, 0, a), np.where(np.arange(count) % 2 == 0, 0, b)
    scale = 1e-25 if kind == "tiny" else 1e8 if "huge" in kind else 1.0
    a, b = (scale * a).astype(dtype), (scale * b).astype(dtype)
    if kind in ("equal", "mirrored"):
        return a, b, np.where(rho > 0, a, -a)
    return a, b, (rho * np.sqrt(a.astype(float)) * np.sqrt(b.astype(float))).astype(dtype)


def exact(name: str, a: float, b: float, c: float) -> tuple[Any, ...]:
    """<s s> and <s' s'> in 60 digits of these very numbers."""
    mp = mpmath.mp
    a, b, c = (mp.mpf(float(x)) for x in (a, b, c))
    determinant = a * b - c**2
    if name in ("relu", "leaky", "step"):
        if determinant <= mp.mpf(8e-15) * a * b:  # what rounding leaves of one direction
            determinant = mp.mpf(0)
        angle = mp.atan2(mp.sqrt(determinant), -c) if a * b else mp.pi / 2
        minus = mp.mpf(0.1) if name == "leaky" else mp.mpf(0)
        jump = (1 - minus) ** 2 / (2 * mp.pi)
        slope = jump * angle + minus
        return (slope,) if name == "step" else (jump * (mp.sqrt(determinant) + c * angle) + minus * c, slope)
    determinant = max(determinant, mp.mpf(0))  # no inputs have less: rounding of c
    if name == "erf":
        D = 1 + 2 * a + 2 * b + 4 * determinant
        return 2 / mp.pi * mp.atan2(2 * c, mp.sqrt(D)), 4 / mp.pi / mp.sqrt(D)
    if name == "gelu":
        D, q = 1 + a + b + determinant, 1 / (1 + a) + 1 / (1 + b)
        root, share = 1 / (2 * mp.pi * mp.sqrt(D)), mp.atan2(c, mp.sqrt(D)) / (2 * mp.pi) + mp.mpf(1) / 4
        return (c**2 * q + determinant) * root + c * share, share + c * root * (1 / D + q)
    decay = mp.exp(-(a + b) / 2)
    sines = decay * mp.sinh(c), decay * mp.cosh(c)
    return sines if name == "sin" else sines[::-1]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", KINDS + WIDE)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_pair_is_exact_to_rounding(name: str, kind: str, dtype: str, loops: str) -> None:
    if kind in WIDE and loops == "numpy" and name in ("erf", "gelu"):
        pytest.skip("numpy forms ab - c^2 with the rounding of its terms")
    a, b, c = pairs_of(kind, dtype)
    orders = orders_of(ACTIVATIONS[name])
    out = {order: np.full_like(c, np.nan) for order in orders}
    rule_of(ACTIVATIONS[name], loops)(a, b, c, out)
    most = 4 if loops == "numba" else 32  # units of the last digit
    with mpmath.workdps(60):
        for k in range(len(c)):
            expected = exact(name, a[k], b[k], c[k])
            own = [exact(name, x, x, x) for x in (a[k], b[k])]
            for order in orders:
                natural = mpmath.sqrt(own[0][order] * own[1][order])
                off = abs(mpmath.mpf(float(out[order][k])) - expected[order])
                tiny = float(np.finfo(dtype).tiny)
                assert off <= most * np.finfo(dtype).eps * natural + tiny, (order, a[k], b[k], c[k])


@pytest.mark.parametrize("name", ["erf", "gelu", "sin", "relu"])
def test_small_correlations_keep_their_digits(name: str, loops: str) -> None:
    """Not only beside the size of the means: odd functions vanish with the covariance, and so does their error."""
    a, b, c = pairs_of("orthogonal", "float64")
    out = {0: np.empty_like(c)}
    rule_of(ACTIVATIONS[name], loops)(a, b, c, out)
    if name in ("erf", "sin"):
        expected = np.array([float(exact(name, *pair)[0]) for pair in zip(a, b, c)])
        np.testing.assert_allclose(out[0], expected, rtol=1e-14)
    else:
        zero = np.zeros_like(c)
        rule_of(ACTIVATIONS[name], loops)(a, b, zero, (at_zero := {0: np.empty_like(c)}))
        np.testing.assert_allclose(out[0], at_zero[0], rtol=1e-9)


LAYOUTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = {
    "a tile": ((5, 1), (1, 7), (5, 7)),
    "long rows": ((3, 1), (1, 700), (3, 700)),
    "a list": ((600,), (600,), (600,)),
    "one column": ((9, 1), (1, 1), (9, 1)),
    "one row": ((1, 1), (1, 9), (1, 9)),
    "one pair": ((1, 1), (1, 1), (1, 1)),
    "positions": ((3, 1, 2, 1, 4, 1), (1, 3, 1, 2, 1, 5), (3, 3, 2, 2, 4, 5)),
    "positions, one input": ((3, 1, 4, 1, 1, 1), (1, 3, 1, 4, 1, 1), (3, 3, 4, 4, 1, 1)),
    "positions, one column": ((3, 1, 4, 1, 6, 1), (1, 3, 1, 4, 1, 1), (3, 3, 4, 4, 6, 1)),
    "equal positions": ((3, 4, 5, 1), (3, 4, 1, 6), (3, 4, 5, 6)),
    "inputs with themselves": ((3, 1, 8), (1, 3, 8), (3, 3, 8)),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout: str, dtype: str, loops: str) -> None:
    """Variances meet the covariances that broadcasting says, whatever axes they have."""
    rng = np.random.default_rng(1)
    shapes = LAYOUTS[layout]
    a, b = (rng.uniform(0.5, 2, shape).astype(dtype) for shape in shapes[:2])
    c = (rng.uniform(-0.9, 0.9, shapes[2]) * np.sqrt(a * b)).astype(dtype)
    for name in ("relu", "gelu"):
        out = {order: np.full_like(c, np.nan) for order in (0, 1)}
        rule_of(ACTIVATIONS[name], loops)(a, b, c, out)
        listed = [np.broadcast_to(one, c.shape).ravel() for one in (a, b, c)]
        for k, pair in enumerate(zip(*listed)):
            expected = exact(name, *pair)
            for order in (0, 1):
                tolerance = 40 * float(np.finfo(dtype).eps)
                assert float(out[order].ravel()[k]) == pytest.approx(float(expected[order]), abs=tolerance)


def test_parts_of_larger_arrays(loops: str) -> None:
    """Covariances and targets with strides, and one order alone."""
    K = gram_of(40)
    a = np.diagonal(K)
    whole = {order: np.empty_like(K) for order in (0, 1)}
    rule = rule_of(ACTIVATIONS["relu"], loops)
    rule(a[:, None], a[None], K, whole)
    for order in (0, 1):
        part = np.full((80, 80), np.nan)
        rule(a[3:9, None], a[None, 10:30:2], K[3:9, 10:30:2], {order: part[6:18:2, 20:60:4]})
        np.testing.assert_allclose(part[6:18:2, 20:60:4], whole[order][3:9, 10:30:2], rtol=1e-13)
        assert np.isnan(part).sum() == part.size - 60


def test_variances_whose_products_are_no_floats(loops: str) -> None:
    """Numpy's rule takes roots before it multiplies; the one in one pass leaves such pairs to it."""
    for scale in (1e-200, 1e160):
        a = scale * np.array([1.0, 2.0, 3.0])
        c = 0.5 * np.sqrt(a)[:, None] * np.sqrt(a)
        out = {order: np.empty((3, 3)) for order in (0, 1)}
        rule_of(ACTIVATIONS["relu"], loops)(a[:, None], a[None], c, out)
        np.testing.assert_allclose(out[1], 1 / 3, rtol=1e-13)


def test_what_is_not_a_number_stays_visible(loops: str) -> None:
    for name in ("relu", "erf", "gelu", "sin"):
        for wrong in (0, 1, 2) if loops == "numba" else (2,):
            out = {order: np.zeros((1, 1)) for order in (0, 1)}
            one = [np.full((1, 1), np.nan if wrong == k else 0.5) for k in range(3)]
            with np.errstate(all="ignore"):
                rule_of(ACTIVATIONS[name], loops)(*one, out)
            assert all(np.isnan(values).all() for values in out.values()), (name, wrong)


def gram_of(count: int) -> np.ndarray:
    X = np.random.default_rng(2).standard_normal((count, 50))
    X[count // 2] = X[0]
    X[count // 3] = 0.0
    K = X @ X.T / 50
    return np.asarray((K + K.T) / 2)


class TestLargeJobs:
    """`gram` of more pairs than numba is loaded for."""

    @pytest.fixture(autouse=True)
    def every_job_is_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("numba")
        monkeypatch.setattr(acceleration, "ENOUGH_PAIRS", 0)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    @pytest.mark.parametrize("name", ["relu", "perceptron", "erf", "gelu", "sin", "cos"])
    def test_both_loops_agree(self, name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
        K = gram_of(230).astype(dtype)
        products = [(name, name), *([((name, 1), (name, 1))] if name != "perceptron" else [])]
        by_numba = gram(products, K)
        monkeypatch.setattr(acceleration, "ENOUGH_PAIRS", np.inf)
        by_numpy = gram(products, K)
        assert isinstance(by_numba, list)
        assert isinstance(by_numpy, list)
        for one, other in zip(by_numba, by_numpy, strict=True):
            assert (one.rule, other.rule) == ("closed form, by numba", "closed form")
            scale = np.abs(other.value).max()
            np.testing.assert_allclose(one.value, other.value, rtol=0, atol=40 * np.finfo(dtype).eps * scale)
            np.testing.assert_allclose(one.error, other.error, rtol=1e-3)

    def test_no_pairs(self) -> None:
        out = {0: np.empty((3, 0))}
        tile_rule(activation("relu"), compiled=True)(np.ones((3, 1)), np.ones((1, 0)), np.ones((3, 0)), out)

    def test_equal_inputs_are_equal_to_the_last_digit(self) -> None:
        for name in ("relu", "erf", "gelu"):
            K = gram_of(230)
            K[115], K[:, 115] = K[0], K[:, 0]  # what a matrix product rounds
            found = gram(name, K)
            assert not isinstance(found, list)
            np.testing.assert_array_equal(found.value, found.value.T)
            others = np.delete(np.arange(230), [0, 115])
            np.testing.assert_array_equal(found.value[115, others], found.value[0, others])
            np.testing.assert_allclose(found.value[115, 0], found.value[0, 0], rtol=4e-16)

    @pytest.mark.parametrize("dtype", ["float64", "float32"])
    def test_what_is_no_covariance_is_refused(self, dtype: str) -> None:
        K = gram_of(230).astype(dtype)
        check_gram(K)
        for i, j in ((5, 200), (200, 5), (229, 228), (131, 130), (100, 99)):
            for wrong, words in ((0.01, "not symmetric"), (np.nan, "finite"), (np.inf, "finite")):
                broken = K.copy()
                broken[i, j] += wrong
                with pytest.raises(InputError, match=words):
                    check_gram(broken)
            broken = K.copy()
            broken[i, j] = broken[j, i] = 1.01 * np.sqrt(K[i, i] * K[j, j])
            with pytest.raises(InputError, match="positive semidefinite"):
                check_gram(broken)


class TestAccelerator:
    """What is used is said by name."""

    @pytest.fixture(autouse=True)
    def forgotten(self) -> Any:
        acceleration.forget()
        yield
        acceleration.forget()

    def test_small_jobs_are_left_to_numpy(self) -> None:
        assert not acceleration.accelerates(acceleration.ENOUGH_PAIRS - 1)
        assert acceleration.accelerator(3) == "numpy, for so few pairs"

    def test_numba_is_named_with_its_version(self) -> None:
        numba = pytest.importorskip("numba")
        assert acceleration.accelerates(1e6)
        assert acceleration.accelerator(1e6) == f"numba {numba.__version__}"

    def test_without_numba(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        monkeypatch.setattr(acceleration, "ENOUGH_PAIRS", 0)
        assert not acceleration.accelerates(1e6)
        said = acceleration.accelerator(1e6)
        assert said.startswith("numpy, because numba is not installed")
        assert "pip install 'foretrain[fast]'" in said
        found = gram("relu", np.eye(3))
        assert not isinstance(found, list)
        assert found.rule == "closed form"

    def test_numba_that_cannot_be_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(name: str) -> None:
            raise ImportError("Numba needs NumPy 1.0 or less")

        monkeypatch.setattr("importlib.import_module", refuse)
        assert not acceleration.accelerates(1e6)
        assert "cannot be imported (Numba needs NumPy 1.0 or less)" in acceleration.accelerator()

    def test_numba_that_is_switched_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("numba")
        monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
        assert not acceleration.accelerates(1e6)
        assert "NUMBA_DISABLE_JIT" in acceleration.accelerator()

    def test_a_cache_that_cannot_be_written(self) -> None:
        """Neither one whose folder is refused, nor one on a full disk."""
        pytest.importorskip("numba")
        script = """
import os, sys
import numpy as np
from foretrain.support import acceleration
acceleration.ENOUGH_PAIRS = 0
if sys.argv[1] == "refused":
    from numba.core import caching
    def refuse(*arguments):
        raise RuntimeError("cannot cache function: no locator available")
    caching.FunctionCache.__init__ = refuse
else:
    from numba.core import caching
    def full(*arguments):
        raise OSError(28, "No space left on device")
    caching.Cache.load_overload = lambda *arguments: None
    caching.Cache.save_overload = full
from foretrain.gaussian import gram
print(gram("relu", np.eye(300)).value[0, 1] * 2 * np.pi)
"""
        for trouble in ("refused", "full"):
            command = [sys.executable, "-c", script, trouble]
            found = subprocess.run(command, capture_output=True, text=True, check=False)
            assert found.returncode == 0, found.stderr
            assert float(found.stdout) == pytest.approx(1)

    def test_importing_and_small_jobs_do_not_import_numba(self) -> None:
        script = (
            "import sys, numpy as np, foretrain as ft; from foretrain.gaussian import gram; "
            "gram('relu', np.eye(300)); print('numba' in sys.modules)"
        )
        found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == "False"
