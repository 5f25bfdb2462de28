"""The command line: thin; it parses, calls and prints.

A command is a file, or a package with ``entry.py``, of its own name. What they share:

``main``          finds the command that is asked for
``frame``         the options of all commands, what they hand back, and what happens to errors
``output``        printing for people, JSON for machines, and what ``--save`` writes
``wording``       messages about Python's arguments as messages about options
``options``       options of several commands, and how their texts are read
``networks``      networks that are described by options
``model_inputs``  models of users' files, and data as they take them
``examination``   from files to a diagnosis, for ``doctor`` and ``report``
"""
