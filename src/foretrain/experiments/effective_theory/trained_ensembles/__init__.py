"""Chapter 10: trained networks of growing width beside the infinite-width prediction."""
