"""Expectations of all pairs of inputs at once: what ``gram`` and ``cross_gram`` run on.

``engine``         which way each product and each pair takes, on all cores
``closed_forms``   whole tiles of pairs, written for speed
``split_kinks``    nearly parallel inputs of functions with a kink: the kink apart from the smooth rest
``interpolation``  many nearly parallel inputs of any function
"""
