"""Stores of lock records: SQLite, ZooKeeper, DynamoDB, memory."""
