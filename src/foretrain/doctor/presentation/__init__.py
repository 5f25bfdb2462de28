"""Findings in words, as code, and as records for machines."""
