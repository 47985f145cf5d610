"""The state of a queue in SQL: statements, SQLite, PostgreSQL, the producers' gate."""
