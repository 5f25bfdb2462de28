"""Chapter 1: correlators of nearly-Gaussian laws from their couplings."""
