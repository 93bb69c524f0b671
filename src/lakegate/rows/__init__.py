"""Row-level concurrency: statements that retry on the rows that a concurrent commit changed, and on no others."""
