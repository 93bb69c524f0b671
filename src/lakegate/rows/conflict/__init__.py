"""Decides whether and how a statement's commit is rebased on concurrent commits: pure, explored by the simulator."""
