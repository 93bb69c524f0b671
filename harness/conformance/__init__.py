"""Suites of the ports, one each. Every adapter, and the fake, subclasses the suite with a hook that makes the thing under test."""
