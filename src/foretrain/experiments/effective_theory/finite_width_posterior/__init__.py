"""Section 6.4: Bayesian learning at order 1/n beside exact finite-width posteriors."""
