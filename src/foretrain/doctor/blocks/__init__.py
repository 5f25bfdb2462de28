"""Models of any kind, taken apart by running them: blocks, residual branches, and the answers of units."""
