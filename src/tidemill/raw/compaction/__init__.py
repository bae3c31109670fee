"""Compaction of raw: the rows of many small slices become few large sorted parts."""
