"""Everything that touches Delta's own classes: its log, its statements, and the note that marks a governed table."""
