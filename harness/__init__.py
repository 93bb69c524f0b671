"""The rig of the tests: simulator, soaks, conformance suites, fakes and faults. It is not in the wheel."""
