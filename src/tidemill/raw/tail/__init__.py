"""Follows a stream: its rows in order with its watermarks, and its late rows.

Read in process from raw and the ledger, in bounded pieces; nothing in the warehouse changes.
"""

from tidemill.raw.tail.late import LateTotals, late_rows, late_totals
from tidemill.raw.tail.offsets import Feed
from tidemill.raw.tail.tail import tail

__all__ = ["Feed", "LateTotals", "late_rows", "late_totals", "tail"]
