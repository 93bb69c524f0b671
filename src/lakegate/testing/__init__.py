"""For tests and the demo only: fakes, faults and servers."""
