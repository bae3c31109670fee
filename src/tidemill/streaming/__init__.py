"""Streaming windows: rows of raw are assigned to windows, aggregated exactly, and come out as results.

`operators` is the same as a pure core, row by row; the rest works on whole columns, inside Spark tasks.
"""
