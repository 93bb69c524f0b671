"""Streams that keep a table small: OPTIMIZE, purge, VACUUM."""
