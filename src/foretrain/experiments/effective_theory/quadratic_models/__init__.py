"""Section 11.4: quadratic models, closed form against training."""
