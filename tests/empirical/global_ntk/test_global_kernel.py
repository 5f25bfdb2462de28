"""The operator on a model's states: its parts, reductions, and what is read off it, against dense forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.global_ntk import GlobalNTK, global_ntk, solve
from foretrain.empirical.global_ntk.reduced_views import reduced_view
from foretrain.support.errors import InputError, NotSupportedError

DOUBLE = torch.float64


class Readout(nn.Module):
    """A recurrent layer between an optional encoder and a linear readout."""

    def __init__(self, kind: type[nn.RNNBase] = nn.GRU, encoded: bool = False) -> None:
        super().__init__()
        self.encoder = nn.Linear(2, 2) if encoded else nn.Identity()
        self.cell, self.readout = kind(2, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.cell(self.encoder(x))[0])


def close(found: Tensor, expected: Tensor) -> bool:
    return float((found - expected).abs().max()) <= 1e-10 * float(expected.abs().max().clamp_min(1))


@pytest.fixture
def x() -> Tensor:
    torch.manual_seed(0)
    return torch.randn(3, 5, 2, dtype=DOUBLE)


@pytest.fixture(params=[nn.RNN, nn.GRU, nn.LSTM])
def kernel(request: pytest.FixtureRequest, x: Tensor) -> GlobalNTK:
    torch.manual_seed(1)
    return global_ntk(request.param(2, 4, batch_first=True).to(DOUBLE), x)


def test_the_parts_agree(kernel: GlobalNTK) -> None:
    D, J, P, K = kernel.full.dense(), kernel.J.dense(), kernel.P.dense(), kernel.K.dense()
    assert close(J @ J.T, D)
    assert close(P @ K @ P.T, D)
    chosen = kernel.size
    assert close(kernel.dense(), D[:chosen, :chosen])  # hidden comes first
    assert close(kernel.core.dense(), kernel.dense())
    assert close(sum(term.dense() for term in kernel.terms.values()), kernel.dense())
    assert kernel.without_site == ()
    for operator in (kernel, kernel.P, kernel.K, kernel.J, kernel.core):
        operator.check()


def test_reductions_are_true_partial_traces(kernel: GlobalNTK) -> None:
    D = kernel.dense().view(3, 5, 4, 3, 5, 4)
    assert close(kernel.temporal().dense(), torch.einsum("atubsu->atbs", D).reshape(15, 15) / 4)
    assert close(kernel.spatial().dense(), torch.einsum("atuatv->uv", D) / 15)
    assert close(kernel.partial_trace(over=("batch", "unit")).dense(), torch.einsum("atuasu->ts", D))
    everything = kernel.partial_trace(over=("batch", "time", "unit"))
    assert float(everything) == pytest.approx(float(kernel.dense().trace()), rel=1e-10)


def test_the_loss_decrease_splits_by_parameter(kernel: GlobalNTK) -> None:
    err = torch.randn(3, 5, 4, dtype=DOUBLE)
    found = kernel.loss_decrease(err)
    assert found.total == pytest.approx(float(err.flatten() @ kernel.dense() @ err.flatten()), rel=1e-10)
    J = kernel.J.dense()[: kernel.size]
    start = 0
    for name, value in kernel.dynamics.parameters.items():
        part = J[:, start : start + value.numel()].T @ err.flatten()
        assert found.by_parameter[name] == pytest.approx(float(part @ part), rel=1e-10)
        start += value.numel()
    assert sum(found.shares.values()) == pytest.approx(1)
    # Cor. 2: |(V* (x) I) adj|^2 with adj at the products, site by site
    flat = kernel._embedded(err.reshape(1, -1))
    sites = 0.0
    for site in kernel.sites.values():
        adjoint = site.propagate_adjoint(flat).view(len(site.inputs), -1)
        sites += float((site.inputs.T @ adjoint).square().sum())
    assert found.total == pytest.approx(sites, rel=1e-10)


def test_the_loss_falls_as_predicted() -> None:
    torch.manual_seed(0)
    model, x, target = nn.GRU(2, 4, batch_first=True).to(DOUBLE), torch.randn(3, 5, 2, dtype=DOUBLE), 0.3
    kernel = global_ntk(model, x)
    before = 0.5 * (model(x)[0] - target).square().sum()
    predicted = kernel.loss_decrease(kernel.states - target)
    change = -kernel.matvec(kernel.states - target)
    gradients = torch.autograd.grad(before, list(model.parameters()))
    rate = 1e-6
    with torch.no_grad():
        for value, gradient in zip(model.parameters(), gradients):
            value -= rate * gradient
        after = 0.5 * (model(x)[0] - target).square().sum()
        moved = (model(x)[0] - kernel.states) / rate
    assert float(before.detach() - after) / rate == pytest.approx(predicted.total, rel=1e-3)
    torch.testing.assert_close(moved, change, rtol=1e-3, atol=1e-3)


def test_adjoint_state(kernel: GlobalNTK) -> None:
    err = torch.randn(3, 5, 4, dtype=DOUBLE)
    found = kernel.adjoint_state(err)
    flat = found if isinstance(found, Tensor) else torch.cat([part.flatten() for part in found.values()])
    whole = kernel._embedded(err.reshape(1, -1))[0]
    assert close(flat.flatten(), kernel.P.dense().T @ whole)


def test_alignment(x: Tensor) -> None:
    torch.manual_seed(0)
    kernel = global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), x)
    target, readout = torch.randn(3, 5, 2, dtype=DOUBLE), torch.randn(2, 4, dtype=DOUBLE)
    left, _, right = torch.linalg.svd(target.view(15, 2), full_matrices=False)
    D = kernel.dense()
    mean = D.trace() / len(D)
    found = kernel.alignment(target, components="target")
    temporal = kernel.temporal().dense()
    u = left[:, 0]
    assert found.rayleigh[0] == pytest.approx(float(u @ temporal @ u / mean), rel=1e-8)
    assert found.cosine[0] == pytest.approx(float(u @ temporal @ u / (temporal @ u).norm()), rel=1e-8)
    V = kernel.site_rows()
    assert found.proxy_rayleigh[0] == pytest.approx(
        float((V.T @ u).square().sum() / V.square().sum() * 15), rel=1e-8
    )
    through = kernel.alignment(target, readout, components="target")
    mode = torch.outer(left[:, 1], right[1] @ readout).flatten()
    assert through.rayleigh[1] == pytest.approx(float(mode @ D @ mode / (mode @ mode) / mean), rel=1e-8)
    assert list(found.to_dataset()["mode"]) == [1, 2]
    with pytest.raises(InputError, match="begin with"):
        kernel.alignment(torch.randn(4, 5, 2))
    with pytest.raises(InputError, match="readout="):
        kernel.alignment(target, torch.randn(3, 4))


def test_alignment_by_trial_with_a_mask_and_readouts_of_all_kinds(x: Tensor) -> None:
    """Against dense algebra: weights go to both sides of the kernel, and to the target."""
    torch.manual_seed(0)
    kernel, head = global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), x), nn.Linear(4, 2).to(DOUBLE)
    target, mask = torch.randn(3, 5, 2, dtype=DOUBLE), torch.rand(3, 5, dtype=DOUBLE)
    mask[0, :3] = 0
    counted = torch.where(mask[..., None] > 0, target, torch.nan)  # what does not count may be missing
    found = kernel.alignment(counted, head, modes=1, mask=mask)
    assert found.modes == ("mean", "deviation")
    mean = (mask[..., None] * target).sum(0) / mask.sum(0)[:, None]
    D, root = kernel.dense(), mask.sqrt()[..., None]
    weights = root.expand(3, 5, 4).flatten()
    for place, part in enumerate((mean.expand(3, 5, 2), target - mean)):
        left, values, right = torch.linalg.svd((root * part).flatten(0, 1), full_matrices=False)
        mode = weights * torch.outer(left[:, 0], right[0] @ head.weight.detach()).flatten()
        assert found.singular_values[place] == pytest.approx(float(values[0]))
        expected = mode @ D @ mode / (mode @ mode) / (D.trace() / len(D))
        assert found.rayleigh[place] == pytest.approx(float(expected), rel=1e-8)
        u, temporal = root[..., 0].flatten() * left[:, 0], kernel.temporal().dense()
        alone = kernel.alignment(target, modes=1, mask=mask)
        slow = float(u @ temporal @ u / (D.trace() / len(D)))
        assert alone.rayleigh[place] == pytest.approx(slow, rel=1e-8)
    whole = nn.ModuleDict({"head": head})
    matrix = kernel.alignment(target, head.weight, modes=1, mask=mask)
    named = kernel.alignment(target, "head", modes=1, mask=mask, model=whole)
    assert found.rayleigh == pytest.approx(matrix.rayleigh)
    assert found.rayleigh == pytest.approx(named.rayleigh)
    for readout, words in (
        ("head", "model="),
        (nn.Tanh(), "not a linear layer"),
        ("haed", "did you mean 'head'"),
    ):
        with pytest.raises(InputError, match=words):
            kernel.alignment(target, readout, model=None if readout == "head" else whole)


def test_modes_of_equal_size_lie_along_outputs(x: Tensor) -> None:
    """Otherwise rounding would choose which rotation of them is told."""
    torch.manual_seed(0)
    kernel = global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), x)
    target = torch.linalg.qr(torch.randn(15, 2, dtype=DOUBLE)).Q.view(3, 5, 2)
    found = kernel.alignment(target, components="target")
    temporal, mean = kernel.temporal().dense(), kernel.dense().trace() / kernel.size
    for mode in range(2):
        u = target.reshape(15, 2)[:, mode]
        assert found.rayleigh[mode] == pytest.approx(float(u @ temporal @ u / mean), rel=1e-8)


def test_alignment_by_random_signs_covers_the_exact_value() -> None:
    torch.manual_seed(0)
    x, target = torch.randn(2, 4, 2, dtype=DOUBLE), torch.randn(2, 4, 1, dtype=DOUBLE)
    kernel = global_ntk(nn.RNN(2, 200, batch_first=True).to(DOUBLE), x)
    found = kernel.alignment(target, accuracy=0.05, modes=1, components="target")
    assert 0 < found.standard_error[0] < 0.06 * found.rayleigh[0]
    u = target.flatten() / target.norm()
    exact = (
        u
        @ kernel.partial_trace(over="unit", normalize=True).dense()
        @ u
        / (kernel.trace(method="exact").value / kernel.size)
    )
    assert abs(found.rayleigh[0] - float(exact)) < 4 * found.standard_error[0]


def test_rank_bounds(kernel: GlobalNTK) -> None:
    found = kernel.rank_bounds(torch.randn(3, 5, 4, dtype=DOUBLE))
    assert found.holds
    assert found.change <= min(found.temporal, found.spatial)
    assert found.sites == torch.linalg.matrix_rank(kernel.site_rows())
    assert not found.separable


def without_recurrence(nonlinearity: str, x: Tensor) -> GlobalNTK:
    torch.manual_seed(0)
    model = nn.RNN(1, 6, batch_first=True, bias=False, nonlinearity=nonlinearity).to(DOUBLE)
    with torch.no_grad():
        model.weight_hh_l0.zero_()
        model.weight_ih_l0.abs_()
    return global_ntk(model, x, parameters=["weight_ih_l0"])


def test_rank_of_the_sites_bounds_a_separable_change() -> None:
    """Without recurrence and with all units in the linear part of a ReLU the change is in the span of the rows."""
    x = torch.rand(3, 4, 1, dtype=DOUBLE)
    found = without_recurrence("relu", x).rank_bounds(torch.randn(3, 4, 6, dtype=DOUBLE))
    assert found.separable
    assert found.holds
    assert found.change == found.sites == found.columns == 1


def test_a_curved_activation_lifts_the_rank_above_that_of_the_sites() -> None:
    x = 2 * torch.randn(3, 4, 1, dtype=DOUBLE)
    found = without_recurrence("tanh", x).rank_bounds(torch.randn(3, 4, 6, dtype=DOUBLE))
    assert not found.separable
    assert found.change > found.sites == 1
    assert found.holds


def test_an_error_that_the_kernel_does_not_see_changes_nothing() -> None:
    x = torch.rand(3, 4, 1, dtype=DOUBLE)
    x[0, 0] = 0
    blind = torch.zeros(3, 4, 6, dtype=DOUBLE)
    blind[0, 0] = 1
    found = without_recurrence("relu", x).rank_bounds(blind)
    assert found.change == 0
    assert found.holds


def test_the_concatenated_core_is_named_apart_and_differs(x: Tensor) -> None:
    torch.manual_seed(0)
    kernel = global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), x)
    V = kernel.site_rows()
    assert close(kernel.concatenated_core.dense(), torch.kron(V @ V.T, torch.eye(4, dtype=DOUBLE)))
    assert float(kernel.cosine(kernel.concatenated_core)) < 0.99


def test_a_model_with_a_readout_has_the_states_of_its_layer(x: Tensor) -> None:
    model = Readout().to(DOUBLE)
    kernel = global_ntk(model, x)
    alone = global_ntk(model.cell, x)
    assert close(kernel.dense(), alone.dense())
    assert list(kernel.dynamics.parameters) == [f"cell.{name}" for name, _ in model.cell.named_parameters()]
    torch.testing.assert_close(kernel.states, model.cell(x)[0].detach())


def test_parameters_before_the_layer_count_or_are_left_out(x: Tensor) -> None:
    model = Readout(encoded=True).to(DOUBLE)
    with pytest.raises(NotSupportedError, match=r"'encoder\.weight' acts before"):
        global_ntk(model, x, "hidden")
    whole = global_ntk(model, x)
    pulled = whole.dynamics.pull(torch.eye(whole.size, dtype=DOUBLE))
    assert [name for name in pulled if "encoder" in name]
    expected = sum(rows.flatten(1) @ rows.flatten(1).T for rows in pulled.values())
    assert close(whole.dense(), expected)
    assert close(whole.P.dense(), global_ntk(model.cell, model.encoder(x).detach()).P.dense())
    kernel = global_ntk(model, x, parameters=["cell.*"])
    assert close(kernel.dense(), global_ntk(model.cell, model.encoder(x).detach()).dense())
    for value in model.encoder.parameters():
        value.requires_grad_(False)
    assert close(global_ntk(model, x).dense(), kernel.dense())


def test_frozen_parameters_are_left_out(x: Tensor) -> None:
    model = nn.GRU(2, 4, batch_first=True).to(DOUBLE)
    whole = global_ntk(model, x)
    model.weight_hh_l0.requires_grad_(False)
    part = global_ntk(model, x)
    assert "weight_hh_l0" not in part.dynamics.parameters
    named = global_ntk(model.requires_grad_(True), x, parameters=lambda name, _: name == "weight_hh_l0")
    assert close(part.dense() + named.dense(), whole.dense())


def test_states_of_an_lstm(x: Tensor) -> None:
    model = nn.LSTM(2, 4, batch_first=True).to(DOUBLE)
    both = global_ntk(model, x, states=("hidden", "cell"))
    assert both.domain.names == ("hidden", "cell")
    assert close(global_ntk(model, x, states="cell").dense(), both.dense()[60:, 60:])
    with pytest.raises(InputError, match="hiden"):
        global_ntk(model, x, states=("hidden", "hiden"))


def test_what_cannot_be_is_said_in_one_sentence(x: Tensor) -> None:
    with pytest.raises(InputError, match="one state, 'hidden'"):
        global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), x, states=("hidden", "cell"))
    with pytest.raises(InputError, match="a batch"):
        global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), x[0])
    with pytest.raises(InputError, match=r"nn\.Module"):
        global_ntk(lambda h: h, x)
    with pytest.raises(NotSupportedError, match="at random"):
        global_ntk(nn.GRU(2, 4, num_layers=2, dropout=0.5, batch_first=True).to(DOUBLE), x)


def test_public_name_and_repr() -> None:
    kernel = ft.global_ntk(nn.GRU(2, 5, batch_first=True), torch.randn(3, 4, 2))
    assert repr(kernel).startswith(
        "GlobalNTK on (batch 3, time 4, unit 5): 60 states, 4 parameters, float32\n"
    )
    assert list(kernel.sites) == ["weight_hh_l0", "weight_ih_l0"]
    assert "weight_hh_l0, bias_hh_l0" in repr(kernel.sites["weight_hh_l0"])


class Loop(nn.Module):
    """A leaky network in continuous time, by Euler steps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.given, self.step = nn.Linear(4, 4), nn.Linear(2, 4, bias=False), nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 4)
        for t in range(x.shape[1]):
            state = self.step(0.8 * state + 0.2 * torch.tanh(self.inner(state) + self.given(x[:, t])))
        return state


MODELS = {
    "loop": (Loop, (3, 4, 2), ("step",)),
    "layers": (lambda: nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3)), (3, 2), ("0", "1", "2")),
    "output": (lambda: nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 3)), (3, 2), None),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(4, 6, 2, groups=2), nn.Tanh(), nn.Conv2d(6, 2, 2)),
        (2, 4, 4, 4),
        ("1", "2"),
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        (2, 3, 4),
        ("self_attn", "linear1", ""),
    ),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("name", MODELS)
def test_parts_of_any_module_agree(name: str) -> None:
    torch.manual_seed(0)
    make, shape, states = MODELS[name]
    kernel = global_ntk(make().to(DOUBLE), torch.randn(*shape, dtype=DOUBLE), states)
    D, J, P, K = kernel.dense(), kernel.J.dense(), kernel.P.dense(), kernel.K.dense()
    assert close(J @ J.T, D)
    assert close(P @ K @ P.T, D)
    assert close(kernel.core.dense(), D)
    assert close(sum(term.dense() for term in kernel.terms.values()), D)
    flat = torch.randn(kernel.size, dtype=DOUBLE)
    assert kernel.loss_decrease(flat).total == pytest.approx(float(flat @ D @ flat), rel=1e-10)


def test_an_equilibrium() -> None:
    class Constraint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.given = nn.Linear(4, 4), nn.Linear(2, 4)

        def forward(self, h: Tensor, x: Tensor) -> Tensor:
            return h - torch.tanh(0.5 * self.inner(h) + self.given(x))

    torch.manual_seed(0)
    constraint, x = Constraint().to(DOUBLE), torch.randn(3, 2, dtype=DOUBLE)
    state = solve(constraint, torch.zeros(3, 4, dtype=DOUBLE), x)
    kernel = global_ntk(constraint, x, equilibrium=state)
    assert close(kernel.P.dense() @ kernel.K.dense() @ kernel.P.dense().T, kernel.dense())
    assert close(kernel.core.dense(), kernel.dense())
    # a real small step of a parameter moves the equilibrium as J says
    step = torch.randn_like(constraint.inner.weight) * 1e-6
    with torch.no_grad():
        constraint.inner.weight += step
    moved = solve(constraint, state, x) - state
    tangent = {name: torch.zeros_like(value) for name, value in kernel.dynamics.parameters.items()}
    tangent["inner.weight"] = step
    predicted = kernel.J.apply(torch.cat([part.flatten() for part in tangent.values()])[None])
    torch.testing.assert_close(moved.detach().flatten(), predicted[0], rtol=1e-4, atol=1e-10)


def brute_force(model: nn.Module, states: object) -> Tensor:
    """J J* by one backward pass for each state."""
    rows = []
    for value in states(model).flatten():
        found = torch.autograd.grad(value, list(model.parameters()), retain_graph=True, allow_unused=True)
        parts = [torch.zeros_like(p) if g is None else g for p, g in zip(model.parameters(), found)]
        rows.append(torch.cat([part.flatten() for part in parts]))
    J = torch.stack(rows)
    return J @ J.T


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
@pytest.mark.parametrize("tied", [("weight_ih_l0", "weight_hh_l0"), ("bias_ih_l0", "bias_hh_l0")])
def test_weights_that_are_tied(kind: type[nn.RNNBase], tied: tuple[str, str]) -> None:
    torch.manual_seed(0)
    model, x = kind(3, 3, batch_first=True).to(DOUBLE), torch.randn(2, 4, 3, dtype=DOUBLE)
    setattr(model, tied[1], getattr(model, tied[0]))
    kernel = global_ntk(model, x)
    expected = brute_force(model, lambda m: m(x)[0])
    assert close(kernel.dense(), expected)
    assert close(kernel.core.dense(), expected)
    full = kernel.full.dense()
    assert close(kernel.P.dense() @ kernel.K.dense() @ kernel.P.dense().T, full)
    assert tied[0] in kernel.without_site


def test_weights_that_layers_share() -> None:
    torch.manual_seed(0)
    model = nn.GRU(3, 3, num_layers=2, batch_first=True).to(DOUBLE)
    x = torch.randn(2, 4, 3, dtype=DOUBLE)
    model.weight_hh_l1 = model.weight_hh_l0
    kernel = global_ntk(model, x)
    assert close(kernel.dense(), brute_force(model, lambda m: m(x)[0]))
    assert close(kernel.core.dense(), kernel.dense())


def test_the_kernel_stays_while_training_goes_on(x: Tensor) -> None:
    model = nn.GRU(2, 4, batch_first=True).to(DOUBLE)
    kernel = global_ntk(model, x)
    before = kernel.dense()
    with torch.no_grad():
        for value in model.parameters():
            value += 1
    assert torch.equal(kernel.dense(), before)


def test_inputs_that_cannot_be() -> None:
    gru, x = nn.GRU(2, 4, batch_first=True), torch.randn(3, 5, 2)
    with pytest.raises(InputError, match="nan"):
        global_ntk(gru, x * torch.nan)
    with pytest.raises(InputError, match="ndarray"):
        global_ntk(gru, x.numpy())
    with pytest.raises(InputError, match="names no state"):
        global_ntk(gru, x, 3)
    with pytest.raises(InputError, match="nan"):
        global_ntk(gru, x).alignment(torch.full((3, 5, 2), torch.nan))
    nn.utils.parametrizations.orthogonal(gru, "weight_hh_l0")
    with pytest.raises(NotSupportedError, match="computed from others"):
        global_ntk(gru, x, "hidden")


def test_layers_with_other_matrices_inside_are_read_from_the_graph(x: Tensor) -> None:
    """Projected states, and weights that are computed: against dense Jacobians of the module."""
    torch.manual_seed(0)
    orthogonal = nn.utils.parametrizations.orthogonal(nn.GRU(2, 4, batch_first=True), "weight_hh_l0")
    for model in (nn.LSTM(2, 4, proj_size=3, batch_first=True).to(DOUBLE), orthogonal.to(DOUBLE)):
        kernel = global_ntk(model, x)
        values = {name: value.detach() for name, value in model.named_parameters()}

        def outputs(values: dict[str, Tensor], model: nn.Module = model) -> Tensor:
            found: Tensor = torch.func.functional_call(model, values, x)[0]
            return found.flatten()

        parts = torch.func.jacrev(outputs)(values)
        rows = torch.cat([part.flatten(1) for part in parts.values()], 1)
        assert close(kernel.dense(), rows @ rows.T)
        assert "P = (I - D_h f T)^-1" in kernel.structure


def test_in_inference_mode() -> None:
    models = nn.GRU(2, 4, batch_first=True), nn.Sequential(nn.Linear(2, 3), nn.Tanh())
    with torch.inference_mode():
        x = torch.randn(3, 5, 2)
        assert global_ntk(models[0], x).dense().shape == (60, 60)
        assert global_ntk(models[1], x).dense().shape == (45, 45)


def test_channels_are_the_units_of_convolutions() -> None:
    torch.manual_seed(0)
    line = nn.Sequential(nn.Conv1d(4, 5, 3), nn.ReLU()).to(DOUBLE)
    kernel = global_ntk(line, torch.randn(2, 4, 6, dtype=DOUBLE))
    assert kernel.domain.names == ("batch", "channel", "position")
    D = kernel.dense().view(2, 5, 4, 2, 5, 4)
    assert close(kernel.temporal().dense(), torch.einsum("acpbcq->apbq", D).reshape(8, 8) / 5)
    assert close(kernel.spatial().dense(), torch.einsum("acpadp->cd", D) / 8)
    for kind in ("temporal", "spatial"):
        expected = getattr(kernel, kind)().dense()
        assert close(reduced_view(kernel, kind).matrix, expected)
    with pytest.raises(NotSupportedError, match="last axis"):
        kernel.rank_bounds(torch.randn(2, 5, 4, dtype=DOUBLE))


def test_a_member_of_several_states_is_a_kernel_of_its_own(x: Tensor) -> None:
    model = nn.GRU(2, 4, bidirectional=True, batch_first=True).to(DOUBLE)
    both = global_ntk(model, x, states=("hidden", "hidden_reverse"))
    with pytest.raises(NotSupportedError, match="restrict_to"):
        both.temporal()
    one = both.restrict_to("hidden_reverse")
    assert isinstance(one, GlobalNTK)
    assert close(one.dense(), both.dense()[60:, 60:])
    assert one.temporal().size == 15
    assert close(global_ntk(model, x).restrict_to("hidden_reverse").dense(), one.dense())


def test_time_first_must_be_said_where_states_are_modules() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.readout = nn.GRU(2, 4), nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.readout(self.cell(x)[0])

    model, x = Net(), torch.randn(5, 3, 2)
    with pytest.raises(InputError, match="batch_axis=1"):
        global_ntk(model, x, states="cell")
    assert dict(global_ntk(model, x, states="cell", batch_axis=1).domain.axes)["batch"] == 3
    assert dict(global_ntk(model, x).domain.axes) == {"batch": 3, "time": 5, "unit": 4}
    backwards = nn.Sequential(nn.Linear(2, 2), nn.GRU(2, 4, batch_first=True))
    assert dict(global_ntk(backwards, x, states="1").domain.axes)["batch"] == 5


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
@pytest.mark.parametrize("layers", [1, 2])
def test_both_directions_are_one_state_as_the_module_returns_it(
    kind: type[nn.RNNBase], layers: int, x: Tensor
) -> None:
    torch.manual_seed(1)
    module = kind(2, 4, num_layers=layers, bidirectional=True, batch_first=True).to(DOUBLE)
    kernel = global_ntk(module, x)
    assert (kernel.axes, kernel.domain.shape) == (("batch", "time", "unit"), (3, 5, 8))
    assert close(kernel.states, module(x)[0].detach())
    names, values = zip(*module.named_parameters())

    def outputs(*given: Tensor) -> Tensor:
        return torch.func.functional_call(module, dict(zip(names, given)), (x,))[0].flatten()

    rows = torch.autograd.functional.jacobian(outputs, tuple(values))
    J = torch.cat([part.flatten(1) for part in rows], 1)
    assert close(kernel.dense(), J @ J.T)
    vector = torch.randn(3, 5, 8, dtype=DOUBLE)
    assert close(kernel.matvec(vector).flatten(), J @ J.T @ vector.flatten())
    units = torch.einsum("atuatv->uv", (J @ J.T).view(3, 5, 8, 3, 5, 8))
    assert close(kernel.spatial().dense() * 15, units)
    assert close(kernel.core.dense(), kernel.dense())
    assert float(kernel.trace()) == pytest.approx(float((J * J).sum()), rel=1e-10)
    parts = kernel.dynamics.returned  # type: ignore[attr-defined]
    assert global_ntk(module, x, states=parts).domain.names == parts


def test_unknown_states_of_a_recurrent_module_name_the_choices(x: Tensor) -> None:
    with pytest.raises(InputError, match="one state, 'hidden'"):
        global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), x, states=("foo",))
    with pytest.raises(InputError, match="cell, hidden"):
        global_ntk(nn.LSTM(2, 4, batch_first=True).to(DOUBLE), x, states="foo")


@pytest.mark.parametrize(("parameters", "k"), [(None, 5), ("bias*", 14)])
def test_modes_by_way_of_the_parameters(parameters: Any, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foretrain.operators.estimators.modes.is_affordable", lambda *_, **__: False)
    generator = torch.Generator().manual_seed(3)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torch.nn.GRU(2, 3, batch_first=True).double()
    x = torch.randn(10, 8, 2, dtype=torch.float64, generator=generator)
    kernel = ft.global_ntk(module, x, parameters=parameters)
    assert kernel.same_spectrum().size < kernel.size
    found = kernel.top_modes(
        k, tolerance=1e-9
    )  # biases of the gates come in pairs: 12 of their modes are not zero
    dense = kernel.dense()
    values = torch.linalg.eigvalsh(dense).flip(0)[:k]
    assert found.converged
    assert torch.allclose(found.values, values, rtol=1e-10, atol=1e-10 * float(values[0]))
    vectors = found.vectors.flatten(1)
    assert torch.allclose(vectors @ vectors.t(), torch.eye(k, dtype=torch.float64), atol=1e-10)
    assert float((dense @ vectors.t() - vectors.t() * found.values).norm()) < 1e-7 * float(values[0])


def test_products_with_the_parameters_are_the_transposed_ones(kernel: GlobalNTK) -> None:
    dense = kernel.J.dense()
    shapes = {name: value.shape for name, value in kernel.dynamics.parameters.items()}
    tangents = {
        name: torch.randn(3, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
        for name, shape in shapes.items()
    }
    found = kernel.dynamics.parameter_product(tangents)
    flat = torch.cat([part.flatten(1) for part in tangents.values()], 1)
    assert close(torch.cat([found[name].flatten(1) for name in shapes], 1), flat @ dense.t() @ dense)
