"""Critical initialisation in five minutes."""

# %% [markdown]
# A deep network that starts off criticality does not learn, because signals or gradients change exponentially
# with depth. This tutorial finds the critical initialisation of an activation, shows what happens beside it,
# and trains with it.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import foretrain as ft

print(ft.criticality("tanh"))

# %% [markdown]
# `C_b` and `C_W` are the variances of biases and of weights times their fan-in. For tanh the critical kernel
# is $K^\star=0$: signals shrink, but only as one over depth. The same question for a function of your own
# takes no more:

# %%
print(ft.criticality(lambda z: np.tanh(z) + 0.3 * np.tanh(z) ** 2))

# %% [markdown]
# ## What happens off criticality
#
# Two inputs are sent through 30 layers. Below criticality their kernel dies; above it the two lose every
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
right.set(xlabel="layer", ylabel="correlation of two inputs", title="what tells them apart")
left.legend()
plt.show()

# %% [markdown]
# ## A critical network
#
# `MLP.critical` sets the variances and the learning rates of every layer, by which all of them take part
# equally. It says for which depth and width the theory may be trusted: what matters is their ratio.

# %%
network = ft.MLP.critical("tanh", depth=DEPTH, width=WIDTH)
print(ft.theory.finite_width.expansion_parameter(network))

# %% [markdown]
# ## Does it train?
#
# The same network as torch initialises it ($C_W=1/3$) and critically, on the same regression, both by plain
# gradient descent, each at the best of two learning rates.

# %%
torch.manual_seed(0)
x = torch.randn(64, 2)
y = torch.sin(2 * x[:, :1]) * x[:, 1:]


def losses(model, groups, steps=200):
    """Half the sum of squares at every step."""
    optimizer, found = torch.optim.SGD(groups), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).sum() / 2
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return np.nan_to_num(found, nan=np.inf)


def as_torch_does(rate):
    """Losses of the same layers with torch's own initialisation."""
    torch.manual_seed(1)
    linears = [torch.nn.Linear(2 if i == 0 else WIDTH, 1 if i == DEPTH - 1 else WIDTH) for i in range(DEPTH)]
    modules = [module for linear in linears for module in (linear, torch.nn.Tanh())]
    model = torch.nn.Sequential(*modules[:-1])
    return losses(model, [{"params": model.parameters(), "lr": rate}])


def critically(rate):
    """Losses of the critical network with its learning rates by layer."""
    model = ft.compare.build.build(network, n_in=2, seed=1, dtype=torch.float32)
    return losses(model, ft.compare.build.parameter_groups(model, network, eta=rate))


figure, axes = plt.subplots(figsize=(6, 3.2), layout="constrained")
for train, rates in ((as_torch_does, (1e-3, 1e-2)), (critically, (5e-3, 1e-2))):
    best = min((train(rate) for rate in rates), key=lambda curve: curve[-1])
    name = train.__name__.replace("_", " ")
    axes.semilogy(best, label=name)
    print(f"{name}: loss {best[0]:.2f} at first, {best[-1]:.2f} after {len(best)} steps")
axes.set(xlabel="step", ylabel="loss")
axes.legend()
plt.show()

# %% [markdown]
# The default network answers all inputs alike after so many layers, and its early layers receive no gradient:
# no rate helps. From the command line, `foretrain critical tanh --depth 30 --width 128` prints the layers to
# use.
