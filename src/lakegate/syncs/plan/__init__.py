"""Plans a batch of changes: net changes, conflict graph, apply protocol. Pure."""
