"""Proof that a person's values are gone: which bytes were looked at, what was found, and a certificate of it."""
