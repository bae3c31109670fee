"""Fuzzing of everything that reads bytes from outside or from disk: each gives a result or a TidemillError.

`python -m tests.support.fuzzing TARGET --seconds 60` mutates the samples of one target, by a seed;
`fuzzing_atheris` beside it does the same with atheris, where that is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from tests.support.otlp_requests import PROJECT, as_json, logs_request, stream_of
from tests.support.soak_counts import record
from tests.support.wal_driver import played

from tidemill import eventtime
from tidemill.config import parse_project
from tidemill.config.gateway import Requests
from tidemill.formats.bodies import MEDIA_TYPES, read_body
from tidemill.formats.bodies.otlp import Media, read_otlp
from tidemill.ingest.gateway.log_replay import orphans
from tidemill.ingest.landing_log import LandingLog
from tidemill.mill import Mill
from tidemill.model.errors import TidemillError
from tidemill.outputs.rollups.tile_parts import TilesFooter
from tidemill.outputs.windows.results import ResultsFooter
from tidemill.query.language.document import query_from, search_from
from tidemill.query.language.parse import parse, parse_expression, parse_having, parse_search
from tidemill.raw.footers import from_footer
from tidemill.storage.tables.footers import Footer
from tidemill.storage.tables.parts import read_footer
from tidemill.testing import FakeClock

WORDS: Final = [
    *b"SELECT count FROM WHERE AND OR NOT IN LIKE BETWEEN NULL INTERVAL GROUP BY ORDER LIMIT".split(),
    *b"{ } [ ] \" ' ` \\ , : ; -1 0 1e999 null true \xff \xf0\x9f \x00 --- &a *a !!python/object".split(),
    *b"9223372036854775808 2024-13-99 PAR1 ARROW1 specversion id data streams schema windows".split(),
]
CONFIG = """
version: 1
gateway: {window: {kind: adaptive}}
streams:
  orders:
    schema: {id: {type: string, required: true}, at: string, amount: {type: decimal, scale: 2}, shop: string}
    event_time: {column: at, type: iso8601, late_tolerance: 10s}
    identity: id
    retention: {raw: 30d}
    metrics: {sales: {kind: counter, dimensions: [shop], measures: [amount], filter: "shop = 'a'"}}
    windows: {ten: {kind: tumbling, size: 10m, aggregates: {n: count}, late: {policy: discard}}}
"""
QUERIES = [
    "SELECT count, sum(a) / 2 AS n FROM r.m WHERE a = 'x' AND b IN (1, 2) SINCE 2d INTERVAL 1h GROUP BY c",
    "SELECT p99 FROM r BETWEEN 2024-01-01 AND 2024-01-02 FILL zero HAVING n > 1 ORDER BY n DESC LIMIT 5",
    "WHERE region = 'eu' FILTER user.plan LIKE '%a' SINCE 2h ORDER BY ts DESC LIMIT 50",
    "NOT (a = 1 OR b BETWEEN 2 AND 3) AND c IS NOT NULL",
]


@dataclass(frozen=True)
class Target:
    """`read` takes any bytes; `samples` are some that it accepts."""

    read: Callable[[bytes], object]
    samples: Sequence[bytes]

    def __call__(self, content: bytes) -> bool:
        """Whether it gave a result; anything but a TidemillError goes up."""
        try:
            self.read(content)
        except TidemillError:
            return False
        return True


# -- bodies


def _events(number: int = 3) -> list[dict[str, object]]:
    return [
        {"event_id": f"e{n}", "ts": f"2024-01-15T10:00:0{n}Z", "tenant": "acme", "event_type": "x"}
        for n in range(number)
    ]


def _cloud() -> dict[str, object]:
    return {"specversion": "1.0", "id": "a", "source": "/s", "type": "x", "data": _events()[0]}


def _columnar(media: str) -> bytes:
    table, sink = pa.Table.from_pylist(_events()), pa.BufferOutputStream()
    if "parquet" in media:
        pq.write_table(table, sink)
    else:
        stream = media.endswith("stream")
        with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, table.schema) as writer:
            writer.write_table(table)
    return bytes(sink.getvalue())


def _body_sample(media: str) -> bytes:
    if "json" in media or "jsonl" in media:
        if "cloudevents" in media:
            return json.dumps([_cloud()] if "batch" in media else _cloud()).encode()
        if media == "application/json":
            return json.dumps(_events()).encode()
        return b"".join(json.dumps(event).encode() + b"\n" for event in _events())
    return _columnar(media)


def _body(media: str) -> Target:
    declared = stream_of(PROJECT)
    limits = Requests()
    return Target(
        lambda content: read_body(content, media, declared, limits, None, "http"), [_body_sample(media)]
    )


def _otlp(media: Media) -> Target:
    request = logs_request({"attributes": {"a": 1, "b": [True, {"c": "d"}]}, "body": "hello"})
    sample = as_json(request) if media == "json" else request.SerializeToString()
    limits, declared = Requests(), stream_of(PROJECT)
    return Target(lambda content: read_otlp(content, media, "logs", declared, limits, None, "http"), [sample])


# -- files of a warehouse


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzzing-"))


@cache
def _landed() -> Path:
    """A warehouse with a log of landings, parts, and tables."""
    root = _folder() / "project"
    root.mkdir()
    (root / "tidemill.yaml").write_text(CONFIG)
    with Mill.open(root, clock=FakeClock(1_705_320_000_000_000)) as mill:
        for number in range(2):
            reported = {"id": str(number), "at": f"2024-01-15T1{number}:00:00Z", "amount": 1, "shop": "a"}
            mill.land("orders", json.dumps(reported).encode() + b"\n")
        mill.run_until_idle()
    return root / "warehouse"


def _wal() -> Target:
    with played(_folder() / "wal-sample") as log:
        for number in range(3):
            log.append(b'{"id":"%d","at":1}\n' % number)
        dead = log.corpse(_folder() / "dead")
    segment = max((path for path in dead.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    sample = segment.read_bytes()

    def read(content: bytes) -> object:
        segment.write_bytes(content)
        return [orphan.read() for orphan in orphans(dead)]

    return Target(read, [sample])


def _slice_log() -> Target:
    sample = (_landed() / "slices" / "landings.ndjson").read_bytes()
    copy = _folder() / "log"
    (copy / "slices").mkdir(parents=True)

    def read(content: bytes) -> object:
        (copy / "slices" / "landings.ndjson").write_bytes(content)
        return list(LandingLog(copy).lines())

    return Target(read, [sample])


def _footer(folder: str, read: Callable[[Footer], object]) -> Target:
    """The JSON that a part says of itself; a sound Parquet file around it is taken for granted."""
    path = next(path for path in sorted((_landed() / folder).rglob("*.parquet")))

    def parsed(content: bytes) -> object:
        try:
            said = json.loads(content)
        except (ValueError, RecursionError):
            return None
        return read(said) if isinstance(said, dict) else None

    return Target(parsed, [json.dumps(read_footer(path)).encode()])


def _part() -> Target:
    """A whole part, whose footer is read."""
    path = next(path for path in sorted((_landed() / "raw").rglob("*.parquet")))
    copy = _folder() / "part.parquet"

    def read(content: bytes) -> object:
        copy.write_bytes(content)
        return read_footer(copy)

    return Target(read, [path.read_bytes()])


# -- text


def _texts(*readers: Callable[[str], object]) -> Callable[[bytes], object]:
    def read(content: bytes) -> None:
        text = content.decode("utf-8", "replace")
        for reader in readers:
            with contextlib.suppress(TidemillError):
                reader(text)

    return read


def _config(text: str) -> object:
    return parse_project(text, Path("tidemill.yaml"), eventtime.registered(), {})


def _filter(text: str) -> object:
    return _config(CONFIG.replace("\"shop = 'a'\"", json.dumps(text)))


TARGETS: Final[dict[str, Callable[[], Target]]] = {
    **{f"body {media}": partial(_body, media) for media in MEDIA_TYPES},
    "otlp json": partial(_otlp, "json"),
    "otlp protobuf": partial(_otlp, "protobuf"),
    "wal": _wal,
    "slice log": _slice_log,
    "part": _part,
    "footer of raw": partial(_footer, "raw", from_footer),
    "footer of rollups": partial(_footer, "rollups", TilesFooter.from_footer),
    "footer of results": partial(_footer, "windows", ResultsFooter.from_footer),
    "query": lambda: Target(
        _texts(parse, parse_search, parse_expression, parse_having), [text.encode() for text in QUERIES]
    ),
    "query document": lambda: Target(
        _texts(query_from, search_from),
        [json.dumps({"select": ["count"], "from": "r.m", "where": {"path": "a", "eq": 1}}).encode()],
    ),
    "condition": lambda: Target(_texts(_filter), [text.encode() for text in ("shop = 'a'", QUERIES[-1])]),
    "config": lambda: Target(_texts(_config), [CONFIG.encode()]),
}


# -- running them


def mutations(samples: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """The samples, changed in one to four places each."""
    dice = Random(seed)
    while True:
        content = bytearray(dice.choice(samples))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(content) + 1)
            match dice.randrange(5):
                case 0 if content:
                    content[at % len(content)] ^= 1 << dice.randrange(8)
                case 1:
                    content[at:at] = dice.choice(WORDS)
                case 2:
                    del content[at : at + dice.randint(1, 16)]
                case 3:
                    content[at:at] = content[: dice.randrange(64)]
                case _:
                    content[at : at + 4] = dice.randbytes(dice.randrange(5))
        yield bytes(content)


def fuzz(name: str, target: Target, *, seed: int, inputs: int, seconds: float | None = None) -> int:
    """How many inputs were read. The first that fails is named with how to read it again."""
    until = None if seconds is None else time.monotonic() + seconds
    read = 0
    for content in mutations(target.samples, seed):
        if read >= inputs or (until is not None and time.monotonic() >= until):
            break
        try:
            target(content)
        except Exception as error:
            error.add_note(f"fuzz target {name!r}, seed {seed}, input {read}: {content!r}")
            raise
        read += 1
    return read


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=list(TARGETS), metavar="TARGET", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    chosen = arguments()
    target = TARGETS[chosen.target]()
    read = fuzz(chosen.target, target, seed=chosen.seed, inputs=sys.maxsize, seconds=chosen.seconds)
    record(fuzzed=read)
    sys.stdout.write(f"{chosen.target}: {read} inputs\n")


if __name__ == "__main__":
    main()
