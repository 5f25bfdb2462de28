"""What finite width changes."""

# %% [markdown]
# Networks of infinite width are solvable, real ones are not infinite. To first order in one over the width the
# difference can be computed, term by term. This tutorial does so for a small problem and then trains tens of
# thousands of real networks, to see whether it is true.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import foretrain as ft

X_train, Y_train = np.array([[-0.1, -0.7], [2.1, 0.25]]), np.array([-0.3, 1.6])
X_test = np.array([[-1.2, -0.95]])
ETA = 0.4
SETTINGS = {"depth": 2, "C_b": 0.1, "C_W": 1.3, "lambda_b": 0.5, "lambda_W": 1.0}


def predicted(width, **options):
    """The prediction for networks of this width."""
    network = ft.MLP("sin", width=width, **SETTINGS)
    return ft.predict(network, X_train, Y_train, X_test, regime="finite", **options)


# %% [markdown]
# ## The prediction, by origin
#
# `ntk_mean` comes from the mean of the tangent kernel, which finite width shifts (with one hidden layer it does not);
# `ntk_variance` from the kernel being another one in every network; `dntk`, `ddntk_1` and `ddntk_2` from its change
# during training, that is, from representation learning.

# %%
found = predicted(64, eta=ETA)
print(found)

# %% [markdown]
# At infinite width every algorithm ends at the same function. At finite width it matters which one was used:

# %%
for algorithm in ("gradient_descent", "flow", "two_step"):
    eta = ETA if algorithm == "gradient_descent" else None
    other = predicted(64, algorithm=algorithm, eta=eta)
    change = float(other.mean.squeeze()) - float(other.infinite_mean.squeeze())
    print(f"{algorithm:17s} {change:+.5f} from infinite width")

# %% [markdown]
# ## The truth
#
# Thousands of networks are drawn and trained at once, in pairs that differ by the sign of their last layer: such a
# pair starts with opposite outputs, which removes most of the noise from the mean.


# %%
def trained_outputs(width, pairs, steps=80, seed=0):
    """Test outputs of trained networks, averaged within each pair."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape):
        half = torch.randn(pairs, *shape, generator=source)
        return half, torch.cat([half, half])

    x, y = torch.tensor(X_train).float(), torch.tensor(Y_train).float()
    variance_b, variance_W = SETTINGS["C_b"], SETTINGS["C_W"]
    rate_b, rate_W = ETA * SETTINGS["lambda_b"], ETA * SETTINGS["lambda_W"]
    W1, b1 = normal(width, 2)[1] * (variance_W / 2) ** 0.5, normal(width)[1] * variance_b**0.5
    W2, b2 = (torch.cat([half, -half]) for half in (normal(width)[0], normal()[0]))
    W2, b2 = W2 * (variance_W / width) ** 0.5, b2 * variance_b**0.5
    for _ in range(steps):
        hidden = torch.einsum("kij,aj->kai", W1, x) + b1[:, None]
        active, slope = torch.sin(hidden), torch.cos(hidden)
        error = torch.einsum("kai,ki->ka", active, W2) + b2[:, None] - y
        back = error[..., None] * slope * W2[:, None]
        W2 = W2 - rate_W / width * torch.einsum("kai,ka->ki", active, error)
        b2 = b2 - rate_b * error.sum(1)
        W1 = W1 - rate_W / 2 * torch.einsum("kai,aj->kij", back, x)
        b1 = b1 - rate_b * back.sum(1)
    test = torch.tensor(X_test).float()
    outputs = (torch.sin(torch.einsum("kij,aj->kai", W1, test) + b1[:, None]) * W2[:, None]).sum(-1)
    return (outputs[:, 0] + b2).reshape(2, pairs).mean(0).numpy()


widths, means, errors = [16, 32, 64], [], []
for width in widths:
    outputs = trained_outputs(width, pairs=10_000)
    means.append(outputs.mean())
    errors.append(outputs.std() / len(outputs) ** 0.5)
    theory = predicted(width, eta=ETA)
    rest = means[-1] - float(theory.mean.squeeze())
    second = theory.expansion.terms**2 * abs(means[-1])
    print(
        f"width {width}: {means[-1]:.4f} ± {errors[-1]:.4f}, to first order {float(theory.mean.squeeze()):.4f}; "
        f"left {rest:+.4f}, z = {rest / errors[-1]:+.1f}; second order about {second:.4f}"
    )
print(f"infinite width: {float(theory.infinite_mean.squeeze()):.4f}")

# %%
figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
inverse = np.array([0.0, 0.07])
start = float(theory.infinite_mean.squeeze())
slope = (float(theory.mean.squeeze()) - start) * widths[-1]
axes.axhline(start, color="grey", linestyle=":", label="infinite width")
axes.plot(inverse, start + slope * inverse, label="first order in 1/n")
axes.errorbar([1 / width for width in widths], means, errors, fmt="o", label="trained networks", capsize=3)
axes.set(xlabel="1 / width", ylabel="mean output at the test input")
axes.legend()
plt.show()

# %% [markdown]
# The line has no free parameter. What is left between it and the points is of second order, and grows as the square
# of depth over width: it is of the order of the square of the first, whose size `found.expansion` states. That is
# what z = 6 at width 16 shows; as the width grows, what is left falls below the standard error.

# %%
print(found.expansion)

# %% [markdown]
# All of this in one call, for any such network: `ft.compare(network, X_train, Y_train, X_test, trained=True,
# regime="finite")` trains networks of several widths, extrapolates to the first order and gives each of its terms a
# z-score.
