"""The network linearised in its parameters: kernel of the outputs, forecasts of target modes and of the loss."""
