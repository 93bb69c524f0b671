"""The demo: three jobs on one table, with turns and without, on the same input, compared with the true answer."""
