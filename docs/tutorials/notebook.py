"""Results in a notebook."""

# %% [markdown]
# Everything that foretrain returns looks after its own presentation. The last line of a cell is enough: a sentence
# that says what was found, the numbers, and a picture that can be looked into. The same result prints as text
# (`print`), draws itself with matplotlib (`.plot()`, also into axes of yours with `.plot(ax)`), gives labelled data
# (`.to_dataset()`) and lists for machines (`.to_dict()`).
#
# ## A critical point

# %%
import torch

import foretrain as ft

ft.criticality("gelu")

# %% [markdown]
# ## Statistics of a random network, layer by layer

# %%
net = ft.MLP.critical("tanh", depth=12, width=100)
x = [[1.0, 0.5], [0.2, -1.0]]
ft.flow(net, x, ["K", "V", "G1"])

# %% [markdown]
# ## What trained networks will answer

# %%
shallow = ft.MLP("sin", depth=2, width=128, C_b=0.1, C_W=1.3, lambda_b=0.5)
places = [[position / 10] for position in range(-20, 21)]
prediction = ft.predict(shallow, [[-0.8], [0.9]], [-0.3, 1.2], places)
prediction

# %% [markdown]
# ## The tangent kernel of a torch model

# %%
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
inputs = torch.randn(24, 4)
kernel = ft.ntk(model, inputs, outputs="trace")
kernel.spectrum()

# %% [markdown]
# ## What gradient descent can change in the states of a recurrent network

# %%
recurrent = torch.nn.GRU(3, 16, batch_first=True)
states = ft.global_ntk(recurrent, torch.randn(6, 12, 3))
states

# %% [markdown]
# ## A diagnosis

# %%
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
ft.doctor(model, inputs, torch.tanh(inputs[:, :1]), optimizer=optimizer)

# %% [markdown]
# ## The same as text, as data, and for a paper

# %%
print(ft.criticality("tanh"))

# %%
prediction.to_dataset()

# %%
prediction.plot()
