"""Streaming windows: rows of raw are assigned to windows, aggregated exactly, and come out as results.

It works on whole columns, in process or inside Spark tasks; `tidemill.testing` has the same rules row by row.
"""
