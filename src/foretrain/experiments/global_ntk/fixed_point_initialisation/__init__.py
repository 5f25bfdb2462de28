"""Figure 8: recurrent matrices with added fixed points."""
