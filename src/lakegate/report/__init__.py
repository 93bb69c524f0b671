"""The report of a pipeline's turns and commits: one HTML file that needs neither a server nor a network."""
