"""Who writes to the tables of a lock, and in what order: pure data, pure moves, and the protocol as generators."""
