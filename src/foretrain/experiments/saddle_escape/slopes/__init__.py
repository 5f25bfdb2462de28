"""Figure 4: slopes of escape times of He-normal networks."""
