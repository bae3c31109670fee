"""Reads the columns of a chunk of records: plain records in bulk, unusual ones one by one through `decide`.

The result does not depend on which way a record took; tests compare the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemill.formats.arrays import Bytes, Ints, Mask, RecordChunk
from tidemill.formats.arrow import one, string_buffers
from tidemill.formats.columns import (
    SAFE_DIGITS,
    coded_strings,
    instants,
    scaled_numbers,
    strings,
    utf8_rows,
    whole_numbers,
)
from tidemill.formats.decide import DecidedRecord, RefusedRecord, decide, refuse
from tidemill.formats.delta_check import surely_deltas
from tidemill.formats.json_core import (
    ARRAY,
    ESCAPED,
    EXPONENT,
    FALSE,
    FRACTION,
    INTEGER,
    MISSING,
    NULL,
    OBJECT,
    STRING,
    TRUE,
)
from tidemill.formats.locate import Values, locate, paths_of
from tidemill.formats.message_times import message_times
from tidemill.formats.read_plan import MAX_ID_BYTES, MAX_TENANT_BYTES, UNIX_UNITS, MessageRule, ReadPlan
from tidemill.formats.scan import Scanned, scan
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT

_TAGS_OF_TYPE = {
    "string": (STRING, ESCAPED),
    "integer": (INTEGER, FRACTION, EXPONENT),  # 7.0 is an integer; other fractions are refused later
    "decimal": (INTEGER, FRACTION, EXPONENT),
    "float": (INTEGER, FRACTION, EXPONENT),
    "boolean": (TRUE, FALSE),
    "timestamp": (STRING,),
    "object": (OBJECT,),
    "array": (ARRAY,),
    "any": (STRING, ESCAPED, INTEGER, FRACTION, EXPONENT, TRUE, FALSE, OBJECT, ARRAY),
}
_NOT_COPIED = (ESCAPED, OBJECT, ARRAY)  # kinds of values of which the scanner keeps no text
_EVENT_TYPE = ""  # key among the texts by column: no column has an empty name
REJECTS = pa.schema(
    [
        ("row", pa.int32()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("tenant", pa.string()),  # null if unknown
        ("start", pa.int64()),
        ("end", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class ReadChunk:
    columns: pa.Table  # the valid records, in order
    refused: pa.Table  # the others, with the reason
    located: Sequence[Values]  # of `plan.located`, in the valid records


def read_chunk(plan: ReadPlan, chunk: RecordChunk, arrival: int | Ints) -> ReadChunk:
    """The columns of the valid records, and the refused ones with the reason. `arrival` is that of all of
    them, or of each: records of several slices may be in one chunk."""
    arrivals = np.broadcast_to(np.asarray(arrival, np.int64), chunk.starts.shape)
    found = scan(chunk.data, chunk.starts, chunk.ends, plan.columns, plan.kept, plan.depth)
    bulk = _Bulk(plan, chunk, found, arrivals)
    fast = bulk.read()
    rows = np.flatnonzero(~bulk.good)
    if not rows.size:
        return ReadChunk(fast, REJECTS.empty_table(), bulk.located(fast))
    decided: list[DecidedRecord] = []
    decided_rows: list[int] = []
    refused: list[tuple[int, str, str, str | None, int, int]] = []
    for row in rows.tolist():
        start, end = int(chunk.starts[row]), int(chunk.ends[row])
        # An over-long record is refused by its length alone; its bytes need not be copied.
        fits = end - start <= plan.record_bytes
        record = chunk.data[start:end].tobytes() if fits else bytes(end - start)
        problem = chunk.broken.get(row)
        if problem is None:
            decision = decide(record, plan, int(arrivals[row]))
        else:
            decision = refuse(record, plan, problem)
        if isinstance(decision, RefusedRecord):
            span = start + chunk.base, end + chunk.base
            refused.append((row, decision.reason.value, decision.detail, decision.tenant, *span))
        else:
            decided.append(decision)
            decided_rows.append(row)
    columns = fast
    if decided:
        slow = _decided_columns(plan, decided, decided_rows, chunk, fast.schema)
        both = pa.concat_tables([fast, slow]).unify_dictionaries().combine_chunks()
        columns = both.take(pc.sort_indices(both.column("row")))
    rejects = [dict(zip(REJECTS.names, row, strict=True)) for row in refused]
    return ReadChunk(columns, pa.Table.from_pylist(rejects, schema=REJECTS), bulk.located(columns))


@dataclass(slots=True)
class _Bulk:
    """The vectorised reading of one chunk. `good` shrinks as rules are checked; what is left is returned."""

    plan: ReadPlan
    chunk: RecordChunk
    found: Scanned
    arrivals: Ints  # of all records
    good: Mask = field(init=False)

    def __post_init__(self) -> None:
        self.good = self.found.proven.astype(np.bool_)
        self.good &= (self.chunk.ends - self.chunk.starts) <= self.plan.record_bytes
        self.good[list(self.chunk.broken)] = False
        if self.good.any() and not _all_utf8(self.chunk.data):
            valid = np.empty(self.good.size, np.bool_)
            utf8_rows(self.chunk.data, self.chunk.starts, self.chunk.ends, valid)
            self.good &= valid

    def _tags(self, name: str) -> Bytes:
        return self.found.tags[self.plan.columns.index(name)]

    def _span(self, name: str, rows: Ints) -> tuple[Bytes, Ints, Ints]:
        """The text of a column, and the start and the end of each row's value in it."""
        slot = self.plan.kept.index(name)
        start, end = self.found.spans[:, slot]
        return self.found.texts[slot], start[rows], end[rows]

    def read(self) -> pa.Table:
        self._check_types()
        rows = np.flatnonzero(self.good)
        if self.plan.delta is not None:
            rows = self._narrow(rows, surely_deltas(self.plan.delta, self.chunk, rows))
        ids, rows = self._identity(rows)
        texts: dict[str, pa.Array] = {}
        tenant, ids, rows, texts = self._tenant(ids, rows, texts)
        time, keep = self._time(rows)
        numbers: dict[str, Ints] = {}
        used = {*self.plan.dimensions, *self.plan.measures}
        read = self.plan.time_column if self.plan.messages is None else None  # read as a time in every record
        for rule in self.plan.rules:
            if rule.type not in ("integer", "decimal"):
                continue
            if (rule.name, rule.type) == (read, "integer") and rule.name not in used:
                continue  # an integer that is a time in range fits 64 bits
            if rule.name in used:
                numbers[rule.name], exact = self._number(rule.name, rule.type, rule.scale, rows)
            else:
                exact = self._surely_fits(rule.name, rule.type, rule.scale, rows)
            keep &= exact
        for rule in self.plan.rules:
            if rule.type == "timestamp" and (rule.name, self.plan.time_type) != (read, "iso8601"):
                keep &= self._surely_instants(rule.name, rule.zone, rows)
        if not keep.all():
            self.good[rows[~keep]] = False
            mask = pa.array(keep)
            ids, tenant = ids.filter(mask), tenant.filter(mask)
            texts = {name: text.filter(mask) for name, text in texts.items()}
            numbers = {name: values[keep] for name, values in numbers.items()}
            rows, time = rows[keep], time[keep]
        return self._table(rows, ids, tenant, time, texts, numbers)

    def _check_types(self) -> None:
        """Check the kinds of values by their tags: missing, null or of another type."""
        plan = self.plan
        needed = {*plan.identity, *plan.dimensions, plan.tenant_column, plan.type_column, plan.time_column}
        for index, rule in enumerate(plan.rules):
            allowed = np.zeros(ARRAY + 1, np.bool_)
            allowed[list(_TAGS_OF_TYPE[rule.type])] = True
            if not rule.required:
                allowed[[MISSING, NULL]] = True
            if rule.name in needed:
                allowed[ESCAPED] = False
            if rule.name in plan.identity:
                allowed[[MISSING, NULL, FRACTION, EXPONENT]] = False
            if rule.name in (plan.tenant_column, plan.type_column):
                allowed[:] = False
                allowed[STRING] = True
            if rule.name == plan.time_column and plan.messages is None:
                allowed[[MISSING, NULL]] = False
            self.good &= allowed[self.found.tags[index]]

    def _identity(self, rows: Ints) -> tuple[pa.Array, Ints]:
        plan = self.plan
        if not plan.gated:
            return pa.array(np.full(rows.size, "", dtype="U1"), pa.string()), rows
        keep = np.ones(rows.size, np.bool_)
        for name in plan.identity:
            text, start, end = self._span(name, rows)
            keep &= end > start
            # -0 is the integer 0: its text is not its value.
            keep &= ~((self._tags(name)[rows] == INTEGER) & (text[start] == 0x2D))
        rows = self._narrow(rows, keep)
        if len(plan.identity) == 1:
            text, start, end = self._span(plan.identity[0], rows)
            narrowed = self._narrow(rows, end - start <= MAX_ID_BYTES)
            if narrowed is not rows:
                text, start, end = self._span(plan.identity[0], narrowed)
            return strings(text, start, end), narrowed
        pieces = []
        for name in plan.identity:
            text = strings(*self._span(name, rows))
            quoted = pc.binary_join_element_wise('"', text, '"', "")
            pieces.append(pc.if_else(pa.array(self._tags(name)[rows] == STRING), quoted, text))
        joined = pc.binary_join_element_wise("[", pc.binary_join_element_wise(*pieces, ","), "]", "")
        fits = np.asarray(pc.less_equal(pc.binary_length(joined), MAX_ID_BYTES))
        return joined.filter(pa.array(fits)), self._narrow(rows, fits)

    def _narrow(self, rows: Ints, keep: Mask) -> Ints:
        if keep.all():
            return rows
        self.good[rows[~keep]] = False
        return rows[keep]

    def _tenant(
        self, ids: pa.Array, rows: Ints, texts: dict[str, pa.Array]
    ) -> tuple[pa.Array, pa.Array, Ints, dict[str, pa.Array]]:
        """Tenant, event type and string dimensions, dictionary-encoded; with the rules on the first two."""
        plan = self.plan
        keep = np.ones(rows.size, np.bool_)
        if plan.tenant_column is None:
            tenant = pa.DictionaryArray.from_arrays(
                pa.array(np.zeros(rows.size, np.int32)), pa.array([plan.tenant_value])
            )
        else:
            text, start, end = self._span(plan.tenant_column, rows)
            keep &= (end > start) & (end - start <= MAX_TENANT_BYTES)
            tenant = coded_strings(text, start, end)
        if plan.type_column is not None:
            kind = coded_strings(*self._span(plan.type_column, rows))
            known = np.array([text in plan.types for text in kind.dictionary.to_pylist()], np.bool_)
            if not known.all():
                keep &= known[np.asarray(kind.indices)]
            texts[_EVENT_TYPE] = kind
        for name in plan.dimensions:
            if plan.rule(name).type == "string":
                texts[name] = self._text_column(name, rows)
        if not keep.all():
            self.good[rows[~keep]] = False
            mask = pa.array(keep)
            ids, tenant, rows = ids.filter(mask), tenant.filter(mask), rows[keep]
            texts = {name: text.filter(mask) for name, text in texts.items()}
        return tenant, ids, rows, texts

    def _text_column(self, name: str, rows: Ints) -> pa.Array:
        present = self._tags(name)[rows] == STRING
        if present.all():
            return coded_strings(*self._span(name, rows))
        coded = coded_strings(*self._span(name, rows))  # a missing value has an empty span
        return pa.DictionaryArray.from_arrays(
            pc.if_else(pa.array(present), coded.indices, pa.scalar(None, pa.int32())), coded.dictionary
        )

    def _time(self, rows: Ints) -> tuple[Ints, Mask]:
        plan = self.plan
        if plan.messages is not None:
            time, keep = self._message_time(rows, plan.messages)
        elif plan.time_column is not None:
            time, keep = self._column_time(rows, plan.time_column)
        else:
            return self.arrivals[rows], np.ones(rows.size, np.bool_)
        keep &= (time >= MIN_INSTANT) & (time < MAX_INSTANT)
        if plan.skew_future is not None:
            keep &= time <= self.arrivals[rows] + plan.skew_future
        if plan.skew_past is not None:
            keep &= time >= self.arrivals[rows] - plan.skew_past
        if plan.sealed_before is not None:
            keep &= time >= plan.sealed_before
        return time, keep

    def _message_time(self, rows: Ints, rule: MessageRule) -> tuple[Ints, Mask]:
        found = message_times(rule, self.chunk, rows)
        if self.plan.time_column is not None and found.none.any():
            own = self._column_time(rows[found.none], self.plan.time_column)
            found.time[found.none], found.was_read[found.none] = own
        return found.time, found.was_read

    def _column_time(self, rows: Ints, column: str) -> tuple[Ints, Mask]:
        plan = self.plan
        text, start, end = self._span(column, rows)
        tags = self._tags(column)[rows]
        if plan.time_parser is not None:
            return np.zeros(rows.size, np.int64), np.zeros(rows.size, np.bool_)  # each is left to `decide`
        if plan.time_type == "iso8601":
            is_text = tags == STRING
            return instants(text, np.where(is_text, start, 0), np.where(is_text, end, 0), plan.time_zone)
        time, keep = whole_numbers(text, start, end, tags)
        if plan.time_type == "unixtimestamp_ns":
            return time // 1000, keep
        unit = UNIX_UNITS[plan.time_type]
        keep &= (time >= MIN_INSTANT // unit) & (time < MAX_INSTANT // unit)
        return np.where(keep, time, 0) * unit, keep

    def _number(self, name: str, kind: str, scale: int, rows: Ints) -> tuple[Ints, Mask]:
        tags = self._tags(name)[rows]
        text, start, end = self._span(name, rows)
        if kind == "decimal":
            values, exact = scaled_numbers(text, start, end, tags, scale)
        else:
            values, exact = whole_numbers(text, start, end, tags)
        return values, exact | (tags == MISSING) | (tags == NULL)

    def _surely_instants(self, name: str, zone: str | None, rows: Ints) -> Mask:
        tags = self._tags(name)[rows]
        text, start, end = self._span(name, rows)
        is_text = tags == STRING
        time, exact = instants(text, np.where(is_text, start, 0), np.where(is_text, end, 0), zone)
        exact &= (time >= MIN_INSTANT) & (time < MAX_INSTANT)
        return exact | (tags == MISSING) | (tags == NULL)

    def _surely_fits(self, name: str, kind: str, scale: int, rows: Ints) -> Mask:
        """Whether a number that is not kept fits its type: by its length, and read only if that is not
        enough."""
        tags = self._tags(name)[rows]
        _, start, end = self._span(name, rows)
        short = end - start <= SAFE_DIGITS - scale
        plain = (tags == INTEGER) | ((tags == FRACTION) if kind == "decimal" else False)
        fits: Mask = (plain & short) | (tags == MISSING) | (tags == NULL)
        unsure = np.flatnonzero(~fits)
        if unsure.size:
            fits[unsure] = self._number(name, kind, scale, rows[unsure])[1]
        return fits

    def _table(
        self,
        rows: Ints,
        ids: pa.Array,
        tenant: pa.Array,
        time: Ints,
        texts: dict[str, pa.Array],
        numbers: dict[str, Ints],
    ) -> pa.Table:
        plan = self.plan
        columns: dict[str, pa.Array] = {
            "row": pa.array(rows.astype(np.int32)),
            "start": pa.array(self.chunk.starts[rows] + self.chunk.base),
            "end": pa.array(self.chunk.ends[rows] + self.chunk.base),
            "event_time": pa.array(time),
            "tenant": tenant,
            "event_id": ids,
            "content": pa.array(self.found.content[rows]),
        }
        if plan.type_column is not None:
            columns["event_type"] = texts[_EVENT_TYPE]
        for index, name in enumerate(plan.dimensions):
            columns[f"d{index}"] = self._dimension(name, rows, texts, numbers)
        for index, name in enumerate(plan.measures):
            tags = self._tags(name)[rows]
            absent = (tags == MISSING) | (tags == NULL)
            columns[f"m{index}"] = pa.array(numbers[name], mask=absent if absent.any() else None)
        return pa.table(columns)

    def located(self, columns: pa.Table) -> list[Values]:
        """The values of `plan.located` in valid records: as the scanner found them, or looked up in records
        that it left to `decide`."""
        if not self.plan.located:
            return []
        rows = one(columns.column("row")).to_numpy()
        left = np.flatnonzero(~self.good[rows])
        starts, ends = self.chunk.starts[rows[left]], self.chunk.ends[rows[left]]
        again = locate(self.chunk.data, starts, ends, paths_of(self.plan.located)).values(self.chunk.data)
        return [
            _with_values(self._values(name, rows), left, values)
            for name, values in zip(self.plan.located, again, strict=True)
        ]

    def _values(self, name: str, rows: Ints) -> Values:
        """The values of a column in records that the scanner proved. Their texts are read from the copies of
        a kept column, where they lie close together, or else from the records."""
        column = self.plan.columns.index(name)
        tags = self.found.tags[column][rows]
        if name in self.plan.kept and not np.isin(tags, _NOT_COPIED).any():
            text, start, end = self._span(name, rows)
            return Values(text, tags, start, end)
        begin = self.chunk.starts[rows]
        start, end = self.found.froms[column][rows] + begin, self.found.tos[column][rows] + begin
        return Values(self.chunk.data, tags, start, end)

    def _dimension(
        self, name: str, rows: Ints, texts: dict[str, pa.Array], numbers: dict[str, Ints]
    ) -> pa.Array:
        kind = self.plan.rule(name).type
        if kind == "string":
            return texts[name]
        tags = self._tags(name)[rows]
        absent = (tags == MISSING) | (tags == NULL)
        values = numbers[name] if kind == "integer" else tags == TRUE
        return pa.array(values, mask=absent if absent.any() else None)


def _with_values(values: Values, rows: Ints, others: Values) -> Values:
    """Values of which some are replaced."""
    if not rows.size:
        return values
    if values.data is others.data:
        text, starts, ends = values.data, others.starts, others.ends
    else:
        offsets, body = string_buffers(strings(others.data, others.starts, others.ends))
        kept = np.delete(values.ends, rows)
        size = int(kept.max(initial=0))
        text = np.concatenate([values.data[:size], body])
        starts, ends = offsets[:-1].astype(np.int64) + size, offsets[1:].astype(np.int64) + size
    values.tags[rows], values.starts[rows], values.ends[rows] = others.tags, starts, ends
    return Values(text, values.tags, values.starts, values.ends)


def _decided_columns(
    plan: ReadPlan, decided: list[DecidedRecord], rows: list[int], chunk: RecordChunk, schema: pa.Schema
) -> pa.Table:
    at = np.array(rows, np.int64)
    columns: dict[str, object] = {
        "row": at.astype(np.int32),
        "start": chunk.starts[at] + chunk.base,
        "end": chunk.ends[at] + chunk.base,
        "event_time": [j.time for j in decided],
        "tenant": [j.tenant for j in decided],
        "event_id": [j.event_id for j in decided],
        "content": np.array([j.content for j in decided], np.uint64),
        "event_type": [j.event_type for j in decided],
    }
    for index in range(len(plan.dimensions)):
        columns[f"d{index}"] = [j.dimensions[index] for j in decided]
    for index in range(len(plan.measures)):
        columns[f"m{index}"] = [j.measures[index] for j in decided]
    arrays = []
    for f in schema:
        if pa.types.is_dictionary(f.type):
            arrays.append(pa.array(columns[f.name], f.type.value_type).dictionary_encode())
        else:
            arrays.append(pa.array(columns[f.name], f.type))
    return pa.table(arrays, schema=schema)


def _all_utf8(data: Bytes) -> bool:
    try:
        whole = pa.py_buffer(data)
        offsets = pa.py_buffer(np.array([0, data.size], np.int64))
        pa.LargeStringArray.from_buffers(1, offsets, whole).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
