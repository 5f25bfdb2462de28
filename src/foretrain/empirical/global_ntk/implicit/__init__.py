"""States that solve an equation, and how to find them."""
