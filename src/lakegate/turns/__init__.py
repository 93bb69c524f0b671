"""Turns: one job at a time commits to the tables of a lock, in the stated order."""
