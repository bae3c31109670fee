"""Streaming windows: rows of raw are assigned to windows, aggregated exactly, and come out as revisions in a table."""
