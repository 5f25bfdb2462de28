"""Appendix A: information between neurons."""
