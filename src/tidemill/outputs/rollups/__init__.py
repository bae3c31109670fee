"""Metrics at five levels: exact cells, kept in tiles, each made of a known set of slices."""
