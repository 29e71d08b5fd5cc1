"""Other deadlines in sampling processes: the interpreter reads this when it starts."""

from glt import _deadlines


def set_constants(constants):
    """Sets deadlines of :mod:`glt._deadlines` by name."""
    for name, value in constants.items():
        getattr(_deadlines, name)  # one that there is
        setattr(_deadlines, name, value)
