"""The ids that several rooms share, each a type of its own so that one cannot stand for another."""

from __future__ import annotations

from typing import NewType

JobName = NewType("JobName", str)
"""One stream or job that writes; unique per lock."""
Epoch = NewType("Epoch", int)
"""Number of a turn on its lock, from 1, rising; the fencing token."""
Version = NewType("Version", int)
"""Version of a Delta table, from 0; -1 where the table does not exist."""
SessionId = NewType("SessionId", str)
"""One run of one job in the eyes of the store; its liveness is the store's to tell."""
Nonce = NewType("Nonce", str)
"""Drawn once per attempt to take a turn, so that we know our own ticket or grant again after a lost reply."""
TokenId = NewType("TokenId", str)
"""`txn.appId` of a Delta commit: `lakegate/<query id>` and its kin."""
TableLocation = NewType("TableLocation", str)
"""Absolute path or URI of a table, without a trailing slash."""
