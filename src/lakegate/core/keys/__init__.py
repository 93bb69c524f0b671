"""Keys: which unique values a batch of changes frees and takes, and how it is applied without one row being in another's way."""
