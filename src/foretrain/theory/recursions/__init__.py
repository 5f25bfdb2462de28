"""The layer-to-layer recursions, one file for each family of tensors."""
