"""The ids that several packages share; each is a type of its own, so that they cannot be confused."""

from __future__ import annotations

from typing import NewType

JobName = NewType("JobName", str)
"""One stream or job that writes; unique per lock."""
Epoch = NewType("Epoch", int)
"""Number of a turn on its lock, from 1, rising; the fencing token."""
Version = NewType("Version", int)
"""Version of a Delta table, from 0; -1 where the table does not exist."""
SessionId = NewType("SessionId", str)
"""A run of a job in a turn store; the store decides whether it is alive."""
Nonce = NewType("Nonce", str)
"""A random id per attempt to take a turn, which identifies our own ticket or grant after a lost reply."""
TokenId = NewType("TokenId", str)
"""`txn.appId` of a Delta commit, such as `lakegate/<query id>`."""
TableLocation = NewType("TableLocation", str)
"""Absolute path or URI of a table, without a trailing slash."""
