"""Adapters of the port `EventSink`."""
