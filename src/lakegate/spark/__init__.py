"""Spark itself: the jars it needs, the Java it runs on, the session."""
