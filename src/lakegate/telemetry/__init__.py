"""Telemetry: events, the ledger, logs."""
