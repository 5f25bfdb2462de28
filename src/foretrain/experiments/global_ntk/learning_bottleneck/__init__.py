"""Figure 4: a bottleneck of learning, and two ways out of it."""
