"""Sync: changes are read, folded, staged and applied, and the position is kept in the target."""
