"""Chapter ∞: trained networks beside the prediction to order 1/n."""
