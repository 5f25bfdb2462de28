"""Figure 3: escape times of five activations collapse."""
