"""How long is the plateau?"""

# %% [markdown]
# The loss does not move for thousands of steps, then it falls suddenly. Is the network broken, or slow? If its
# weights started small, this is the saddle at zero, and its length can be predicted.

# %%
from itertools import pairwise

import torch

import foretrain as ft

torch.manual_seed(0)
sizes = [8, 32, 32, 32, 1]
layers = []
for fan_in, width in pairwise(sizes):
    layers += [torch.nn.Linear(fan_in, width, bias=False), torch.nn.Tanh()]
model = torch.nn.Sequential(*layers[:-1])
with torch.no_grad():
    for weight in model.parameters():
        weight.normal_(std=0.08 / weight.shape[1] ** 0.5)
x = torch.randn(256, 8)
y = torch.tanh(x[:, :1] + 0.5 * x[:, 1:2])

# %% [markdown]
# ## The forecast
#
# `ft.plateau` integrates the network's own gradient flow on its own data with adaptive steps, which takes
# tens of gradients where training takes thousands of steps.

# %%
found = ft.plateau(model, x, y, lr=0.02)
print(found)

# %% [markdown]
# ## The proof
#
# `verify` trains the network as it is, and rescaled as advised.

# %%
checked = found.verify(runs=1)
print(checked)

# %%
checked.plot()

# %% [markdown]
# ## The law behind it
#
# How the time grows as the weights shrink is a power law: with $L$ small layers it is $\epsilon^{-(L-2)}$.
# The number of layers alone fixes the exponent, so that halving the weights of four layers costs a factor of
# four:

# %%
for scale in (0.1, 0.05, 0.025):
    time = ft.saddle.escape_time("tanh", scales=[scale] * 4, width=32, threshold=0.3, method="reduced")
    print(f"amplitude {scale}: escape at s = {time:.0f} (learning rate times steps)")

# %% [markdown]
# From the command line: `foretrain escape --model model.py:make --data data.npz --lr 0.02`.
