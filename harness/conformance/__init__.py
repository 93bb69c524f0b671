"""One suite per port; each adapter, and the fake, subclasses it with a hook that makes the thing under test."""
