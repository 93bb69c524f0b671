"""Sources of changes."""
