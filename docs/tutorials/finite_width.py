"""What finite width changes."""

# %% [markdown]
# x
