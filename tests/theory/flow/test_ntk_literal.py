"""The recursions of V, D, F, A, B as printed, with inverse kernels and plain quadrature, against ft.flow."""

from __future__ import annotations

import numpy as np

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X = np.array([[1, 0.5, -0.7], [0.2, -1.1, 0.9]])
WIDTHS = [11, 17, 8]
C_B, C_W = (0.1, 0.05, 0.2, 0.1), (1.0, 1.5, 1.3, 1.2)
RATE_B, RATE_W = (0.3, 0.2, 0.5, 0.1), (1.0, 0.7, 1.2, 0.5)


class Quadrature:
    """Means over two Gaussian inputs of covariance K, by the trapezoid rule in whitened variables."""

    def __init__(self, K: np.ndarray) -> None:
        u = np.arange(-9, 9.01, 0.1)
        weight = np.exp(-(u**2) / 2)
        self.weight = np.outer(weight, weight).ravel() / weight.sum() ** 2
        grid = np.stack(np.meshgrid(u, u, indexing="ij")).reshape(2, -1)
        self.z = np.linalg.cholesky(K) @ grid
        self.s, self.slope = np.tanh(self.z), 1 / np.cosh(self.z) ** 2
        self.inverse = np.linalg.inv(K)
        self.centred = np.einsum("ip,jp->ijp", self.z, self.z) - K[:, :, None]

    def mean(self, script: str, *factors: np.ndarray) -> np.ndarray:
        """Mean of a product; ``script`` names the sample indices of the factors and of the result."""
        inputs, output = script.split("->")
        subscripts = ",".join(part + "p" for part in inputs.split(",")) + ",p->" + output
        return np.einsum(subscripts, *factors, self.weight, optimize=True)


def literal_step(
    K: np.ndarray, Theta: np.ndarray, old: dict[str, np.ndarray], C: float, rate: float, r: float
) -> dict[str, np.ndarray]:
    """(4.119), (8.77), (8.79), (8.89), (8.97), with V, D, A as [1, 2, 3, 4] and F, B as [1, 3, 2, 4]."""
    q, up = Quadrature(K), np.linalg.inv(K)
    s, d = q.s, q.slope
    ss, dd = q.mean("a,b->ab", s, s), q.mean("a,b->ab", d, d)
    omega = rate * np.einsum("ap,bp->abp", s, s) + C * Theta[:, :, None] * np.einsum("ap,bp->abp", d, d)
    square = np.einsum("ap,bp->abp", s, s)

    def covariance(f: np.ndarray, g: np.ndarray) -> np.ndarray:
        means = [q.mean("ab->ab", h) for h in (f, g)]
        return q.mean("ab,cd->abcd", f, g) - np.multiply.outer(*means)

    bent_square, bent_omega = (q.mean("ab,cd->abcd", f, q.centred) for f in (square, omega))
    raised = np.einsum("abcd,ai,bj,ck,dl->ijkl", old["V"], up, up, up, up)

    def through(f: np.ndarray, g: np.ndarray) -> np.ndarray:
        return np.einsum("abij,ijkl,cdkl->abcd", f, raised, g) / 4

    def half(f: np.ndarray) -> np.ndarray:
        return np.einsum("abij,ik,jl,klcd,cd->abcd", f, up, up, old["D"], dd) / 2

    tilted = q.mean("a,c,i->aci", s, d, q.z) @ up
    new = {
        "V": C**2 * (covariance(square, square) + r * through(bent_square, bent_square)),
        "D": C
        * (covariance(square, omega) + r * through(bent_square, bent_omega) + r * C * half(bent_square)),
        "A": covariance(omega, omega)
        + r * through(bent_omega, bent_omega)
        + r * C**2 * np.einsum("ab,cd,abcd->abcd", dd, dd, old["A"])
        + r * C * (half(bent_omega) + half(bent_omega).transpose(2, 3, 0, 1)),
    }
    new["F"] = C**2 * (
        np.einsum("abcd,cd->acbd", q.mean("a,b,c,d->abcd", s, s, d, d), Theta)
        + r * np.einsum("aci,bdj,icjd->acbd", tilted, tilted, old["F"])
    )
    new["B"] = C**2 * (
        np.einsum("abcd,ab,cd->acbd", q.mean("a,b,c,d->abcd", d, d, d, d), Theta, Theta)
        + r * np.einsum("ac,bd,acbd->acbd", dd, dd, old["B"])
    )
    return {**new, "ss": ss, "dd": dd}


def test_flow_is_the_printed_recursion() -> None:
    net = MLP("tanh", depth=4, width=WIDTHS, C_b=C_B, C_W=C_W, lambda_b=RATE_B, lambda_W=RATE_W)
    names = ["V", "D", "F", "A", "B"]
    found = flow(net, X, ["Theta", *names])
    gram = X @ X.T / 3
    K, Theta = C_B[0] + C_W[0] * gram, RATE_B[0] + RATE_W[0] * gram
    old = {name: np.zeros((2, 2, 2, 2)) for name in names}
    for index in (1, 2, 3):
        ratio = 1.0 if index == 1 else WIDTHS[index - 1] / WIDTHS[index - 2]
        old = literal_step(K, Theta, old, C_W[index], RATE_W[index], ratio)
        Theta = RATE_B[index] + RATE_W[index] * old["ss"] + C_W[index] * old["dd"] * Theta
        K = C_B[index] + C_W[index] * old["ss"]
        np.testing.assert_allclose(found["Theta"].values[index], Theta, rtol=1e-9)
        for name in names:
            np.testing.assert_allclose(found[name].values[index], old[name], rtol=1e-8, atol=1e-10)
