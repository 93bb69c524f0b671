"""Streams: what each kind does with a batch, and the loop that takes the turns."""
