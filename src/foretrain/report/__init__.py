"""Pages: ``page`` puts what is known of a diagnosis together, ``experiments_page`` a run of several experiments."""
