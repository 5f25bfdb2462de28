"""Short real trainings: at the edge of stability, at the best rate, on samples held out, with and without a cure."""
