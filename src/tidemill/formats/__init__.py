"""Bytes to records to columns: find records, check that they are valid, read columns, decide unusual ones."""
