"""Operations in an order in which they can be read, those that apply the same weights to several inputs together.

A layer that is applied to several streams, as the trunk of a siamese network, holds one Gaussian field over all of
them: the streams are one more axis of positions (architectures, section 2). What follows it alike in each stream
goes on with that axis.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter

from torch.fx import Node, map_arg

from foretrain.compare.infinite_width.graph import Captured, operation_name, refusal

_WEIGHTED = ("linear", "matmul", "mm", "addmm", "einsum", "bilinear", "embedding", "embedding_bag")


def is_layer(name: str) -> bool:
    """Whether an operation is a layer, if one of its arguments is a parameter."""
    return name in _WEIGHTED or name.startswith("conv")


def applications(captured: Captured) -> Iterator[tuple[Node, ...]]:
    """Operations one by one, or as tuples that differ in nothing but their stream."""
    nodes, computed, weights = captured.nodes, set(captured.inputs), set(captured.parameters)

    def written(node: Node, name: Callable[[str], str]) -> str:
        return f"{node.target}{map_arg((node.args, node.kwargs), lambda one: name(one.name))}"

    # 1. Layers that apply the same parameters to different inputs are the first members of streams.
    alike: dict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        reads = {one.name for one in node.all_input_nodes}
        name = operation_name(node.target)
        if reads & computed:
            computed.add(node.name)
            if reads & weights and is_layer(name):
                alike[written(node, lambda one: "*" if one in computed else one)].append(node)
        elif reads & weights:
            weights.add(node.name)
    stream = {
        node.name: (members[0].name, number, len(members))
        for members in alike.values()
        if len(members) > 1
        for number, node in enumerate(members)
    }
    layers = set(stream)

    # 2. What does the same to members of one stream only is a member of it too.
    first: dict[str, str] = {}
    groups: dict[str, dict[int, Node]] = defaultdict(dict)
    for node in nodes:
        here = {stream[one.name][1:] for one in node.all_input_nodes if one.name in stream}
        if node.name not in stream and len(here) == 1:
            key = written(node, lambda one: stream[one][0] if one in stream else one)
            stream[node.name] = (first.setdefault(key, node.name), *here.pop())
        if node.name in stream:
            key, number, _ = stream[node.name]
            groups[key][number] = node
    together: dict[Node, tuple[Node, ...]] = {node: (node,) for node in nodes}
    for members in groups.values():
        if len(members) == stream[members[min(members)].name][2]:
            together |= dict.fromkeys(members.values(), tuple(members[k] for k in sorted(members)))

    # 3. Each tuple after all that its members read, and else in the order of the graph.
    place = {node: number for number, node in enumerate(nodes)}
    vertex = {node: min(place[one] for one in members) for node, members in together.items()}
    reads_of: dict[int, set[int]] = defaultdict(set)
    for node in nodes:
        reads_of[vertex[node]] |= {vertex[one] for one in node.all_input_nodes if one in place}
    sorter = TopologicalSorter(reads_of)
    try:
        sorter.prepare()
    except CycleError as error:
        again = next(node for node in nodes if vertex[node] in error.args[1] and node.name in layers)
        weight = next(one for one in again.all_input_nodes if one.name in weights)
        raise refusal(
            again,
            f"{captured.parameters.get(weight.name, weight.name)} is applied again to what comes from its first use, "
            "a recurrence, which has no rule here",
        ) from None
    ready: list[int] = []
    while sorter.is_active():
        for number in sorter.get_ready():
            heapq.heappush(ready, number)
        number = heapq.heappop(ready)
        sorter.done(number)
        yield together[nodes[number]]
