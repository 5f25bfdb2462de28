"""What every measurement takes: a torch model, the parameters that count, a batch of samples; and what it refuses."""
