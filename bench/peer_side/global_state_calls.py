"""Products with the global-state NTK of a GRU as torch.func has them: vjp, then jvp, many vectors by vmap.

The graph of the vjp is kept from product to product, in the peer's favour; the jvp computes the states anew, because
torch.func keeps nothing of it. Eigenpairs are those of scipy's eigsh on these products.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap

Run = Callable[[], Mapping[str, Any]]


def products(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
    """J J* v for every vector (k, batch * time * units), as many in one vmap as `together` says."""
    product = _product(arrays)
    vectors = torch.as_tensor(arrays["vectors"])

    def run() -> Mapping[str, Any]:
        if options["together"] == 1:
            return {"products": torch.stack([product(vector) for vector in vectors])}
        parts = [vmap(product)(part) for part in torch.split(vectors, options["together"])]
        return {"products": torch.cat(parts)}

    return run


def eigenpairs(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
    """The largest ones; the tolerance is relative to the eigenvalue."""
    product = _product(arrays)
    size = arrays["X"].shape[0] * arrays["X"].shape[1] * arrays["weight_hh_l0"].shape[1]

    def apply(vector: Any) -> Any:
        return product(torch.as_tensor(vector.ravel(), dtype=torch.float32)).numpy()

    operator = LinearOperator((size, size), matvec=apply, dtype=np.float32)
    start = np.random.default_rng(0).standard_normal(size).astype(np.float32)

    def run() -> Mapping[str, Any]:
        values, vectors = eigsh(operator, options["count"], tol=options["tolerance"], v0=start)
        return {"values": values, "vectors": vectors.T}

    return run


def _product(arrays: Mapping[str, Any]) -> Callable[[Tensor], Tensor]:
    x = torch.as_tensor(arrays["X"])
    model = nn.GRU(x.shape[2], arrays["weight_hh_l0"].shape[1], batch_first=True)
    parameters = {name: torch.as_tensor(arrays[name]) for name in model.state_dict()}

    def states(weights: dict[str, Tensor]) -> Tensor:
        return functional_call(model, weights, (x,))[0].flatten()

    pull = vjp(states, parameters)[1]

    def product(vector: Tensor) -> Tensor:
        (gradient,) = pull(vector)
        change: Tensor = jvp(states, (parameters,), (gradient,))[1]
        return change.detach()

    return product


CALLS = {"global-state products": products, "global-state eigenpairs": eigenpairs}
