"""Measurements: `make bench`. Medians and spread, a peer or baseline in the same run, machine and commit noted."""
