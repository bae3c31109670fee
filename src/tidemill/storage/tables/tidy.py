"""Deletes, from time to time, what is no longer needed of a table: replaced parts and old log entries."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

from tidemill.model.time import DAY
from tidemill.storage.tables.table import Table

log = logging.getLogger(__name__)

TIDY_EVERY: Final = 10  # versions of a table
KEEP_LOG: Final = DAY


def tidy(tables: Sequence[Table], keep_replaced: int, now: int) -> None:
    """Delete replaced parts and old log entries, if it is time to."""
    for table in tables:
        if table.is_untidy(TIDY_EVERY):
            gone = table.vacuum(keep_replaced, now)
            trimmed = table.trim_log(KEEP_LOG, now)
            context = {"table": str(table.root)}
            log.info("deleted %d files and %d log entries", len(gone), trimmed, extra=context)
