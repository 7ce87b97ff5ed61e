"""Series of networks of other libraries, which take a minute together: `make check` plays a few of each series."""

import pytest


def series(names, few, slow=()):
    """The names as parameters of a test: `few` run always, the others are marked `series`, or `slow` where they are."""
    assert set(few) <= set(names) - set(slow)
    marks = {name: pytest.mark.slow if name in slow else pytest.mark.series for name in names if name not in few}
    return [pytest.param(name, marks=marks.get(name, ())) for name in names]
