"""Streaming windows: rows of raw are assigned to windows, aggregated exactly, and published as results.

It works on whole columns, in process or in Spark tasks; `tidemill.testing` has the same rules row by row.
"""
