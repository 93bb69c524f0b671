"""Carries changes to online databases, in parallel, without a unique-key conflict."""
