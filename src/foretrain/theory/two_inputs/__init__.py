"""Two inputs and how they merge or part with depth (sections 5.2, 5.5).

``nearby``  two nearby inputs: K_[0], K_[1], K_[2] and their flow, order by order in the difference
``angles``  two inputs at any angle, exact for scale-invariant activations
"""
