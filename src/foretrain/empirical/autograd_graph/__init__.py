"""How a model uses its parameters, read off the autograd graph of a pass with a few samples."""
