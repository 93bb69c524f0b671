"""headgate jars: fetch, verify, print and lock the jars that Spark needs."""
