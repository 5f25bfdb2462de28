"""Why does my RNN not learn?"""

# %% [markdown]
# A GRU sees an angle, must keep it through a delay, and is asked for it at the end (the Memory-Pro task).
# Plain gradient descent gets stuck: the loss falls by more than half, then stays, and the angle is not learned.
# This tutorial asks why, before training anything.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import foretrain as ft
from foretrain.empirical.mode_prediction import predict_modes
from foretrain.empirical.target_modes import target_modes

task = ft.training.tasks.MemoryPro(stimulus=10, memory=20, response=10)
angles = task.angles(16)
x, y = task.inputs(angles), task.targets(angles)
model = ft.training.tasks.Recurrent(3, 32, 3, "gru", seed=0)
print("inputs", tuple(x.shape), "targets", tuple(y.shape))

# %% [markdown]
# ## What can change from here?
#
# The global-state NTK is the operator that turns an error in any hidden state into the change that gradient
# descent makes. Its effective ranks count the directions of time and of units that dominate this change; in the
# others the states move too, but little.

# %%
states = ft.global_ntk(model, x[::4])  # four of the sixteen angles
print(states)
print("directions in time and samples:", states.temporal().effective_rank())
print("directions among units:        ", states.spatial().effective_rank())

# %% [markdown]
# ## Which parts of the target are out of reach?
#
# The target has three modes over samples and time: the fixation signal, and the two coordinates of the angle.
# `predict_modes` says how much of each will be left after so many steps at a learning rate: if the kernel stayed as
# it is, and after a rehearsal, in which a private copy makes a few real steps.

# %%
LEARNING_RATE, STEPS = 0.1, 300
forecast = predict_modes(model.double(), x.double(), y.double(), lr=LEARNING_RATE, steps=STEPS)
print(forecast)

# %% [markdown]
# Training agrees, and shows what helps: Adam rescales the weak directions. Ask `predict_modes` with
# `optimizer="adam"` before you train.

# %%
modes = target_modes(y.flatten(0, 1).double().numpy())


def what_is_left(optimizer_class, rate):
    """The share of every mode of the target that is left, and the loss, at every tenth step of training."""
    network = ft.training.tasks.Recurrent(3, 32, 3, "gru", seed=0)
    optimizer, found, losses = optimizer_class(network.parameters(), lr=rate), [], []
    for step in range(STEPS + 1):
        optimizer.zero_grad()
        outputs = network(x)
        loss = torch.nn.functional.mse_loss(outputs, y)
        if step % 10 == 0:
            found.append(modes.shares((y - outputs.detach()).flatten(0, 1).double().numpy()))
            losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return np.array(found), losses


figure, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True, layout="constrained")
for axes, name, optimizer_class, rate in zip(
    panels, ("plain descent", "Adam"), (torch.optim.SGD, torch.optim.Adam), (LEARNING_RATE, 0.01)
):
    left, loss = what_is_left(optimizer_class, rate)
    for mode in range(3):
        axes.plot(10 * np.arange(len(left)), left[:, mode], label=f"mode {mode + 1}")
    axes.set(title=f"{name}, rate {rate}", xlabel="step")
    print(
        f"{name} leaves {np.abs(left[-1]).round(2)} of the three modes, {loss[-1] / loss[0]:.2f} of the loss"
    )
panels[0].set_ylabel("share of the mode that is left")
panels[0].legend()
plt.show()

# %% [markdown]
# ## What does it do by itself?
#
# What a network can keep through a delay depends on its own dynamics: a state near a stable fixed point is forgotten
# within the time constants there, chaos forgets everything. `ft.lyapunov`, `ft.fixed_points`,
# `ft.participation_ratio` and `ft.spectral_radius` take recurrent layers and cells of torch, models with one inside,
# and any other loop as one step `f(h, x)`; a recorder watches them during training under the same names.

# %%
print(ft.lyapunov(model, x.double(), count=3))
print(ft.participation_ratio(model, x.double()))
points = ft.fixed_points(model, trials=x.double(), starts=20)  # at zero input, as in the delay
print(points)


def leaky(h, u):
    """A loop of one's own: units that do not interact, each with two stable states."""
    return 0.9 * h + 0.1 * torch.tanh(1.2 * h + u)


print(ft.fixed_points(leaky, torch.zeros(2).double(), starts=torch.rand(40, 2).double() - 0.5, dt=0.01))

# %% [markdown]
# All states of the untrained network fall back to one stable point in a few steps, and the angle with them: the
# network must learn to hold it.
#
# A forecast from the kernel at the start holds as long as the kernel does; the forecast says for how many steps that
# was seen, and up to which step its verdict is to be trusted. With a delay of 8 steps instead of
# 20 the first hundred steps go as predicted too, and then plain descent finds one of the two coordinates
# after all.
#
# ## One call for all of this
#
# `ft.doctor(model, x, y, optimizer=...)` makes these measurements and others, finds what holds the network
# back, says what to do and proves it by training with and without: [the doctor](../doctor.md).
