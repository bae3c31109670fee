"""Every query and search reads back the same: written as text and parsed, written as a document and read."""

from __future__ import annotations

from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples
from tests.support.query_documents import document_of

from tidemill.model.conditions.ast import (
    All,
    Among,
    AnyOf,
    Compare,
    IsNull,
    Like,
    Literally,
    Not,
    Path,
    Within,
)
from tidemill.model.conditions.literals import is_open
from tidemill.model.errors import InputError
from tidemill.model.time import MAX_INSTANT, MIN_INSTANT, WEEK
from tidemill.query.language.ast import (
    Between,
    Binary,
    Choice,
    Every,
    Item,
    Moment,
    Now,
    OrderKey,
    OriginClause,
    Query,
    Rollup,
    Search,
    Since,
    Unary,
    Value,
    Wall,
)
from tidemill.query.language.document import query_from, search_from
from tidemill.query.language.parse import parse, parse_search
from tidemill.query.language.time_clauses import INT64, checked_span
from tidemill.query.language.unparse import text_of

CHARACTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
TRICKY = st.text("ab.'\"`\\\n\t %_-", min_size=1, max_size=6)
STRINGS = TRICKY | st.text(CHARACTERS, max_size=8)
WORDS = st.sampled_from(
    ["count", "p99", "9", "not", "TRUE", "false", "select", "from", "fill", "_x", "a1", "null"]
)
SEGMENTS = WORDS | TRICKY | st.text(CHARACTERS, min_size=1, max_size=6)
PATHS = st.lists(SEGMENTS, min_size=1, max_size=3).map(lambda found: Path(".".join(found), 0, tuple(found)))
DECIMALS = st.builds(
    lambda digits, exponent: Decimal(digits).scaleb(exponent).normalize(),
    st.integers(-(10**12), 10**12),
    st.integers(-30, 30),
).map(lambda d: d if "." in str(d) or "E" in str(d) else d.quantize(Decimal("0.0")))


def literals(integers: st.SearchStrategy[int]) -> st.SearchStrategy[Literally]:
    return (STRINGS | integers | DECIMALS | st.booleans()).map(Literally)


def conditions(integers: st.SearchStrategy[int]) -> st.SearchStrategy:
    patterns = STRINGS.filter(lambda text: not is_open(text)).map(Literally)
    tests = st.one_of(
        st.builds(Compare, PATHS, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), literals(integers)),
        st.builds(
            Among, PATHS, st.lists(literals(integers), min_size=1, max_size=3).map(tuple), st.booleans()
        ),
        st.builds(Like, PATHS, patterns, st.booleans(), st.booleans()),
        st.one_of(
            *(
                st.builds(Within, PATHS, kind.map(Literally), kind.map(Literally), st.booleans())
                for kind in (STRINGS, integers | DECIMALS, st.booleans())
            )
        ),
        st.builds(IsNull, PATHS, st.booleans()),
    )
    return st.recursive(
        tests,
        lambda inner: st.one_of(
            st.builds(Not, inner),
            st.builds(All, st.lists(inner, min_size=2, max_size=3).map(tuple)),
            st.builds(AnyOf, st.lists(inner, min_size=2, max_size=3).map(tuple)),
        ),
        max_leaves=5,
    )


SMALL = st.integers(INT64.start, INT64.stop - 1)
LARGE = st.integers(-(10**40) + 1, 10**40 - 1)
VALUES = st.one_of(
    st.builds(Value, PATHS, st.lists(PATHS | literals(LARGE), max_size=3).map(tuple)),
    st.just(Value(Path("count"), star=True)),
)
EXPRESSIONS = st.recursive(
    VALUES | (LARGE | DECIMALS).map(Literally),
    lambda inner: st.one_of(
        st.builds(Binary, st.sampled_from("+-*/"), inner, inner),
        inner.filter(lambda term: not isinstance(term, Literally)).map(lambda term: Unary("-", term)),
    ),
    max_leaves=4,
)
HAVINGS = st.recursive(
    st.one_of(
        st.builds(Compare, EXPRESSIONS, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), EXPRESSIONS),
        st.builds(
            Among, EXPRESSIONS, st.lists(EXPRESSIONS, min_size=1, max_size=2).map(tuple), st.booleans()
        ),
        st.builds(Within, EXPRESSIONS, EXPRESSIONS, EXPRESSIONS, st.booleans()),
        st.builds(IsNull, EXPRESSIONS, st.booleans()),
    ),
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(All, st.lists(inner, min_size=2, max_size=2).map(tuple)),
        st.builds(AnyOf, st.lists(inner, min_size=2, max_size=2).map(tuple)),
    ),
    max_leaves=4,
)
INSTANTS = st.integers(MIN_INSTANT, MAX_INSTANT - 1)
DURATIONS = st.integers(0, 10_000 * WEEK)
MOMENTS = st.one_of(INSTANTS, INSTANTS.map(Wall), st.integers(-1000 * WEEK, 1000 * WEEK).map(Now))


def in_order(pair: tuple[Moment, Moment]) -> bool:
    try:
        checked_span(*pair)
    except InputError:
        return False
    return True


TIMES = st.one_of(
    st.none(),
    st.tuples(MOMENTS, MOMENTS).filter(in_order).map(lambda pair: Between(*pair)),
    st.builds(Since, DURATIONS),
)
LIMITS = st.none() | st.integers(0, INT64.stop - 1)


def choices(*words: str) -> st.SearchStrategy[Choice | None]:
    return st.none() | st.sampled_from(words).map(Choice)


QUERIES = st.builds(
    Query,
    items=st.lists(st.builds(Item, EXPRESSIONS, st.none() | PATHS), min_size=1, max_size=3).map(tuple),
    source=PATHS,
    explain=st.booleans(),
    where=st.none() | conditions(SMALL),
    filter=st.none() | conditions(LARGE),
    time=TIMES,
    bucket=st.one_of(
        st.none(),
        st.builds(Every, DURATIONS),
        st.builds(Every, st.integers(1, 9999), st.sampled_from(["week", "month", "quarter", "year"])),
        st.builds(Rollup, STRINGS | st.just("1m")),
    ),
    timezone=st.none() | STRINGS.map(Choice),
    week_start=choices("monday", "sunday"),
    origin=st.none() | (INSTANTS | INSTANTS.map(Wall)).map(OriginClause),
    having=st.none() | HAVINGS,
    offset=st.integers(0, INT64.stop - 1),
    groups=st.lists(PATHS, max_size=3).map(tuple),
    edges=choices("include", "exclude", "null"),
    fill=choices("null", "zero", "drop", "carry"),
    order=st.lists(st.builds(OrderKey, EXPRESSIONS, st.booleans()), max_size=2).map(tuple),
    limit=LIMITS,
    format=choices("rows", "series"),
)
SEARCHES = st.builds(
    Search,
    where=st.none() | conditions(LARGE),
    filter=st.none() | conditions(LARGE),
    time=TIMES,
    order=st.lists(
        st.tuples(st.sampled_from(["ts", "arrival"]), st.booleans()), max_size=2, unique_by=lambda key: key[0]
    ).map(tuple),
    limit=LIMITS,
    explain=st.booleans(),
)


def exactly(said: object) -> str:
    """All that was said, with 1, 1.0 and true told apart, and no positions."""
    if isinstance(said, tuple):
        return f"({', '.join(map(exactly, said))})"
    if hasattr(said, "__slots__") and type(said).__module__.endswith(("language.ast", "conditions.ast")):
        parts = (exactly(getattr(said, name)) for name in said.__slots__ if name != "position")
        return f"{type(said).__name__}({', '.join(parts)})"
    return repr(said)


@examples(250)
@given(QUERIES)
def test_queries_come_back(query):
    assert parse(text_of(query)) == query
    assert exactly(parse(text_of(query))) == exactly(query)
    assert exactly(query_from(document_of(query))) == exactly(query)


@examples(250)
@given(SEARCHES)
def test_searches_come_back(search):
    assert parse_search(text_of(search)) == search
    assert exactly(parse_search(text_of(search))) == exactly(search)
    assert exactly(search_from(document_of(search))) == exactly(search)
