"""Products of parameters: the default run tests every pair of values, `make test-full` every combination."""

from itertools import combinations, product

import pytest


def covering(*, keep=lambda **_: True, **axes):
    """Parametrizes a test by the product of ``axes``; combinations that no pair of values needs are marked ``full``.

    Args:
        keep: Called with a combination by name; False leaves it out of both runs.
        axes: The values of each parameter, or ``pytest.param`` with an ``id``.
    """
    names, values = list(axes), [list(each) for each in axes.values()]
    places = [at for at in product(*(range(len(each)) for each in values)) if keep(**_named(names, values, at))]
    chosen = _pairwise(places)
    cases = [
        pytest.param(
            *(_value(each[at]) for each, at in zip(values, place, strict=True)),
            id="-".join(_name(each[at]) for each, at in zip(values, place, strict=True)),
            marks=() if place in chosen else (pytest.mark.full,),
        )
        for place in places
    ]
    return pytest.mark.parametrize(names, cases)


def _pairwise(places):
    """Takes the combination with the most new pairs again and again, until each pair that occurs is covered."""
    pairs = {place: set(combinations(enumerate(place), 2)) or {(at, at) for at in enumerate(place)} for place in places}
    missing = set().union(*pairs.values()) if pairs else set()
    chosen = set()
    while missing:
        best = max(places, key=lambda place: len(pairs[place] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


def _named(names, values, place):
    return {name: _value(each[at]) for name, each, at in zip(names, values, place, strict=True)}


def _value(given):
    return given.values[0] if isinstance(given, type(pytest.param(0))) else given


def _name(given):
    if isinstance(given, type(pytest.param(0))):
        return str(given.id if given.id is not None else given.values[0])
    return getattr(given, "__name__", str(given))
