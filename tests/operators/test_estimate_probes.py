"""What all estimators are made of: probes, sums in double precision, orthonormal rows, quadratures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from spectral_operators import Matrix, Spectral, random_matrix, spectrum

from foretrain.operators.estimators import (
    cosine,
    effective_rank,
    frobenius_norm,
    inner,
    spectral_density,
    top_modes,
    trace,
)
from foretrain.operators.estimators.krylov import lanczos
from foretrain.operators.estimators.probes import Counted, Source, dots, gram, norms, orthonormal_rows

LARGE = 20_001  # more than one chunk of a sum, and a part of one


def test_sums_are_made_in_double_precision() -> None:
    first = 1000 + random_matrix(3, LARGE).float()
    second = first + random_matrix(3, LARGE, seed=1).float()
    truth = first.double() @ second.double().T
    torch.testing.assert_close(gram(first, second), truth, rtol=3e-7, atol=0)
    torch.testing.assert_close(dots(first, second), truth.diagonal(), rtol=3e-7, atol=0)
    torch.testing.assert_close(norms(first), first.double().norm(dim=1), rtol=3e-7, atol=0)


@pytest.mark.parametrize("size", [5, LARGE])
def test_sums_of_empty_and_of_strided_blocks(size: int) -> None:
    rows, none = random_matrix(4, size), random_matrix(0, size)
    assert gram(rows, none).shape == (4, 0)
    assert gram(none, none).shape == (0, 0)
    assert dots(none, none).shape == (0,)
    strided = random_matrix(size, 4).T
    torch.testing.assert_close(gram(strided, rows), strided @ rows.T)


@pytest.mark.parametrize("kind", ["signs", "normals", "sphere"])
def test_probes_come_in_one_order_whatever_the_blocks(kind: str) -> None:
    operator = Spectral(spectrum("power 1", 300).float())
    together = getattr(Source(operator, 3), kind)(5)
    source = Source(operator, 3)
    parts = torch.cat([getattr(source, kind)(count) for count in (2, 0, 3)])
    assert torch.equal(together, parts)
    assert together.dtype == torch.float32


@pytest.mark.slow
def test_probes_have_unit_covariance() -> None:
    operator = Spectral(spectrum("power 1", 4))
    for kind in ("signs", "normals", "sphere"):
        drawn = getattr(Source(operator, 0), kind)(40_000)
        torch.testing.assert_close(
            drawn.T @ drawn / len(drawn), torch.eye(4, dtype=torch.float64), atol=0.04, rtol=0
        )
    sphere = Source(operator, 0).sphere(100)
    torch.testing.assert_close(sphere.norm(dim=1), torch.full((100,), 2.0, dtype=torch.float64))


def test_orthonormal_rows_complete_a_basis_also_where_rows_are_dependent() -> None:
    basis = torch.linalg.qr(random_matrix(50, 3))[0].T
    rows = torch.cat([basis[:1] * 2, random_matrix(2, 50, seed=1), random_matrix(1, 50, seed=1)])
    whole = torch.cat([basis, orthonormal_rows(rows, basis)])
    torch.testing.assert_close(whole @ whole.T, torch.eye(7, dtype=torch.float64))
    torch.testing.assert_close(rows @ whole.T @ whole, rows)


def test_quadratures_are_exact_for_polynomials() -> None:
    values = spectrum("stretched", 200)
    operator = Spectral(values)
    probes = Source(operator, 1).sphere(3)
    nodes, weights = lanczos(operator.apply, probes, 6).quadrature(6)
    moved = probes
    for power in range(1, 12):
        moved = operator.apply(moved)
        truth = (probes * moved).sum(1) / 200
        np.testing.assert_allclose((weights * nodes**power).sum(1), truth, rtol=1e-9)


def test_quadratures_end_where_the_chain_ends() -> None:
    operator = Spectral(2 * spectrum("flat", 30))
    nodes, weights = lanczos(operator.apply, Source(operator, 0).sphere(2), 5).quadrature(5)
    np.testing.assert_allclose((weights * nodes).sum(1), 2.0, rtol=1e-12)
    np.testing.assert_allclose(weights.sum(1), 1.0, rtol=1e-12)


def test_every_product_is_counted() -> None:
    operator = Spectral(spectrum("power 1", 300))
    counted = Counted(operator)
    counted.apply(counted.apply_adjoint(torch.ones(5, 300, dtype=torch.float64)))
    assert counted.products == operator.calls == 10


@pytest.mark.parametrize("method", ["hutchinson", "hutch++", "xtrace", "xnystrace"])
def test_traces_of_operators_that_sums_are_cut_for(method: str) -> None:
    values = spectrum("power 1", LARGE)
    estimate = trace(Spectral(values.float()), method=method, accuracy=0.05)
    assert abs(estimate.value - float(values.sum())) <= 4 * estimate.standard_error


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("size", [100, 600])
@pytest.mark.parametrize(
    ("dtype", "exponent"),
    [(torch.float32, exponent) for exponent in (-100, -70, 63, 110)]
    + [(torch.float64, exponent) for exponent in (-960, -330, 500, 960)],
)
def test_answers_do_not_depend_on_the_scale(dtype: torch.dtype, exponent: int, size: int) -> None:
    scale, values = 2.0**exponent, spectrum("power 1", size).to(dtype)
    plain, scaled = Spectral(values), Spectral(values * scale)
    plain_general, scaled_general = Matrix(torch.diag(values)), Matrix(torch.diag(values * scale))
    for question in (trace, frobenius_norm):
        options = {"products": 80, "accuracy": 0.05}
        assert question(scaled, **options).value / scale == pytest.approx(question(plain, **options).value)
    for kind in ("participation", "entropy"):
        assert effective_rank(scaled, kind=kind).value == pytest.approx(
            effective_rank(plain, kind=kind).value
        )
    assert cosine(scaled, scaled).value == pytest.approx(1)
    product = inner(scaled, plain, accuracy=0.05).value
    assert product / scale == pytest.approx(inner(plain, plain, accuracy=0.05).value)
    for one, other in ((scaled, plain), (scaled_general, plain_general)):
        found, truth = top_modes(one, 2), top_modes(other, 2)
        torch.testing.assert_close(found.values / scale, truth.values)
        curve, reference = spectral_density(one), spectral_density(other)
        np.testing.assert_allclose(curve.points / scale, reference.points, rtol=1e-5)
        np.testing.assert_allclose(curve.standard_error * scale, reference.standard_error, rtol=1e-3)
        np.testing.assert_allclose(curve.count_above, reference.count_above, rtol=1e-5, atol=1e-5)
