"""What came in, for those who follow it: a stream's rows in order with its watermarks, and its late rows.

Read in process from raw and the ledger, a bounded piece at a time; nothing in the warehouse changes.
"""

from tidemill.following.late import LateTotals, late_rows, late_totals
from tidemill.following.places import Feed
from tidemill.following.tail import tail

__all__ = ["Feed", "LateTotals", "late_rows", "late_totals", "tail"]
