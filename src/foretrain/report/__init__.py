"""Pictures of results, one file for each kind, and pages.

``page`` puts the pictures of a diagnosis together, ``experiments_page`` those of a run of several experiments.

A function whose name ends in ``_figure`` returns a figure of matplotlib:

``doctor``      ``doctor_figure``: what a diagnosis found
``escape``      ``escape_figure``, ``trajectory_figure``: how long the plateau of a small initialisation is
``experiments`` ``experiments_figure``: how the rows of several experiments ended
``prediction``  ``prediction_figure``: what trained networks answer
``sweep``       ``sweep_figure``: an observable over a grid of parameters
"""
