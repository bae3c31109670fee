"""What a fresh computation changes about standing results: afterwards what stands is what was computed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config import Stream
from tidemill.model.errors import StorageError
from tidemill.model.slices import set_hash
from tidemill.model.streaming import Aggregate, Function, Trigger, Value, WindowKind, WindowSpec, window_id
from tidemill.model.time import Interval
from tidemill.outputs.windows.aggregate import fresh_schema
from tidemill.outputs.windows.keys import Key
from tidemill.outputs.windows.results import (
    Changes,
    ResultScope,
    ResultsFooter,
    changes,
    current,
    current_results,
    results_schema,
    results_table,
    write_results,
)
from tidemill.outputs.windows.window_ids import window_ids
from tidemill.storage.tables.parts import read_footer

STREAM = Stream.model_validate(
    {
        "name": "trips",
        "schema": {
            "id": "string",
            "user": "string",
            "lane": "integer",
            "fast": "boolean",
            "tenant": "string",
            "deep.kind": "string",
            "fare": {"type": "decimal", "scale": 2},
        },
        "identity": "id",
        "tenant": {"column": "tenant"},
    }
)
COUNT = Aggregate("n", Function.COUNT)
TOTAL = Aggregate("total", Function.SUM, "fare", "decimal", 2)
SESSION = WindowSpec("trips", "visits", WindowKind.SESSION, gap=5, key=("user",), aggregates=(COUNT, TOTAL))
TUMBLING = WindowSpec(
    "trips", "tens", WindowKind.TUMBLING, size=10, step=10, group_by=("lane",), aggregates=(COUNT,)
)


@dataclass(frozen=True)
class Result:
    """A fresh result in short."""

    start: int
    end: int
    slices: str  # names of one letter
    group: tuple[Value, ...] = ("u",)
    rows: int = 0  # as many as slices, unless told
    tenant: str = "t"
    ordinal: int = 0
    closed: bool = True


def fresh(spec: WindowSpec, results: Sequence[Result]) -> pa.Table:
    rows = []
    for result in results:
        count = result.rows or len(result.slices)
        reported: dict[str, object] = {
            "tenant": result.tenant,
            "start": result.start,
            "end": result.end,
            "ordinal": result.ordinal,
            "rows": count,
            "late_rows": 0,
            "first_time": result.start,
            "last_time": result.end - 1,
            "bytes": 100 * count,
            "slices": len(set(result.slices)),
            "hash": set_hash(result.slices),
            "closed": result.closed,
        }
        reported |= {f"g.{name}": value for name, value in zip(spec.grouped_by, result.group, strict=True)}
        reported |= {f"a.{aggregate.name}": count for aggregate in spec.aggregates}
        rows.append(reported)
    return pa.Table.from_pylist(rows, schema=fresh_schema(spec, STREAM))


@dataclass
class Book:
    """All rows that were ever appended."""

    spec: WindowSpec
    table: pa.Table = field(init=False)
    batch: int = 0

    def __post_init__(self) -> None:
        self.table = results_schema(self.spec, STREAM).empty_table()

    def apply(
        self, *results: Result, trigger: Trigger = Trigger.WATERMARK, watermark: int | None = 50
    ) -> list[dict[str, object]]:
        """The rows that a computation of everything appends."""
        held = current_and_withdrawn(self.table, self.spec)
        self.batch += 1
        found = changes(
            self.spec,
            STREAM,
            fresh(self.spec, results),
            held,
            watermark=watermark,
            batch=self.batch,
            trigger=trigger,
        )
        self.table = pa.concat_tables([self.table, found.table])
        reported: list[dict[str, object]] = found.table.to_pylist()
        assert (found.results, found.withdrawn) == (
            sum(not row["withdrawn"] for row in reported),
            sum(bool(row["withdrawn"]) for row in reported),
        )
        return reported


def current_and_withdrawn(table: pa.Table, spec: WindowSpec) -> pa.Table:
    """The slow model of what `standing` reads: of each result the newest row."""
    best: dict[tuple[object, ...], dict[str, object]] = {}
    group = [name.replace(".", "__") for name in spec.grouped_by]
    for row in table.to_pylist():
        key = (row["window_id"], *(row[name] for name in group))
        if key not in best or int(str(best[key]["revision"])) < row["revision"]:
            best[key] = row
    return pa.Table.from_pylist(list(best.values()), schema=table.schema)


def visit(start: int, user: Value = "u", tenant: str = "t") -> str:
    return window_id(SESSION, tenant, (user,), start, 0)


def short(rows: Sequence[dict[str, object]], *names: str) -> list[tuple[object, ...]]:
    return [tuple(row[name] for name in names) for row in rows]


# -- the life of a result


def test_a_first_result_says_everything_about_itself() -> None:
    (row,) = Book(SESSION).apply(Result(10, 20, "ab", rows=3))
    moment = {name: int(row[name].timestamp() * 1_000_000) for name in ("start", "end", "watermark")}  # type: ignore[attr-defined]
    assert moment == {"start": 10, "end": 20, "watermark": 50}
    assert {name: row[name] for name in row if not hasattr(row[name], "timestamp")} == {
        "window_id": visit(10),
        "tenant": "t",
        "user": "u",
        "revision": 1,
        "rows": 3,
        "late_rows": 0,
        "bytes": 300,
        "trigger": "watermark",
        "hash": set_hash("ab"),
        "slices": 2,
        "supersedes": [],
        "superseded_by": None,
        "withdrawn": False,
        "batch": 1,
        "n": 3,
        "total": 3,
    }


def test_open_windows_do_not_come_out() -> None:
    assert Book(SESSION).apply(Result(10, 20, "a", closed=False)) == []


def test_an_equal_hash_writes_nothing() -> None:
    book = Book(SESSION)
    book.apply(Result(10, 20, "ab"))
    assert book.apply(Result(10, 20, "ba")) == []


def test_a_late_slice_gives_the_next_revision() -> None:
    book = Book(SESSION)
    book.apply(Result(10, 20, "a"))
    rows = book.apply(Result(10, 20, "ab"))
    assert short(rows, "revision", "trigger", "rows", "batch") == [(2, "late", 2, 2)]


@pytest.mark.parametrize("after", [Result(10, 20, "a", rows=2), Result(10, 20, "cd", rows=1)])
def test_fewer_slices_or_fewer_rows_are_a_retraction(after: Result) -> None:
    book = Book(SESSION)
    book.apply(Result(10, 20, "ab"))
    assert short(book.apply(after), "revision", "trigger") == [(2, "retraction")]


def test_flushed_then_closed_with_the_same_rows_writes_nothing() -> None:
    book = Book(SESSION)
    rows = book.apply(Result(10, 20, "a"), trigger=Trigger.STOP)
    assert short(rows, "revision", "trigger") == [(1, "stop")]
    assert book.apply(Result(10, 20, "a", closed=False)) == []  # it goes on, and what stands stays
    assert book.apply(Result(10, 20, "a")) == []


def test_flushed_then_closed_with_more_rows_gives_revision_2_by_the_watermark() -> None:
    book = Book(SESSION)
    book.apply(Result(10, 20, "a"), trigger=Trigger.STOP)
    assert book.apply(Result(10, 25, "ab", closed=False)) == []
    rows = book.apply(Result(10, 25, "ab"))
    assert short(rows, "revision", "trigger", "withdrawn") == [(2, "watermark", False)]


def test_a_retracted_result_is_withdrawn_and_its_revision_goes_on_when_it_returns() -> None:
    book = Book(SESSION)
    book.apply(Result(10, 20, "a"))
    (row,) = book.apply()
    assert {name: row[name] for name in ("window_id", "tenant", "user", "revision", "rows", "trigger")} == {
        "window_id": visit(10),
        "tenant": "t",
        "user": "u",
        "revision": 2,
        "rows": 0,
        "trigger": "retraction",
    }
    nulls = [row[name] for name in ("n", "total", "first_time", "last_time", "superseded_by")]
    assert nulls == [None] * 5
    assert (row["hash"], row["slices"], row["bytes"], row["withdrawn"]) == (set_hash(()), 0, 0, True)
    assert book.apply() == []  # once is enough
    assert current(book.table).num_rows == 0
    rows = book.apply(Result(10, 20, "a"))
    assert short(rows, "revision", "trigger", "withdrawn") == [(3, "late", False)]
    assert book.apply(Result(10, 20, "a")) == []


# -- windows that take the place of others


def test_sessions_that_merge_supersede_the_one_they_replace() -> None:
    """A late row between two sessions: the first one goes on as revision 2, the second one is no more."""
    book = Book(SESSION)
    book.apply(Result(0, 10, "a"), Result(14, 20, "b"))
    rows = book.apply(Result(0, 20, "abc"))
    assert short(rows, "window_id", "revision", "trigger", "withdrawn", "supersedes", "superseded_by") == [
        (visit(0), 2, "late", False, [visit(14)], None),
        (visit(14), 2, "late", True, [], visit(0)),
    ]
    assert current(book.table).column("window_id").to_pylist() == [visit(0)]


def test_a_session_that_begins_earlier_replaces_all_it_swallowed() -> None:
    book = Book(SESSION)
    book.apply(Result(4, 10, "a"), Result(14, 20, "b"), Result(14, 20, "b", ("other",)))
    rows = book.apply(Result(1, 20, "abc"), Result(14, 20, "b", ("other",)))
    assert short(rows, "window_id", "revision", "trigger", "supersedes", "superseded_by") == [
        (visit(1), 1, "watermark", [visit(4), visit(14)], None),
        (visit(4), 2, "late", [], visit(1)),
        (visit(14), 2, "late", [], visit(1)),
    ]


def test_a_window_that_is_still_open_names_what_it_replaced_when_it_comes_out() -> None:
    book = Book(SESSION)
    book.apply(Result(4, 10, "a"))
    rows = book.apply(Result(1, 60, "abc", closed=False))
    assert short(rows, "window_id", "withdrawn", "trigger", "superseded_by") == [
        (visit(4), True, "late", visit(1))
    ]
    (row,) = book.apply(Result(1, 60, "abc"))
    assert (row["window_id"], row["supersedes"]) == (visit(1), [visit(4)])


def test_an_heir_that_never_came_out_leaves_its_place_to_the_next() -> None:
    book = Book(SESSION)
    book.apply(Result(4, 10, "a"))
    book.apply(Result(1, 60, "ab", closed=False))
    (row,) = book.apply(Result(-3, 60, "abc"))
    assert (row["window_id"], row["supersedes"]) == (visit(-3), [visit(4)])


def test_other_keys_and_tenants_replace_nothing() -> None:
    book = Book(SESSION)
    book.apply(Result(4, 10, "a"))
    rows = book.apply(Result(0, 20, "b", ("v",)), Result(0, 20, "b", tenant="t2"))
    assert {(row["withdrawn"], row["trigger"], row["superseded_by"]) for row in rows} == {
        (True, "retraction", None),
        (False, "watermark", None),
    }


def test_sessions_that_only_touch_replace_nothing() -> None:
    book = Book(SESSION)
    book.apply(Result(10, 20, "a"))
    rows = book.apply(Result(0, 10, "b"), Result(20, 30, "c"))
    assert [row["trigger"] for row in rows if row["withdrawn"]] == ["retraction"]


def test_windows_of_the_grid_replace_nothing() -> None:
    spec = replace(TUMBLING, kind=WindowKind.SLIDING, size=20)
    book = Book(spec)
    book.apply(Result(0, 20, "a", (1,)), Result(10, 30, "a", (1,)))
    rows = book.apply(Result(10, 30, "a", (1,)))
    assert short(rows, "withdrawn", "trigger", "superseded_by") == [(True, "retraction", None)]


def test_a_group_that_is_gone_from_a_window_that_lives_on_is_withdrawn_alone() -> None:
    book = Book(replace(TUMBLING, kind=WindowKind.COUNT, count=2))
    book.apply(Result(0, 10, "a", (1,)), Result(0, 10, "a", (2,)))
    rows = book.apply(Result(0, 9, "ab", (1,)))
    assert short(rows, "lane", "revision", "withdrawn", "trigger", "superseded_by", "supersedes") == [
        (1, 2, False, "late", None, []),
        (2, 2, True, "late", None, []),
    ]


def test_windows_of_a_key_that_begin_at_once_are_told_apart() -> None:
    spec = replace(SESSION, kind=WindowKind.COUNT, count=1)
    rows = Book(spec).apply(Result(0, 1, "a"), Result(0, 1, "a", ordinal=1))
    assert {row["window_id"] for row in rows} == {window_id(spec, "t", ("u",), 0, n) for n in (0, 1)}


@given(
    windows=st.lists(
        st.tuples(
            st.text(max_size=3),
            st.none() | st.text(max_size=3),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.booleans(),
            st.integers(-(2**53), 2**53),
            st.integers(0, 2),
        )
    )
)
def test_ids_of_many_windows_are_those_of_each(
    windows: list[tuple[str, str | None, int | None, bool, int, int]],
) -> None:
    spec = replace(SESSION, key=("user", "lane", "fast"))
    results = [
        Result(start, start + 1, "a", (user, lane, fast), tenant=tenant, ordinal=ordinal)
        for tenant, user, lane, fast, start, ordinal in windows
    ]
    expected = [window_id(spec, r.tenant, r.group, r.start, r.ordinal) for r in results]
    assert window_ids(spec, fresh(spec, results)).to_pylist() == expected


def test_rows_come_in_order_with_nulls_first() -> None:
    results = [Result(10, 20, "a", (1,)), Result(0, 10, "a", (2,)), Result(0, 10, "a", (None,))]
    results += [Result(0, 10, "a", (1,), tenant="s"), Result(0, 10, "a", (1,))]
    rows = Book(TUMBLING).apply(*results)
    assert [(row["tenant"], row["lane"]) for row in rows] == [
        ("s", 1),
        ("t", None),
        ("t", 1),
        ("t", 2),
        ("t", 1),
    ]


def test_the_column_of_the_tenant_as_a_group_is_the_tenant() -> None:
    spec = replace(SESSION, group_by=("tenant", "deep.kind"))
    names = results_schema(spec, STREAM).names
    assert names[:7] == ["window_id", "start", "end", "tenant", "user", "deep__kind", "revision"]
    book = Book(replace(SESSION, group_by=("tenant",)))
    book.apply(Result(0, 10, "a", ("u", "t")))
    assert book.apply(Result(0, 10, "a", ("u", "t"))) == []


# -- on disk


def staged(folder: Path, name: str, spec: WindowSpec, found: pa.Table) -> str:
    footer = ResultsFooter(spec.stream, spec.name, "f", (1,))
    part = write_results(folder, name, spec, Changes(found, found.num_rows, 0), footer)
    return part.path


def test_results_are_a_delta_table(tmp_path: Path) -> None:
    table = results_table(tmp_path, SESSION, STREAM)
    assert table.root == tmp_path / "windows" / "trips" / "visits"
    book = Book(SESSION)
    book.apply(Result(0, 10, "a"), Result(14, 20, "b"))
    book.apply(Result(0, 20, "abc"))
    footer = ResultsFooter("trips", "visits", "f", (2,))
    part = write_results(table.staging("b"), "x.parquet", SESSION, Changes(book.table, 3, 1), footer)
    table.commit(table.publish([part]), info={})
    (live,) = results_table(tmp_path, SESSION, STREAM).snapshot().parts
    assert (live.mins["start"], live.maxs["batch"], live.rows) == (0, 2, 4)
    (path,) = table.snapshot().paths()
    assert ResultsFooter.from_footer(read_footer(path)) == footer
    held = current_results(SESSION, STREAM, [path], ResultScope(whole=True))
    assert held.schema == results_schema(SESSION, STREAM)
    assert short(held.to_pylist(), "window_id", "revision") == [(visit(0), 2), (visit(14), 2)]
    assert current(held).column("supersedes").to_pylist() == [[visit(14)]]


def test_the_same_changes_are_the_same_bytes(tmp_path: Path) -> None:
    results = [Result(n, n + 1, "ab"[: 1 + n % 2], (f"u{n % 5}",)) for n in range(50)]
    for name, order in (("x", results), ("y", results[::-1])):
        book = Book(SESSION)
        book.apply(*order)
        staged(tmp_path, f"{name}.parquet", SESSION, book.table)
    x, y = (next(tmp_path.glob(f"{name}.*parquet")) for name in "xy")
    assert x.read_bytes() == y.read_bytes()


def test_scopes_tell_what_is_answered_for(tmp_path: Path) -> None:
    book = Book(SESSION)
    book.apply(
        *(Result(start, start + 5, "a", (user,)) for start in (0, 10, 20) for user in ("u", "v", None))
    )
    path = staged(tmp_path, "x.parquet", SESSION, book.table)

    def found(scope: ResultScope) -> list[tuple[int, Value]]:
        held = current_results(SESSION, STREAM, [path], scope)
        return list(
            zip(held.column("start").cast(pa.int64()).to_pylist(), held["user"].to_pylist(), strict=True)
        )

    assert found(ResultScope()) == []
    assert len(found(ResultScope(whole=True))) == 9
    assert {start for start, _ in found(ResultScope(starts=[Interval(0, 10), Interval(11, 21)]))} == {0, 20}
    since: dict[Key, int] = {("t", ("v",)): 10, ("t", (None,)): 20, ("other", ("u",)): 0}
    assert set(found(ResultScope(since=since))) == {(10, "v"), (20, None), (20, "v")}


def test_a_damaged_part_of_results_says_so(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"nothing")
    with pytest.raises(StorageError, match="cannot be read"):
        current_results(SESSION, STREAM, [str(tmp_path / "x.parquet")], ResultScope(whole=True))


# -- whatever is computed one after another


@st.composite
def computations(draw: st.DrawFn) -> list[list[Result]]:
    """Results of sessions of a few keys, as if the rows changed completely between two computations."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        results: list[Result] = []
        for tenant in ("t", "s"):
            for user in ("u", None):
                at = draw(st.integers(-3, 3))
                for size in draw(st.lists(st.integers(1, 4), max_size=3)):
                    slices = draw(st.text("abc", min_size=1, max_size=3))
                    closed = draw(st.booleans())
                    results.append(Result(at, at + size, slices, (user,), tenant=tenant, closed=closed))
                    at += size + draw(st.integers(0, 2))
        found.append(results)
    return found


TRIGGERS = st.sampled_from([Trigger.WATERMARK, Trigger.STOP])


@examples(60)
@given(rounds=computations(), triggers=st.lists(TRIGGERS, min_size=5, max_size=5), data=st.data())
def test_what_stands_is_what_was_computed_last(
    rounds: list[list[Result]], triggers: list[Trigger], data: st.DataObject
) -> None:
    book = Book(SESSION)
    for results, trigger in zip(rounds, triggers, strict=False):
        before = current(book.table)
        kept = (before[name].to_pylist() for name in ("window_id", "hash", "trigger"))
        old = {name: (hash, why) for name, hash, why in zip(*kept, strict=True)}
        mixed = data.draw(st.permutations(results))
        book.apply(*mixed, trigger=trigger)
        assert book.apply(*results, trigger=trigger) == []  # nothing more to say
        now = current(book.table)
        ids = {visit(r.start, r.group[0], r.tenant): r for r in results}
        expected = {name: set_hash(r.slices) for name, r in ids.items() if r.closed}
        # What a stop let out of a window that goes on stays.
        open_ones = {
            name: old[name][0]
            for name, r in ids.items()
            if not r.closed and name in old and old[name][1] == "stop"
        }
        assert dict(zip(now["window_id"].to_pylist(), now["hash"].to_pylist(), strict=True)) == (
            expected | open_ones
        )
        check_links(book.table)


def check_links(table: pa.Table) -> None:
    """Revisions of a result are 1, 2, 3 …; who is named as superseded was withdrawn by then."""
    rows = table.to_pylist()
    revisions: dict[str, list[int]] = {}
    for row in rows:
        revisions.setdefault(row["window_id"], []).append(row["revision"])
        for name in row["supersedes"]:
            said = [
                r for r in rows if r["window_id"] == name and r["withdrawn"] and r["batch"] <= row["batch"]
            ]
            assert said, (row["window_id"], name)
            assert said[-1]["tenant"] == row["tenant"]
        assert not (row["withdrawn"] and row["supersedes"])
        assert row["withdrawn"] or row["superseded_by"] is None
    assert all(found == list(range(1, len(found) + 1)) for found in revisions.values())


@examples(60)
@given(
    results=st.lists(
        st.builds(
            Result,
            start=st.integers(-5, 5).map(lambda n: n * 10),
            end=st.just(0),
            slices=st.just("a"),
            group=st.tuples(st.none() | st.integers(0, 2)),
            tenant=st.sampled_from("ts"),
        ).map(lambda r: replace(r, end=r.start + 10)),
        unique_by=lambda r: (r.start, r.group, r.tenant),
    ),
    cuts=st.lists(st.integers(-60, 60), max_size=4, unique=True),
)
def test_buckets_answer_for_their_starts_alone(results: list[Result], cuts: list[int]) -> None:
    """Computed piece by piece, each with what stands in its scope, the whole comes to the same."""
    whole = Book(TUMBLING)
    whole.apply(*results)
    edges = [-100, *sorted(cuts), 100]
    pieces = [results_schema(TUMBLING, STREAM).empty_table()]
    for low, high in pairwise(edges):
        book = Book(TUMBLING)
        book.apply(*(r for r in results if low <= r.start < high))
        pieces.append(book.table)
    assert current(pa.concat_tables(pieces)) == current(whole.table)
