"""Drives the pure turn protocol with real stores, tables and clocks; knows them by their ports only."""
