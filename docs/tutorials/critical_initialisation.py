"""Critical initialisation in five minutes."""

# %% [markdown]
# Plain gradient descent does not teach a deep network that starts off criticality, because signals or gradients
# change exponentially with depth. This tutorial finds the critical initialisation of an activation, shows what
# happens beside it, and trains with it.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import foretrain as ft

print(ft.criticality("tanh"))

# %% [markdown]
# `C_b` is the variance of the biases, `C_W` that of the weights times the fan-in. For tanh the critical kernel
# is $K^\star=0$: signals shrink, but only as one over depth. The same question for a function of your own
# takes no more:

# %%
print(ft.criticality(lambda z: np.tanh(z) + 0.3 * np.tanh(z) ** 2))

# %% [markdown]
# ## What happens off criticality
#
# Two inputs are sent through 30 layers. Below criticality their kernel dies; above it the two lose most of their
# resemblance.

# %%
DEPTH, WIDTH = 30, 128
pair = np.array([[1.0, 0.0], [0.8, 0.6]])
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for C_W, label in ((0.7, "C_W = 0.7"), (1.0, "critical, C_W = 1"), (2.0, "C_W = 2")):
    K = ft.flow(ft.MLP("tanh", DEPTH, WIDTH, C_W=C_W), pair, ["K"])["K"]
    left.semilogy(K["layer"], K[:, 0, 0], label=label)
    right.plot(K["layer"], K[:, 0, 1] / np.sqrt(K[:, 0, 0] * K[:, 1, 1]), label=label)
left.set(xlabel="layer", ylabel="kernel of one input", title="size of the signal")
right.set(xlabel="layer", ylabel="correlation of two inputs", title="how alike the two remain")
left.legend()
plt.show()

# %% [markdown]
# ## A critical network
#
# `MLP.critical` sets the variances and the learning rates of every layer, so that all layers contribute
# equally. It says for which depth and width the theory may be trusted: what matters is their ratio.

# %%
network = ft.MLP.critical("tanh", depth=DEPTH, width=WIDTH)
print(ft.theory.finite_width.expansion_parameter(network))

# %% [markdown]
# ## Does it train?
#
# The same network as torch initialises it ($C_W=1/3$) and critically, on the same regression, both by plain
# gradient descent at five learning rates.

# %%
torch.manual_seed(0)
x = torch.randn(64, 2)
y = torch.sin(2 * x[:, :1]) * x[:, 1:]


def losses(model, optimizer, steps=200):
    """Half the sum of squares at every step, up to the first that is not finite."""
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).sum() / 2
        found.append(loss.item())
        if not np.isfinite(found[-1]):
            break
        loss.backward()
        optimizer.step()
    return np.nan_to_num(found, nan=np.inf, posinf=np.inf)


def as_torch_does(rate, optimizer_class=torch.optim.SGD):
    """Losses of the same layers with torch's own initialisation."""
    torch.manual_seed(1)
    linears = [torch.nn.Linear(2 if i == 0 else WIDTH, 1 if i == DEPTH - 1 else WIDTH) for i in range(DEPTH)]
    modules = [module for linear in linears for module in (linear, torch.nn.Tanh())]
    model = torch.nn.Sequential(*modules[:-1])
    return losses(model, optimizer_class(model.parameters(), lr=rate))


def critically(rate):
    """Losses of the critical network with its learning rates by layer."""
    model = ft.compare.build.build(network, n_in=2, seed=1, dtype=torch.float32)
    return losses(model, torch.optim.SGD(ft.compare.build.parameter_groups(model, network, eta=rate)))


figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for train in (as_torch_does, critically):
    curves = {rate: train(rate) for rate in (1e-3, 1e-2, 0.03, 0.1, 0.3)}
    ends = ", ".join(
        f"{curve[-1]:.1f} at {rate:g}" if np.isfinite(curve[-1]) else f"diverges at {rate:g}"
        for rate, curve in curves.items()
    )
    name, best = train.__name__.replace("_", " "), min(curves.values(), key=lambda curve: curve[-1])
    axes.semilogy(best, label=f"{name}, at its best rate")
    print(f"{name}: loss {best[0]:.1f} at first; after {len(best)} steps {ends}")
adam = as_torch_does(1e-4, torch.optim.Adam)
print(f"as torch does, by Adam at 1e-4: {adam[-1]:.1f} after {len(adam)} steps")
axes.set(xlabel="step", ylabel="loss")
axes.legend()
plt.show()

# %% [markdown]
# The default network answers all inputs alike after so many layers, and its early layers receive hardly any
# gradient: to plain gradient descent no rate is of use. Adam, which divides gradients by their size, does learn it.
# From the command line, `foretrain critical tanh --depth 30 --width 128` prints the layers to use.
