"""The command line: thin; it parses, calls and prints.

A command is a file of its own name. What they share:

``main``          finds the command that is asked for
``frame``         the options of all commands, what they hand back, and what happens to errors
``options``       options of several commands, how their texts are read, and the networks that they describe
``models``        models and data of users' files, and from both to a diagnosis
"""
