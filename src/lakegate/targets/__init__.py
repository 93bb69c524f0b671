"""Target databases: where changes are applied. One way to do it, three dialects."""
