"""Requests of mutate and erase streams: stored, applied, and their outcomes recorded."""
