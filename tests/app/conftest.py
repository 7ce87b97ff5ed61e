"""A table with three bundled models, which all tests of this folder share: a capture takes seconds."""

import pytest

from backplay.app.library import Library
from backplay.app.solved import Table
from backplay.app.uploads import Uploads


@pytest.fixture(scope="session")
def table(tmp_path_factory):
    uploads = Uploads(tmp_path_factory.mktemp("uploads"), tmp_path_factory.getbasetemp())
    return Table(Library(("zoo:vgg", "zoo:vgg-spurious", "zoo:text")), uploads)
