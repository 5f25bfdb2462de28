"""Tasks of the sources, made from seeds alone: no data set is needed."""
