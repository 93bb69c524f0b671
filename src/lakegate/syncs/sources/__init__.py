"""Sources of changes: files, Debezium, Kafka topics, Delta tables."""
