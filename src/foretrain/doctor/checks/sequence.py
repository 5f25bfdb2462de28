"""Do answers see the positions that matter, and can they tell positions apart?

For inputs over positions (samples, positions, ...) or tokens: which positions tell about the target is measured by a
linear readout of each, which of them the answers see by gradients. Attention is looked at where it is computed:
softmax over the keys, neither all on one key nor along another axis. Answers that do not change when positions are
permuted cannot learn what depends on order.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.doctor.baselines import fit_readout
from foretrain.doctor.calls import Call, Rule, intercept, watch
from foretrain.doctor.finding import Examination, Finding, Severity, Treatment
from foretrain.doctor.outcome import outcome_of
from foretrain.doctor.setup import Case, Setup
from foretrain.doctor.short_training import bench_of, divide
from foretrain.support.answers import labelled
from foretrain.support.errors import NotSupportedError

Array = NDArray[np.float64]
_SAMPLES = 256
_SEEN_BY = 32  # samples whose gradients are looked at
_MOST_POSITIONS = 64
_LOOKED_AT = 8  # samples in which tokens are exchanged
_NUMBERS = 10_000  # outputs by which tokens are told apart
_UNSEEN = 1e-4  # of the largest gradient: a position that answers do not see, or have no memory of
_TELLS = 0.3  # of what the best position tells
_SATURATED = 0.1  # of the largest entropy: attention lies on one key
_SURE = 3.0
_MANY = 0.3  # of the positions
_MOSTLY = 0.95
_SHUT = 0.05  # mean of a gate
_FLAT_SIGMOID = 0.02  # its slope; 0.25 is the steepest
_GATED = (nn.LSTM, nn.GRU, nn.LSTMCell, nn.GRUCell)
_SOURCE = "measured: readouts of single positions, and gradients of the answers by them"


def check(case: Case) -> Examination:
    """Relevance and influence by position, attention, order."""
    x, outcome = case.task.x, outcome_of(case)
    tokens = isinstance(x, Tensor) and x.ndim == 2 and not x.is_floating_point()
    vectors = isinstance(x, Tensor) and x.ndim == 3 and x.is_floating_point()
    if not (tokens or vectors) or x.shape[1] < 2:
        raise NotSupportedError("the inputs have no axis of positions: there is no sequence.")
    if outcome.at_ease:
        fine = Finding(
            Severity.GOOD, "Answers see what they need of the sequence.", outcome.sentence, _SOURCE
        )
        return Examination((fine,))
    relevance, influence = position_relevance(case), position_influence(case)
    findings = [*_attention(case), *_gates(case), *_blind(relevance, influence), *_order(case, tokens)]
    findings += _alike_tokens(case) if tokens else []
    if not findings:
        said = "Answers see the positions that tell about the target."
        findings = [Finding(Severity.GOOD, said, f"{x.shape[1]} positions were looked at.", _SOURCE)]
    return Examination(
        tuple(findings),
        labelled({"relevance": ("position", relevance), "influence": ("position", influence)}),
    )


def position_relevance(case: Case) -> Array:
    """What a linear readout of each position alone gains over a constant, where it is sure; else zero."""
    bench, division = bench_of(case.setup), divide(case.setup)
    positions = min(case.task.x.shape[1], _MOST_POSITIONS)
    if bench.judge is None or bench.known is None or not division.apart:
        return np.zeros(positions)
    judge, known = bench.judge, bench.known[:_SAMPLES]
    constant = judge.scores(judge.usual.expand_as(judge.wanted))
    gains = []
    for position in range(positions):
        rows, others = (part.x[:, position : position + 1] for part in (division.training, division.held_out))
        gain = fit_readout(rows[:_SAMPLES], known, others, judge).scores - constant
        sure = gain.mean() > _SURE * gain.std() / max(1, len(gain) - 1) ** 0.5
        gains.append(float(gain.mean()) if sure else 0.0)
    return np.array(gains)


def position_influence(case: Case) -> Array:
    """Size of the gradient of the answers by each position (tokens: by its embedding), relative to the largest."""
    x = case.task.x[: case.at_once(_SEEN_BY)]
    kept: list[Tensor] = []

    def keep(module: nn.Module, given: Any, result: Tensor) -> Tensor:
        if not kept and result.ndim == 3 and result.shape[:2] == x.shape[:2]:
            kept.append(result.detach().requires_grad_())
            return kept[0]
        return result

    with torch.enable_grad():
        if x.is_floating_point():
            kept.append(x.detach().clone().requires_grad_())
            outputs = case.model(kept[0])
        else:
            embeddings = [m for m in case.model.modules() if isinstance(m, nn.Embedding)]
            handles = [one.register_forward_hook(keep) for one in embeddings]
            try:
                outputs = case.model(x)
            finally:
                for handle in handles:
                    handle.remove()
        if not kept or not outputs.requires_grad:
            return np.ones(min(x.shape[1], _MOST_POSITIONS))
        weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0)).to(outputs)
        slope = dict(enumerate(torch.autograd.grad(outputs, kept[0], weights, allow_unused=True))).get(0)
    if slope is None:
        return np.zeros(min(x.shape[1], _MOST_POSITIONS))
    sizes = slope.double().square().mean((0, 2)).sqrt().cpu().numpy()[:_MOST_POSITIONS]
    return np.asarray(sizes / max(float(sizes.max()), 1e-300))


def _blind(relevance: Array, influence: Array) -> list[Finding]:
    if not relevance.max(initial=0.0) > 0 or len(relevance) != len(influence):
        return _faded(influence)
    telling = relevance > _TELLS * relevance.max()
    unseen = np.flatnonzero(telling & (influence < _UNSEEN))
    if not len(unseen):
        return _faded(influence)
    exact = float(influence[unseen].max()) == 0
    seen = int(np.argmax(influence))
    how = "not at all" if exact else f"by {influence[unseen].max():.1g} of what they see of position {seen}"
    return [
        Finding(
            Severity.CRITICAL,
            f"Answers do not see what they need: position{'s' if len(unseen) > 1 else ''} "
            f"{', '.join(map(str, unseen[:6]))} tell{'' if len(unseen) > 1 else 's'} about the target, "
            "but answers see "
            f"{'them' if len(unseen) > 1 else 'it'} {how}.",
            f"A linear readout of position {int(np.argmax(relevance))} alone gains {relevance.max():.3g} "
            "over a constant; the "
            f"gradient of the answers is largest for position {seen}.",
            _SOURCE,
            "Look at which step the answer is read from, at masks (what is masked must be what is to be "
            "ignored), and at memory: "
            "forget gates near one, shorter delays.",
            numbers={"relevance": float(relevance.max()), "influence": float(influence[unseen].max())},
        )
    ]


def _faded(influence: Array) -> list[Finding]:
    """Positions that answers do not see, where it is not known whether they matter."""
    unseen = influence < _UNSEEN
    if unseen.mean() < _MANY:
        return []
    exact, seen = bool((influence[unseen] == 0).all()), np.flatnonzero(~unseen)
    span = f"{seen[0]}" if len(seen) == 1 else f"{seen[0]} to {seen[-1]}"
    title = f"Answers do not depend on {int(unseen.sum())} of {len(unseen)} positions: they see only {span}."
    if not exact:
        title = (
            f"Memory fades: answers hardly see {int(unseen.sum())} of {len(unseen)} positions, only {span}."
        )
    return [
        Finding(
            Severity.WARNING,
            title,
            "The gradient of the answers by the unseen positions is at most "
            f"{influence[unseen].max():.1g} of the largest.",
            _SOURCE,
            "Look at which step the answer is read from, and at masks. If the delay is meant, states "
            "must hold what they saw "
            "over time: forget gates near one, orthogonal recurrent weights, attention, or shorter sequences.",
            numbers={"unseen": float(unseen.mean())},
            vague=0 if exact else 1,
        )
    ]


def _gates(case: Case) -> list[Finding]:
    """Gates that are open or shut for all samples and steps: of torch's cells, and sigmoids in loops of one's own."""
    kept: dict[str, tuple[nn.Module, Tensor]] = {}

    def keep(name: str) -> Any:
        def hook(module: Any, given: Any, result: Any) -> None:
            x = given[0]
            weight, bias = (
                getattr(module, key, getattr(module, f"{key}_l0", None)) for key in ("weight_ih", "bias_ih")
            )
            if isinstance(x, Tensor) and isinstance(weight, Tensor) and isinstance(bias, Tensor):
                other = getattr(module, "bias_hh", getattr(module, "bias_hh_l0", 0.0))
                gates = nn.functional.linear(x, weight, bias) + other
                kept.setdefault(name, (module, torch.sigmoid(gates.reshape(-1, gates.shape[-1]))))

        return hook

    cells = [(n, m) for n, m in case.model.named_modules() if isinstance(m, _GATED)]
    handles = [module.register_forward_hook(keep(name)) for name, module in cells]
    try:
        with torch.no_grad():
            _, calls = watch(case.model, case.task.x[: case.at_once(_SEEN_BY)], {"sigmoid"})
    finally:
        for handle in handles:
            handle.remove()
    for name, (module, gates) in kept.items():
        lstm = isinstance(module, nn.LSTM | nn.LSTMCell)
        kinds = (("input", 0, 0.0), ("forget", 1, 1.0), ("output", 3, 0.0)) if lstm else (("update", 1, 0.0),)
        parts = gates.chunk(4 if lstm else 3, -1)
        for kind, place, wanted in kinds:
            # A GRU keeps its state where the gate is open, an LSTM where it is not shut.
            mean = float(parts[place].mean())
            if (mean < _SHUT) if lstm else (mean > 1 - _SHUT):
                return [_shut_gates(name, kind, place, wanted, mean)]
    by_line: dict[str, list[Tensor]] = {}
    for call in calls:
        if isinstance(call.result, Tensor) and call.line:
            by_line.setdefault(call.line, []).append(call.result.flatten())
    for line, parts_of in by_line.items():
        values = torch.cat(parts_of)
        share = float((values * (1 - values) < _FLAT_SIGMOID).double().mean())
        if len(parts_of) > 1 and share > _MOSTLY:
            return [
                Finding(
                    Severity.WARNING,
                    f"Gates are saturated: {share:.0%} of the values of a sigmoid are 0 or 1 ({line}).",
                    f"Their mean is {float(values.mean()):.3g}; a gate that is shut or open for all "
                    "samples and steps passes no "
                    "gradient, and states forget all or nothing.",
                    "measured: the calls of sigmoid",
                    "Make weights and biases of this gate smaller.",
                    numbers={"saturated": share},
                )
            ]
    return []


def _shut_gates(name: str, kind: str, place: int, wanted: float, mean: float) -> Finding:
    def reset(model: nn.Module) -> None:
        for key, bias in model.get_submodule(name).named_parameters():
            if key.startswith("bias"):
                size = len(bias) // (3 if kind == "update" else 4)
                bias[place * size : (place + 1) * size] = wanted if key.startswith("bias_ih") else 0.0

    parts = 3 if kind == "update" else 4
    code = f"for key, bias in model.get_submodule({name!r}).named_parameters():\n    if key.startswith('bias'):\n"
    code += f"        n = len(bias) // {parts}\n        with torch.no_grad():\n"
    code += (
        f"            bias[{place} * n : {place + 1} * n] = {wanted} if key.startswith('bias_ih') else 0.0"
    )
    does = {"forget": "states forget within a step", "update": "states keep what they are and hardly change"}
    return Finding(
        Severity.WARNING,
        f"The {kind} gates of {name!r} are {'open' if kind == 'update' else 'shut'}: "
        f"{does.get(kind, 'hardly anything passes them')}.",
        f"Their mean over samples, steps and units is {mean:.2g}.",
        "measured: gates from inputs and biases",
        f"Set the biases of the {kind} gates to {wanted:g}.",
        code,
        Treatment(f"biases of {kind} gates {wanted:g}", lambda setup: setup.with_weights(reset)),
        {"gate": mean},
        (name,),
    )


def _attention(case: Case) -> list[Finding]:
    """Softmax along the wrong axis, or all on one key."""
    names = {"softmax", "scaled_dot_product_attention"}
    model = case.model
    x = case.task.x[: case.at_once(_SEEN_BY)]
    with torch.no_grad(), unfused_attention():
        _, calls = watch(model, x, names)
    wrong = [(n, call) for n, call in enumerate(calls) if call.name == "softmax" and _along(call) is not None]
    if wrong:
        axis = _along(wrong[0][1])
        rule = Rule(frozenset({"softmax"}), _over_keys)
        return [
            Finding(
                Severity.CRITICAL,
                f"Attention is normalised along axis {axis} instead of the keys: softmax over the wrong axis.",
                f"In {len(wrong)} of {len(calls)} calls ({wrong[0][1].line}) the weights of a query do not sum to 1.",
                "measured: the calls of softmax",
                "Take softmax over the last axis, that of the keys.",
                "weights = scores.softmax(dim=-1)",
                Treatment("softmax over the keys", lambda s: s.with_weights(lambda m: intercept(m, rule))),
            )
        ]
    own = [share for call in calls if (share := _own_share(call)) is not None]
    if own and min(own) > _MOSTLY:
        return [
            Finding(
                Severity.CRITICAL,
                "Attention does not see other positions: every query looks at itself alone, as if masked.",
                f"{min(own):.1%} of the weights of all {len(own)} attentions lie on the diagonal.",
                "measured: the weights of attention",
                "Look at the mask: what is hidden must be the future or padding, not all others.",
                "mask = torch.ones(length, length, dtype=torch.bool).tril()  # True where a query may look",
            )
        ]
    entropies = [value for call in calls if (value := _entropy(call)) is not None]
    if not entropies or not min(entropies) < _SATURATED:
        return []
    rule = Rule(frozenset(names), _softened)
    return [
        Finding(
            Severity.WARNING,
            "Attention is saturated: every query looks at one key only, and hardly any gradient passes "
            "through softmax.",
            f"In {sum(one < _SATURATED for one in entropies)} of {len(entropies)} attentions the entropy "
            "of the weights is at "
            f"most {_SATURATED:g} of the largest, the least {min(entropies):.2g}: scores "
            "are too large (embeddings or projections of large size, a missing 1/sqrt(d), a small temperature).",
            "measured: the weights of attention",
            "Divide the scores by sqrt(d), and make embeddings and projections of ordinary size.",
            "scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5",
            Treatment("scores of size one", lambda s: s.with_weights(lambda m: intercept(m, rule))),
            {"entropy": min(entropies)},
        )
    ]


@contextmanager
def unfused_attention() -> Iterator[None]:
    """Inside, torch's attention modules compute step by step, so that their softmax is seen."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def _scores(call: Call) -> Tensor | None:
    values = call.arguments[0] if call.arguments else call.options.get("input")
    return values if isinstance(values, Tensor) and values.ndim >= 3 and values.shape[-1] > 1 else None


def _dim(call: Call) -> int | None:
    dim = call.options.get("dim", call.arguments[1] if len(call.arguments) > 1 else None)
    return dim if isinstance(dim, int) else None


def _along(call: Call) -> int | None:
    """The axis of a softmax over scores of queries and keys, if it is not the last; None where all is well."""
    scores, dim = _scores(call), _dim(call)
    if scores is None or dim is None or scores.shape[-1] != scores.shape[-2]:
        return None
    axis = dim % scores.ndim
    return axis if axis != scores.ndim - 1 else None


def _over_keys(func: Any, arguments: tuple[Any, ...], options: Any) -> Any:
    scores = arguments[0] if arguments else options["input"]
    square = scores.ndim >= 3 and scores.shape[-1] == scores.shape[-2]
    return torch.softmax(scores, -1) if square else func(*arguments, **options)


def _weights(call: Call) -> Tensor | None:
    """The weights of attention, where the call shows them or can be followed."""
    if call.name == "softmax":
        scores = _scores(call)
        return call.result if scores is not None and scores.shape[-1] == scores.shape[-2] else None
    query, key = call.arguments[0], call.arguments[1]
    scale = call.options.get("scale") or 1 / math.sqrt(query.shape[-1])
    scores = scale * query @ key.transpose(-2, -1)
    mask = call.options.get("attn_mask", call.arguments[3] if len(call.arguments) > 3 else None)
    if call.options.get("is_causal"):
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
    if isinstance(mask, Tensor):
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype is torch.bool else scores + mask
    return torch.softmax(scores, -1)


def _entropy(call: Call) -> float | None:
    """Of the weights, relative to the largest that masks allow: the median over queries that have a choice."""
    weights = _weights(call)
    if weights is None or not torch.isfinite(weights).all():
        return None
    weights = weights.double()
    choices = (weights > 0).sum(-1).clamp_min(weights.shape[-1] // 2)
    entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1) / choices.double().log().clamp_min(1e-9)
    return float(entropy.median())


def _own_share(call: Call) -> float | None:
    """Of the weights of attention, what lies on the query's own position; None where there is nothing else."""
    weights = _weights(call)
    if weights is None or weights.shape[-1] != weights.shape[-2] or weights.shape[-1] < 3:
        return None
    return float(weights.diagonal(dim1=-2, dim2=-1)[..., 1:].mean())  # the first may have no other to look at


def _softened(func: Any, arguments: tuple[Any, ...], options: Any) -> Any:
    """The same attention with scores divided by their spread."""
    first = arguments[0] if arguments else options["input"]
    if func.__name__ == "softmax":
        square = first.ndim >= 3 and first.shape[-1] == first.shape[-2]
        finite = first.detach()[torch.isfinite(first.detach())] if square else first
        return (
            func(first / finite.std().clamp_min(1), *arguments[1:], **options)
            if square
            else func(*arguments, **options)
        )
    query, key = arguments[0], arguments[1]
    spread = (query.detach() @ key.detach().transpose(-2, -1)).std() / math.sqrt(query.shape[-1])
    return func(query / spread.clamp_min(1), *arguments[1:], **options)


def _order(case: Case, tokens: bool) -> list[Finding]:
    """Answers that do not change with the order of positions, where attention or sums see all of them."""
    x = case.task.x[: case.at_once(_SEEN_BY)]
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        outputs, change = case.model(x), case.model(x[:, order])
        varies = (outputs - outputs.mean(0)).abs_().mean().clamp_min(1e-12)
        if outputs.ndim == 3:  # an answer for each position turns with it
            axis = next((a for a in (1, 2) if outputs.shape[a] == x.shape[1]), None)
            outputs = outputs if axis is None else outputs.index_select(axis, order.to(outputs.device))
        change -= outputs
    if float(change.abs_().mean() / varies) > 1e-3:
        return []
    embeddings = [(n, m) for n, m in case.model.named_modules() if isinstance(m, nn.Embedding)]
    return [
        Finding(
            Severity.WARNING,
            "Answers do not depend on the order of positions: positional information is missing.",
            "With all positions permuted the answers stay the same, to rounding; what depends on order "
            "cannot be learned.",
            "measured: outputs for permuted positions",
            "Add positions: learned or sinusoidal encodings to the embeddings, or rotary ones in attention.",
            "# x = embedding(tokens) + position_embedding(torch.arange(tokens.shape[1]))",
            _positions(embeddings[0][0]) if tokens and embeddings else None,
        )
    ]


def _alike_tokens(case: Case) -> list[Finding]:
    """Tokens that the network cannot tell apart, wherever they stand."""
    values = torch.unique(case.task.x)[:_MOST_POSITIONS]
    rows = []
    for value in values:
        x = case.task.x[: case.at_once(_LOOKED_AT)].clone()
        x[:, [0, -1]] = value
        with torch.no_grad():
            outputs = case.model(x).flatten()
        rows.append(outputs[:: max(1, len(outputs) // _NUMBERS)].clone())
    kinds = len(torch.unique(torch.stack(rows), dim=0))
    if not 1 < kinds < (1 - _MANY) * len(values):
        return []
    return [
        Finding(
            Severity.WARNING,
            f"The network cannot tell tokens apart: {len(values)} of them look like {kinds}.",
            "Outputs are the same, bit by bit, when one token is put in the place of another (clamped or hashed "
            "numbers, a vocabulary that is too small, embeddings that are equal).",
            "measured: outputs with each token in the same places",
            "Give every token its own row of the embedding, and look at what is done to token numbers before it.",
            numbers={"tokens": float(len(values)), "kinds": float(kinds)},
        )
    ]


def _positions(name: str) -> Treatment:
    """Fixed waves are added to what the embedding returns, as large as its entries."""

    def add(module: nn.Module, given: Any, result: Tensor) -> Tensor:
        if result.ndim != 3:
            return result
        places = torch.arange(result.shape[1], device=result.device)[:, None]
        rates = 10000 ** (-torch.arange(0, result.shape[2], 2, device=result.device) / result.shape[2])
        waves = torch.cat([torch.sin(places * rates), torch.cos(places * rates)], -1)[:, : result.shape[2]]
        return result + (waves.to(result) * 2**0.5 * result.detach().std())

    def change(setup: Setup) -> Setup:
        return setup.with_weights(lambda model: model.get_submodule(name).register_forward_hook(add))

    return Treatment("positions added to the embeddings", change)
