"""Plain SQL over the tables of a warehouse: DuckDB in process, read-only, at one snapshot."""
