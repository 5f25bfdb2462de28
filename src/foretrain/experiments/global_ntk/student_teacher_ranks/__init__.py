"""Figure 5: ranks against gain and input rank."""
