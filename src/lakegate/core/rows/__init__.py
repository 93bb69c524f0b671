"""Row-level concurrency: what a statement that lost the race for its version means on top of those that won. Pure."""
