"""Figure 5: several modes escaping together."""
