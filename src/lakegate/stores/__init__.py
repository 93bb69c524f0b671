"""Adapters of the port `TurnStore`; each is imported only when it is chosen."""
