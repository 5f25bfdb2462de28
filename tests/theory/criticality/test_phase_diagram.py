"""Phase diagrams against single fixed points, the reference's lines and figure."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.theory.criticality import criticality, susceptibility
from foretrain.theory.criticality.fixed_points import fixed_points, flows_to
from foretrain.theory.criticality.phase_diagram import PHASES, phase_diagram, phase_lines
from foretrain.theory.kernel_functions import KernelFunctions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "C_W", "gamma"),
    [("tanh", 4.0, 0.0), ("gelu", 3.0, 0.0), ("selu", 2.0, 0.6), ("cos", 20.0, 0.0), ("relu", 4.0, 0.3)],
)
def test_the_grid_agrees_with_single_points(name: str, C_W: float, gamma: float) -> None:
    diagram = phase_diagram(name, C_b=(0.0, 0.5), C_W=(0.0, C_W), points=7, gamma=gamma)
    for C_b in diagram["C_b"].values:
        for weight in diagram["C_W"].values:
            here = diagram.sel(C_b=C_b, C_W=weight)
            end = flows_to(name, float(C_b), float(weight), 1.0, gamma)
            assert str(here["phase"].item()) in PHASES
            if np.isinf(end):
                assert here["phase"] == "exploding"
                continue
            np.testing.assert_allclose(here["K"], end, rtol=1e-7, atol=1e-12)
            chi = susceptibility(name, end, weight, gamma)
            np.testing.assert_allclose(here["chi_parallel"], chi.parallel, rtol=1e-6, atol=1e-8)
            np.testing.assert_allclose(here["chi_perpendicular"], chi.perpendicular, rtol=1e-6)
            assert (here["phase"] == "chaotic") == (chi.perpendicular > 1)


def test_vanishing_and_chaos_of_tanh_without_biases() -> None:
    diagram = phase_diagram("tanh", C_b=(0.0, 1.0), C_W=(0.5, 1.5), points=3)
    assert list(diagram["phase"].sel(C_b=0.0).values) == ["vanishing", "critical", "chaotic"]
    assert diagram["phase"].sel(C_b=1.0, C_W=1.5) == "ordered"
    assert diagram["depth_perpendicular"].sel(C_b=0.0, C_W=0.5) == pytest.approx(1 / np.log(2))


def test_the_line_of_nearby_inputs_is_an_edge_and_critical_only_where_both_lines_meet() -> None:
    """The words of the diagram are those of single fixed points."""
    line = phase_lines("tanh", [0.5]).sel(line="perpendicular", K=0.5)
    C_b, C_W = float(line["C_b"]), float(line["C_W"])
    diagram = phase_diagram("tanh", (0.0, C_b), (0.0, C_W), points=2, start=0.5)
    assert diagram["phase"].values[1, 1] == "edge"
    assert [point.phase for point in fixed_points("tanh", C_b, C_W)] == ["edge"]
    relu = phase_diagram("relu", (0.0, 1.0), (1.0, 3.0), points=3)
    assert list(relu["phase"].sel(C_W=2.0).values) == ["critical", "exploding", "exploding"]


def test_two_starts_may_end_in_two_phases() -> None:
    """GELU between its lines has a stable and an unstable point: small kernels stay, large ones explode."""
    ends = {
        start: phase_diagram("gelu", (0.0, 0.05), (2.0, 2.2), 2, start=start)["phase"]
        .sel(C_b=0.05, C_W=2.2)
        .item()
        for start in (0.01, 90.0)
    }
    assert ends == {0.01: "ordered", 90.0: "exploding"}
    assert [p.stability for p in fixed_points("gelu", 0.05, 2.2)] == ["stable", "unstable"]


def test_lines_of_tanh_meet_at_the_critical_point() -> None:
    """Fig. 5.1: the lines meet at (C_W, C_b) = (1, 0); the ratio of their C_W is that of (5.73)."""
    lines = phase_lines("tanh", [0.0, 0.1, 1.0, 3.0])
    np.testing.assert_allclose(lines["C_W"].sel(K=0.0), 1.0, rtol=1e-14)
    np.testing.assert_allclose(lines["C_b"].sel(K=0.0), 0.0, atol=1e-14)
    ratio = lines["C_W"].sel(line="parallel") / lines["C_W"].sel(line="perpendicular")
    np.testing.assert_allclose(ratio.values[1:], [1.185962, 2.554504, 5.316211], rtol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, -0.7])
def test_on_the_lines_one_susceptibility_is_one(gamma: float) -> None:
    K = np.array([0.2, 1.0, 3.5615528128088303])
    lines, g = phase_lines("gelu", K, gamma), KernelFunctions("gelu").at(K).square
    for line in ("perpendicular", "parallel"):
        C_W, C_b = (lines[key].sel(line=line).values for key in ("C_W", "C_b"))
        np.testing.assert_allclose(getattr(susceptibility("gelu", K, C_W, gamma), line), 1.0, rtol=1e-9)
        np.testing.assert_allclose(C_b + C_W * g + gamma**2 * K, K, rtol=1e-10)
    found = criticality("gelu", gamma)
    np.testing.assert_allclose(lines["C_W"].values[:, -1], found.C_W, rtol=1e-9)
    np.testing.assert_allclose(lines["C_b"].values[:, -1], found.C_b, rtol=1e-8)


def test_lines_end_where_a_susceptibility_cannot_be_one() -> None:
    assert phase_lines("cos", [1.0])["C_W"].isnull().values.ravel().tolist() == [False, True]


def test_critical_points_come_along() -> None:
    diagram = phase_diagram("gelu", points=2)
    assert diagram["critical_kind"].values.tolist() == ["half-stable", "K*=0"]
    np.testing.assert_allclose(diagram["critical_C_W"], [1.9830582574, 4.0], rtol=1e-10)
    assert phase_diagram("sigmoid", points=2)["critical_kind"].size == 0
    assert np.isnan(phase_diagram("relu", points=2)["critical_K"].item())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"C_b": (0.5, 0.1)}, "C_b runs from 0.5 to 0.1"),
        ({"C_W": (-1.0, 1.0)}, "C_W runs from -1"),
        ({"points": 1}, "points is 1"),
        ({"start": 0.0}, "start is 0"),
        ({"gamma": 1.0}, "gamma is 1"),
    ],
)
def test_bad_input(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        phase_diagram("tanh", **changes)
    with pytest.raises(InputError, match="K must be"):
        phase_lines("tanh", [-1.0])
