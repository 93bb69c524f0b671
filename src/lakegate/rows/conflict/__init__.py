"""Decides what concurrent commits mean for a statement: pure, explored by the simulator."""
