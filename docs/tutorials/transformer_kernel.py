"""The NTK of a transformer."""

# %% [markdown]
# Tangent kernels are not only for multilayer perceptrons. `ft.ntk` takes any torch module as it is, reads its
# autograd graph, and goes parameter by parameter: by Gram matrices of activities and sensitivities, or by the
# gradients of single samples, whichever is cheaper.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch

import foretrain as ft


class Classifier(torch.nn.Module):
    """Tokens in, two classes out: embedding, positions, two encoder layers, mean over time."""

    def __init__(self, tokens=20, length=12, width=48):
        super().__init__()
        self.embedding = torch.nn.Embedding(tokens, width)
        self.positions = torch.nn.Parameter(0.1 * torch.randn(length, width))
        layer = torch.nn.TransformerEncoderLayer(
            width, nhead=4, dim_feedforward=96, dropout=0.0, batch_first=True
        )
        self.encoder = torch.nn.TransformerEncoder(layer, num_layers=2)
        self.readout = torch.nn.Linear(width, 2)

    def forward(self, tokens):
        """Logits of shape (samples, 2)."""
        return self.readout(self.encoder(self.embedding(tokens) + self.positions).mean(1))


torch.manual_seed(0)
model = Classifier().double()
tokens = torch.randint(0, 20, (48, 12))
labels = (tokens[:, 0] < tokens[:, -1]).double()  # is the first token smaller than the last one?

# %% [markdown]
# ## The kernel, and what each parameter adds to it

# %%
kernel = ft.ntk(model, tokens, outputs="trace", by="parameter")
shares = {name: float(kernel[name].trace()) for name in kernel.labels}
total = sum(shares.values())
for name, share in sorted(shares.items(), key=lambda item: -item[1])[:6]:
    print(f"{share / total:6.1%}  {name}")

# %% [markdown]
# `kernel.routes` says which way each parameter went. A weight that acts at all twelve positions of a short sequence
# is cheaper by gradients, since its Gram matrices would compare every position with every other one; the readout,
# after the mean over positions, goes by Gram matrices; biases and the like are sums.

# %%
for way in ("gram", "gradient", "sum"):
    names = [name for name, route in kernel.routes.items() if route.way == way]
    print(f"{len(names):2d} by {way}:", ", ".join(names[:3]), "..." * (len(names) > 3))

# %% [markdown]
# It is exact. A check against the definition, one gradient per sample and output:

# %%
whole = ft.ntk(model, tokens[:3], outputs="full")
rows = []
for sample in range(3):
    for output in range(2):
        model.zero_grad()
        model(tokens[sample : sample + 1])[0, output].backward()
        rows.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
gram = torch.stack(rows) @ torch.stack(rows).T
difference = np.asarray(whole).transpose(0, 2, 1, 3).reshape(6, 6) - gram.numpy()
print(f"largest difference {np.abs(difference).max():.1e} of {gram.max():.3g}")
model.zero_grad()

# %% [markdown]
# ## What will be learned first?
#
# Directions with large eigenvalues are learned first. How much of the labels lies in them is the question
# that decides whether this architecture suits this task.

# %%
plain = ft.ntk(model, tokens, outputs="trace")
values, vectors = np.linalg.eigh(np.asarray(plain))
values, vectors = values[::-1], vectors[:, ::-1]
centred = (labels - labels.mean()).numpy()
energy = np.cumsum((vectors.T @ centred) ** 2) / (centred @ centred)

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
left.semilogy(np.arange(1, len(values) + 1), values, ".")
left.set(xlabel="direction", ylabel="eigenvalue", title="spectrum of the kernel")
right.plot(np.arange(1, len(values) + 1), energy)
right.plot([0, len(values)], [0, 1], ":", color="grey", label="labels without any pattern")
right.set(xlabel="leading directions", ylabel="share of the labels in them", title="alignment")
right.legend()
plt.show()
print("condition number", f"{plain.condition_number():.3g}")
print(plain.alignment(torch.as_tensor(centred)))

# %% [markdown]
# Only as much of the labels lies in the leading directions as chance puts there: at initialisation the kernel
# of this model does not know that two positions are to be compared, and what it learns it must learn by
# changing the kernel. Larger kernels go to disk tile by tile with `ft.ntk(..., store="k.zarr")`: [kernels
# larger than memory](../large-kernels.md).
