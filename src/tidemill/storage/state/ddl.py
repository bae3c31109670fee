"""The tables of `state.db`, as the migrations that made them: a new file gets all of them, an old one those
it lacks.

A released migration is never edited: files exist that it was applied to.
"""

from __future__ import annotations

from typing import Final

# In `tile_slices` and `window_slices`, `desired` of a tile and `observed` of both are 0 for no, otherwise 1 +
# the decision (column `judgement`) under whose name the slice is meant: a slice that was decided again is
# another contribution.
# A row of `window_slices` that is no `member` is kept while it is observed: the window was built with it.

_FIRST: Final = """
CREATE TABLE slices (
    seq            INTEGER PRIMARY KEY,
    id             TEXT NOT NULL UNIQUE,
    stream         TEXT NOT NULL,
    source         TEXT NOT NULL,
    name           TEXT NOT NULL,
    format         TEXT NOT NULL,
    codec          TEXT NOT NULL,
    path           TEXT NOT NULL,
    size           INTEGER NOT NULL,
    arrival        INTEGER NOT NULL,
    declared_start INTEGER,
    declared_end   INTEGER,
    status         TEXT NOT NULL,
    records        INTEGER NOT NULL,
    accepted       INTEGER NOT NULL,
    duplicate      INTEGER NOT NULL,
    conflict       INTEGER NOT NULL,
    rejected       INTEGER NOT NULL,
    late           INTEGER NOT NULL,
    rejects        TEXT NOT NULL,
    observed_start INTEGER,
    observed_end   INTEGER,
    watermark      INTEGER,
    batch          TEXT,
    error          TEXT,
    landings       INTEGER NOT NULL
);
CREATE INDEX slices_by_stream ON slices (stream, seq);
CREATE INDEX slices_by_status ON slices (stream, status, seq);

CREATE TABLE totals (
    stream TEXT NOT NULL,
    name   TEXT NOT NULL,
    value  INTEGER NOT NULL,
    PRIMARY KEY (stream, name)
) WITHOUT ROWID;

CREATE TABLE batches (
    stream TEXT NOT NULL,
    batch  TEXT NOT NULL,
    PRIMARY KEY (stream, batch)
) WITHOUT ROWID;

CREATE TABLE versions (
    stream  TEXT NOT NULL,
    part_of TEXT NOT NULL,
    version INTEGER NOT NULL,
    PRIMARY KEY (stream, part_of)
) WITHOUT ROWID;

CREATE TABLE clocks (
    stream    TEXT NOT NULL,
    source    TEXT NOT NULL,
    max_seen  INTEGER NOT NULL,
    watermark INTEGER NOT NULL,
    PRIMARY KEY (stream, source)
) WITHOUT ROWID;

CREATE TABLE runs (
    stream TEXT NOT NULL,
    place  INTEGER NOT NULL,
    name   TEXT NOT NULL,
    PRIMARY KEY (stream, place),
    UNIQUE (stream, name)
) WITHOUT ROWID;

CREATE TABLE tiles (
    stream   TEXT NOT NULL,
    level    TEXT NOT NULL,
    start    INTEGER NOT NULL,
    desired  TEXT,
    hash     TEXT,
    revision INTEGER NOT NULL,
    part     TEXT,
    rows     INTEGER NOT NULL,
    PRIMARY KEY (stream, level, start)
) WITHOUT ROWID;
CREATE INDEX tiles_stale ON tiles (stream, start) WHERE level = '5s' AND desired IS NOT hash;

CREATE TABLE tile_slices (
    stream   TEXT NOT NULL,
    start    INTEGER NOT NULL,
    slice    INTEGER NOT NULL REFERENCES slices (seq),
    desired  INTEGER NOT NULL,
    observed INTEGER NOT NULL,
    PRIMARY KEY (stream, start, slice)
) WITHOUT ROWID;
"""

_SECOND: Final = """
ALTER TABLE slices ADD COLUMN metadata TEXT;
ALTER TABLE slices ADD COLUMN attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slices ADD COLUMN judgement INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slices ADD COLUMN accepted_before INTEGER;
ALTER TABLE slices ADD COLUMN retracted_at INTEGER;
ALTER TABLE slices ADD COLUMN retract_reason TEXT;

CREATE TABLE counters (
    name  TEXT NOT NULL PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO counters (name, value) VALUES ('retractions', 0), ('version', 0);

CREATE TABLE layouts (
    stream TEXT NOT NULL PRIMARY KEY,
    span   INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE unlaid (
    stream TEXT NOT NULL,
    slice  INTEGER NOT NULL REFERENCES slices (seq),
    PRIMARY KEY (stream, slice)
) WITHOUT ROWID;
INSERT INTO unlaid (stream, slice) SELECT stream, seq FROM slices WHERE status = 'accepted';

CREATE TABLE windows (
    stream      TEXT NOT NULL,
    start       INTEGER NOT NULL,
    span        INTEGER NOT NULL,
    version     INTEGER NOT NULL,
    phase       TEXT NOT NULL,
    reason      TEXT,
    detail      TEXT,
    check_at    INTEGER,
    ready       INTEGER NOT NULL,
    desired     TEXT,
    observed    TEXT,
    revision    INTEGER NOT NULL,
    sealed      INTEGER,
    seal        INTEGER,
    file        TEXT,
    rows        INTEGER,
    bytes       INTEGER,
    built_at    INTEGER,
    trigger     TEXT,
    attempts    INTEGER NOT NULL,
    not_before  INTEGER NOT NULL,
    owner       TEXT,
    lease_until INTEGER,
    error       TEXT,
    building    TEXT,
    due         INTEGER NOT NULL,
    priority    INTEGER NOT NULL,
    PRIMARY KEY (stream, start)
);
CREATE INDEX windows_by_phase ON windows (stream, phase, start);
CREATE INDEX windows_due ON windows (stream, start) WHERE due = 1;
CREATE INDEX windows_check ON windows (stream, check_at) WHERE due = 0 AND check_at IS NOT NULL;
CREATE INDEX windows_queue ON windows (phase, priority DESC, stream, start) WHERE phase = 'queued';
CREATE INDEX windows_leases ON windows (owner, lease_until) WHERE phase = 'building';

CREATE TABLE window_slices (
    stream   TEXT NOT NULL,
    start    INTEGER NOT NULL,
    slice    INTEGER NOT NULL REFERENCES slices (seq),
    member   INTEGER NOT NULL,
    desired  INTEGER NOT NULL,
    observed INTEGER NOT NULL,
    ignored  TEXT,
    PRIMARY KEY (stream, start, slice)
) WITHOUT ROWID;
CREATE INDEX window_slices_by_slice ON window_slices (slice);

CREATE TABLE outbox (
    seq    INTEGER PRIMARY KEY,
    id     TEXT NOT NULL UNIQUE,
    type   TEXT NOT NULL,
    stream TEXT NOT NULL,
    time   INTEGER NOT NULL,
    data   TEXT NOT NULL
);
CREATE INDEX outbox_by_stream ON outbox (stream, seq);

CREATE TABLE deliveries (
    sink TEXT NOT NULL PRIMARY KEY,
    seq  INTEGER NOT NULL
) WITHOUT ROWID;
"""

# Before, a source was never idle and the stream's watermark was the least of its sources'.
_THIRD: Final = """
ALTER TABLE clocks ADD COLUMN arrival INTEGER NOT NULL DEFAULT 0;
UPDATE clocks SET arrival = coalesce((
    SELECT s.arrival FROM slices s
    WHERE s.stream = clocks.stream AND s.status = 'accepted' AND s.source = clocks.source AND s.accepted > 0
    ORDER BY s.seq DESC LIMIT 1
), 0);

CREATE TABLE progress (
    stream         TEXT NOT NULL PRIMARY KEY,
    watermark      INTEGER,
    emitted        INTEGER NOT NULL,
    buffered_rows  INTEGER NOT NULL,
    buffered_bytes INTEGER NOT NULL,
    released_early INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO progress (stream, watermark, emitted, buffered_rows, buffered_bytes, released_early)
SELECT stream, min(watermark), 0, 0, 0, 0 FROM clocks GROUP BY stream;

CREATE TABLE marks (
    stream TEXT NOT NULL,
    name   TEXT NOT NULL,
    mark   TEXT NOT NULL,
    PRIMARY KEY (stream, name)
) WITHOUT ROWID;
"""

_FOURTH: Final = """
CREATE TABLE receipts (
    id       TEXT NOT NULL PRIMARY KEY,
    stream   TEXT NOT NULL,
    tenant   TEXT,
    slice    TEXT NOT NULL,
    first    INTEGER NOT NULL,
    records  INTEGER NOT NULL,
    window   TEXT NOT NULL,
    at       INTEGER NOT NULL,
    repeated INTEGER NOT NULL,
    until    INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX receipts_by_until ON receipts (until);
"""

# Before, a slice that failed was not tried again: what it failed by is not known, so that it is tried once.
_FIFTH: Final = """
ALTER TABLE slices ADD COLUMN retried INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slices ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE slices ADD COLUMN retry_at INTEGER;
ALTER TABLE slices ADD COLUMN failed_as TEXT;
UPDATE slices SET failures = 1, failed_as = '' WHERE status = 'failed';
CREATE INDEX slices_retry ON slices (stream, retry_at) WHERE status = 'failed' AND retry_at IS NOT NULL;
CREATE INDEX slices_unread ON slices (stream, failed_as) WHERE status = 'failed' AND retry_at IS NULL;
"""

# Before, a window did not wait for slices that had landed and were not decided, and nothing said by which
# rules it was evaluated and which columns its dataset has.
_SIXTH: Final = """
ALTER TABLE slices ADD COLUMN replays TEXT;
ALTER TABLE layouts ADD COLUMN declared TEXT NOT NULL DEFAULT '';
ALTER TABLE window_slices ADD COLUMN runs TEXT;
ALTER TABLE windows ADD COLUMN rules TEXT;
ALTER TABLE windows ADD COLUMN columns TEXT;
ALTER TABLE windows ADD COLUMN blocked_by INTEGER;
CREATE INDEX windows_blocked ON windows (blocked_by) WHERE blocked_by IS NOT NULL;
"""

# Before, nothing said which rows of later arrivals a slice held that could not be read in time.
_SEVENTH: Final = """
ALTER TABLE slices ADD COLUMN repeats TEXT;
"""

# Before, damage inside a dataset was found by `verify` only.
_EIGHTH: Final = """
ALTER TABLE windows ADD COLUMN checksum TEXT;
"""

# Before, the state did not know how far the logs beside the slices go, and which files are damaged.
_NINTH: Final = """
CREATE TABLE logs (
    name  TEXT NOT NULL PRIMARY KEY,
    lines INTEGER NOT NULL,
    chain TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE log_lines (
    name   TEXT NOT NULL,
    number INTEGER NOT NULL,
    line   BLOB NOT NULL,
    PRIMARY KEY (name, number)
) WITHOUT ROWID;

CREATE TABLE damages (
    file   TEXT NOT NULL PRIMARY KEY,
    kind   TEXT NOT NULL,
    stream TEXT NOT NULL,
    reason TEXT NOT NULL,
    since  INTEGER NOT NULL
) WITHOUT ROWID;
"""

# Before, a process that worked on a stream locked a file.
_TENTH: Final = """
CREATE TABLE leases (
    name      TEXT NOT NULL PRIMARY KEY,
    number    INTEGER NOT NULL,
    holder    TEXT,
    until     INTEGER NOT NULL,
    length    INTEGER NOT NULL,
    contested INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX leases_by_holder ON leases (holder) WHERE holder IS NOT NULL;
"""

VERSIONS: Final = (_FIRST, _SECOND, _THIRD, _FOURTH, _FIFTH, _SIXTH, _SEVENTH, _EIGHTH, _NINTH, _TENTH)
