"""The recurrent modules of torch against dense Jacobians of an independent unrolled loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev

from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics
from foretrain.support.errors import NotSupportedError

KINDS: dict[str, Callable[[], nn.RNNBase]] = {
    "tanh": lambda: nn.RNN(2, 4, batch_first=True),
    "relu": lambda: nn.RNN(2, 4, batch_first=True, nonlinearity="relu"),
    "no bias": lambda: nn.RNN(2, 4, batch_first=True, bias=False),
    "gru": lambda: nn.GRU(2, 4, batch_first=True),
    "gru, no bias": lambda: nn.GRU(2, 4, batch_first=True, bias=False),
    "lstm": lambda: nn.LSTM(2, 3, batch_first=True),
    "steps first": lambda: nn.GRU(2, 4),
    "gru layers": lambda: nn.GRU(2, 3, num_layers=2, batch_first=True),
    "lstm layers": lambda: nn.LSTM(2, 2, num_layers=2, batch_first=True),
    "both directions": lambda: nn.RNN(2, 3, bidirectional=True, batch_first=True),
    "gru everything": lambda: nn.GRU(2, 2, num_layers=2, bidirectional=True, batch_first=True),
    "lstm everything": lambda: nn.LSTM(2, 2, num_layers=2, bidirectional=True, batch_first=True),
}


def built(name: str, dtype: torch.dtype = torch.float64) -> tuple[nn.RNNBase, Tensor]:
    torch.manual_seed(3)
    module = KINDS[name]().to(dtype)
    with torch.no_grad():
        for value in module.parameters():
            value.copy_(0.7 * torch.randn_like(value))
    return module, torch.randn(3, 4, 2, dtype=dtype)


def dynamics_of(name: str) -> RecurrentDynamics:
    return RecurrentDynamics(*built(name))


def step(
    module: nn.RNNBase, before: tuple[Tensor, ...], x: Tensor, weights: dict[str, Tensor]
) -> tuple[Tensor, ...]:
    """One step by torch's own cells."""
    kind = {"RNN_TANH": nn.RNNCell, "RNN_RELU": nn.RNNCell, "GRU": nn.GRUCell, "LSTM": nn.LSTMCell}[
        module.mode
    ]
    extra = {"nonlinearity": "relu"} if module.mode == "RNN_RELU" else {}
    cell = kind(x.shape[1], module.hidden_size, bias="bias_hh" in weights, dtype=x.dtype, **extra)
    found = functional_call(cell, weights, (x, before if len(before) > 1 else before[0]))
    return found if isinstance(found, tuple) else (found,)


def perturbed(module: nn.RNNBase, x: Tensor, weights: dict[str, Tensor], q: Tensor) -> Tensor:
    """All states in the order of the dynamics, with q added to every one of them as it is computed."""
    directions = 2 if module.bidirectional else 1
    count = 2 if module.mode == "LSTM" else 1
    samples, steps, _ = x.shape
    added = iter(q.view(-1, samples, steps, module.hidden_size))
    states, inputs = [], x
    for layer in range(module.num_layers):
        outputs = []
        for direction in range(directions):
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            mine = {k.removesuffix(suffix): v for k, v in weights.items() if k.endswith(suffix)}
            if not direction:
                mine = {k: v for k, v in mine.items() if "reverse" not in k}
            changes = [next(added) for _ in range(count)]
            before = tuple(x.new_zeros(samples, module.hidden_size) for _ in range(count))
            path: dict[int, tuple[Tensor, ...]] = {}
            for t in reversed(range(steps)) if direction else range(steps):
                now = step(module, before, inputs[:, t], mine)
                before = tuple(value + change[:, t] for value, change in zip(now, changes))
                path[t] = before
            stacked = [torch.stack([path[t][i] for t in range(steps)], 1) for i in range(count)]
            states += stacked
            outputs.append(stacked[0])
        inputs = torch.cat(outputs, -1)
    return torch.cat([state.reshape(-1) for state in states])


def dense(function: Callable[[Tensor], Tensor], size: int) -> Tensor:
    return function(torch.eye(size, dtype=torch.float64)).t()


def flat_jacobian(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([part.flatten(1) for part in found.values()], 1)


@pytest.mark.parametrize("name", KINDS)
class TestAgainstBruteForce:
    def parts(self, name: str) -> tuple[RecurrentDynamics, Tensor, Tensor]:
        """The dynamics, and dense P and J."""
        module, x = built(name)
        dynamics = RecurrentDynamics(module, x)
        weights = {k: v.detach() for k, v in module.named_parameters()}
        zero = torch.zeros(dynamics.space.size, dtype=torch.float64)
        P = jacrev(lambda q: perturbed(module, x, weights, q))(zero)
        J = flat_jacobian(jacrev(lambda w: perturbed(module, x, w, zero))(weights))
        return dynamics, P, J

    def test_states(self, name: str) -> None:
        module, x = built(name)
        weights = {k: v.detach() for k, v in module.named_parameters()}
        dynamics = RecurrentDynamics(module, x)
        expected = perturbed(module, x, weights, torch.zeros(dynamics.space.size, dtype=torch.float64))
        torch.testing.assert_close(dynamics.values, expected, rtol=0, atol=1e-12)

    def test_propagator(self, name: str) -> None:
        dynamics, P, _ = self.parts(name)
        torch.testing.assert_close(dense(dynamics.propagate, len(P)), P, rtol=0, atol=1e-10)
        torch.testing.assert_close(dense(dynamics.propagate_adjoint, len(P)), P.t(), rtol=0, atol=1e-10)

    def test_jacobian(self, name: str) -> None:
        dynamics, P, J = self.parts(name)
        pulled = dynamics.pull(torch.eye(len(J), dtype=torch.float64))
        ordered = {key: pulled[key] for key in dynamics.parameters}
        torch.testing.assert_close(flat_jacobian(ordered), J, rtol=0, atol=1e-10)
        local = dynamics.local_pull(torch.eye(len(J), dtype=torch.float64))
        held = flat_jacobian({key: local[key] for key in dynamics.parameters})
        torch.testing.assert_close(P @ held, J, rtol=0, atol=1e-10)

    def test_pushes_are_the_adjoints_of_pulls(self, name: str) -> None:
        dynamics, _, J = self.parts(name)
        held = flat_jacobian(
            {
                key: dynamics.local_pull(torch.eye(len(J), dtype=torch.float64))[key]
                for key in dynamics.parameters
            }
        )
        draws = {key: torch.randn(5, *v.shape, dtype=torch.float64) for key, v in dynamics.parameters.items()}
        along = torch.cat([draws[key].flatten(1) for key in dynamics.parameters], 1)
        torch.testing.assert_close(dynamics.push(draws), along @ J.t(), rtol=0, atol=1e-10)
        torch.testing.assert_close(dynamics.local_push(draws), along @ held.t(), rtol=0, atol=1e-10)

    def test_product(self, name: str) -> None:
        dynamics, _, J = self.parts(name)
        torch.testing.assert_close(dense(dynamics.product, len(J)), J @ J.t(), rtol=0, atol=1e-10)
        vector = torch.randn(1, len(J), dtype=torch.float64)
        kept = vector.clone()
        torch.testing.assert_close(dynamics.product(vector), vector @ (J @ J.t()), rtol=0, atol=1e-10)
        assert torch.equal(vector, kept)

    def test_sites_add_up(self, name: str) -> None:
        """The direct sum of the cores of all weight matrices is the kernel."""
        dynamics, _, J = self.parts(name)
        total = torch.zeros(len(J), len(J), dtype=torch.float64)
        for site in dynamics.sites:
            total += dense(site.product, len(J))
            across = dense(site.propagate, site.space.size)
            torch.testing.assert_close(dense(site.propagate_adjoint, len(J)), across.t(), rtol=0, atol=1e-10)
        torch.testing.assert_close(total, J @ J.t(), rtol=0, atol=1e-10)

    def test_some_parameters(self, name: str) -> None:
        module, x = built(name)
        weights = {k: v.detach() for k, v in module.named_parameters()}
        zero = torch.zeros_like(RecurrentDynamics(module, x).values)
        for chosen in ("weight_hh", "weight_ih"):
            named = {k: v for k, v in weights.items() if k.startswith(chosen)}
            counted = {k: v for k, v in module.named_parameters() if k in named}
            dynamics = RecurrentDynamics(module, x, parameters=counted)
            J = flat_jacobian(jacrev(lambda w: perturbed(module, x, weights | w, zero))(named))
            torch.testing.assert_close(dense(dynamics.product, len(J)), J @ J.t(), rtol=0, atol=1e-10)
            cores = sum(dense(site.product, len(J)) for site in dynamics.sites)
            torch.testing.assert_close(cores, J @ J.t(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["gru", "lstm", "tanh"])
def test_a_start_that_is_given(name: str) -> None:
    module, x = built(name)
    start = [
        0.5 * torch.randn(1, 3, module.hidden_size, dtype=torch.float64)
        for _ in range(2 if name == "lstm" else 1)
    ]
    dynamics = RecurrentDynamics(module, x, start)

    def states(weights: dict[str, Tensor]) -> Tensor:
        given = tuple(start) if name == "lstm" else start[0]
        return functional_call(module, weights, (x, given))[0].reshape(-1)

    weights = {k: v.detach() for k, v in module.named_parameters()}
    J = flat_jacobian(jacrev(states)(weights))
    size = len(J)
    torch.testing.assert_close(dynamics.values[:size], states(weights))
    assert dense(dynamics.product, dynamics.space.size)[:size, :size].sub(J @ J.t()).abs().max() < 1e-10


def test_names_of_states() -> None:
    assert list(dynamics_of("lstm").members) == ["hidden", "cell"]
    assert dynamics_of("lstm").returned == ("hidden",)
    assert list(dynamics_of("gru everything").members) == [
        "hidden_0",
        "hidden_0_reverse",
        "hidden_1",
        "hidden_1_reverse",
    ]
    assert dynamics_of("gru everything").returned == ("hidden_1", "hidden_1_reverse")


def test_single_precision() -> None:
    module, x = built("gru")
    exact = RecurrentDynamics(module, x)
    rough = RecurrentDynamics(module.float(), x.float())
    v = torch.randn(2, exact.space.size, dtype=torch.float64)
    torch.testing.assert_close(rough.product(v.float()).double(), exact.product(v), rtol=1e-4, atol=1e-4)


def test_projections_and_other_forwards_are_refused() -> None:
    with pytest.raises(NotSupportedError, match="proj_size"):
        RecurrentDynamics(nn.LSTM(2, 4, proj_size=3, batch_first=True), torch.randn(3, 4, 2))
    hooked = nn.GRU(2, 4, batch_first=True)
    hooked.register_forward_hook(lambda module, given, result: (result[0] * 2, result[1]))
    with pytest.raises(NotSupportedError, match="its weights"):
        RecurrentDynamics(hooked, torch.randn(3, 4, 2))
