"""The one reader of torch models: the autograd graph of a run, the weights in it, its layers, and the chain of them.

``tape``       the graph as a list of nodes, and which entries of its tensors belong to which sample
``sites``      where a parameter enters a product or a sum, and what it meets there
``structure``  all parameters of a model with their uses, and which of them belong together
``layers``     calls of layers while a model runs: what goes in and out, what it depends on, by which slope
``chain``      linear layers and elementwise activations one after the other, if a model is such a chain
"""
