"""Stock statements that succeed though another commit came first: `DeltaTable` and SQL, with one changed import."""
