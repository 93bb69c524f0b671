"""What happened: events, the ledger, logs."""
