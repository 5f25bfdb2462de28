"""Training: record observables while any loop runs, gradient-flow integrators, tasks."""
