"""Exercises that check themselves. ``__main__`` is the command; each file without a leading underscore is an
exercise.

An exercise is a Python module with these parts, in this order:

    docstring           its title in the first line, then what to do
    code                with the part to fill in between the comments YOURS and END: the solution
    ``yours(*case)``    what is checked: it returns tensors, numbers or words
    ``expected(*case)`` the right answer, in float64 where there is rounding
    ``cases()``         the tuples of arguments to check
    ``TOLERANCE``       optional: the error allowed, both relative and absolute; 1e-4 by default
    ``TOPIC, STEP``    its place in the list
    ``MISTAKE``         the usual mistake in place of the solution
    ``HINTS``           from a nudge to nearly the solution

A learner's file ends before ``TOPIC``. ``_catalog`` reads exercises, ``_checking`` runs a learner's file.
"""
