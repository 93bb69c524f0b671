"""Writes the archive of classes that the JVMs of the tests map; see `lakegate.demo.archive`.

python -m tests.jvm_archive FILE; `make test` calls it once.
"""

from __future__ import annotations

import sys
from pathlib import Path

from lakegate.demo.archive import archive_classes
from tests.conftest import FAST_CONF

if __name__ == "__main__":
    archive_classes(Path(sys.argv[1]).absolute(), FAST_CONF, kafka=True)
