"""Benchmarks: `python -m bench` prints ratios to peers and to the arithmetic limit, all timed in one run.

A benchmark is a module in this folder with a function `jobs()`; see bench.harness.jobs for what a job is.
Nothing is imported here, because the peers' processes import this package too, from their own environments.
"""
