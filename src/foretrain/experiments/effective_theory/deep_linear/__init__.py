"""Chapter 3: deep linear networks, exact in width."""
