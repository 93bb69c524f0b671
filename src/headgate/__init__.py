"""Headgate: many Spark writers, one Delta table, in a stated order."""

from __future__ import annotations

__version__ = "0.1.0"
