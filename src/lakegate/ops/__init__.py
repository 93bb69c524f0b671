"""What people and schedulers do to a pipeline: look at it, check it, pause it, repair it."""
