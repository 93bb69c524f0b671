"""What can be found out about a pipeline without changing it: `check`, `doctor`, `status`, `verify`."""
