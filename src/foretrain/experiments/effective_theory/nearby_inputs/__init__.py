"""Section 10.3: predictions near one training input."""
