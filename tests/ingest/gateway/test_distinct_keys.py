"""Keys are counted as the gate reads them: the compiled pass and parsing every line agree."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.support.hypothesis_settings import examples

from tidemill.config import Stream
from tidemill.ingest.gateway.distinct_keys import _key, keys_of

PLAIN = Stream.model_validate({"name": "a", "schema": {"id": "any"}, "identity": "id"})
OWNED = Stream.model_validate(
    {"name": "a", "schema": {"id": "any", "of": "string"}, "identity": "id", "tenant": {"column": "of"}}
)
NESTED = Stream.model_validate(
    {"name": "a", "schema": {"x.id": "any", "n": "any"}, "identity": ["x.id", "n"]}
)

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["id", "of", "x", 'q"', "é"]), inner, max_size=3)
    ),
    max_leaves=6,
)
records = st.dictionaries(st.sampled_from(["id", "of", "n", "x", "other", "a\\b"]), values, max_size=5)
layouts = st.sampled_from([(",", ":"), (", ", ": "), (" ,", " :\t")])


@given(st.lists(st.tuples(records, layouts, st.booleans()), max_size=12))
@examples(300)
def test_the_compiled_pass_finds_what_parsing_finds(made) -> None:
    lines = [
        json.dumps(record, separators=layout, ensure_ascii=ascii_).encode() for record, layout, ascii_ in made
    ]
    content = b"".join(line + b"\n" for line in lines)
    for stream in (PLAIN, OWNED, NESTED):
        wanted = {key for line in lines if (key := _key(line, stream)) is not None}
        assert keys_of(content, stream) == wanted


def test_a_number_and_its_text_are_one_key_and_tenants_are_apart() -> None:
    assert len(keys_of(b'{"id":1}\n{"id":"1"}\n{"id":1.0}\n{"id":"2"}\n', PLAIN)) == 2
    assert len(keys_of(b'{"id":"1","of":"a"}\n{"id":"1","of":"b"}\n{"id":"1"}\n', OWNED)) == 2


def test_a_line_that_is_no_object_has_no_key() -> None:
    assert (
        keys_of(b'[{"id":1}]\n"id"\n7\n{"id":\n{"no":1}\n{"id":null}\n{"id":true}\n{"id":""}\n', PLAIN)
        == set()
    )


def test_a_key_that_has_to_be_parsed_is_the_key_of_a_plain_line() -> None:
    names = [f"{tenant}-{number}" for tenant in "ab" for number in range(200)]
    plain = b"".join(b'{"id":"%s","of":"%s"}\n' % (name.encode(), name[:1].encode()) for name in names)
    escaped = b"".join(
        b'{"i\\u0064":"%s","of":"%s"}\n' % (name.encode(), name[:1].encode()) for name in names
    )
    assert keys_of(plain + escaped, OWNED) == keys_of(plain, OWNED)
    assert len(keys_of(escaped, OWNED)) == 400
