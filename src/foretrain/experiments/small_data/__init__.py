"""Experiments after Arora et al., Harnessing the Power of Infinitely Wide Deep Nets on Small-data Tasks."""
