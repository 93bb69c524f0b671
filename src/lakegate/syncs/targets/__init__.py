"""Target databases: PostgreSQL, MariaDB and MySQL, SQLite."""
