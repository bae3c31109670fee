"""Metrics at five levels: exact cells, kept in tiles, each made from a known set of slices."""
