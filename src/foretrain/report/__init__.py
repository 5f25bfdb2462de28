"""Pictures of results, one file for each kind, and pages.

``page`` puts the pictures of a diagnosis together, ``experiments_page`` those of a run of several experiments.

A function whose name ends in ``_figure`` returns a figure of matplotlib:

``doctor``      ``doctor_figure``: what a diagnosis found
``experiments`` ``experiments_figure``: how the rows of several experiments ended
``sweep``       ``sweep_figure``: an observable over a grid of parameters
"""
