"""Deep linear networks."""
