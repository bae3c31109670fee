"""The job as a Polars script on two threads, as a skilled engineer writes it in an hour; run as `… JOB OUT`.

It is a yardstick: everything in memory, no ledger, no fsync, and a crash leaves whatever it leaves.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

os.environ["POLARS_MAX_THREADS"] = "2"

import polars as pl

LEVELS = {"5s": 5, "1m": 60, "1h": 3600, "1d": 86_400, "7d": 604_800}
BY_HOUR = ("5s", "1m")
KEY = ["tenant", "event_id"]
DIMENSIONS = ["tenant", "api", "region", "status", "bucket"]
DAY_MS = 86_400_000
# Numbers as text: one wrong type would fail the decoding of all lines.
RECORD = pl.Struct(
    dict.fromkeys(
        (
            "event_id",
            "ts",
            "event_type",
            "tenant",
            "api",
            "region",
            "status",
            "latency_ms",
            "bytes",
            "user_agent",
            "trace",
        ),
        pl.String,
    )
)


def without_broken(data: bytes) -> tuple[bytes, int]:
    """The lines that are UTF-8, and how many are not."""
    pieces, start, broken = [], 0, 0
    places: list[int] = []

    def note(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        places.append(error.start)
        return "", error.end

    codecs.register_error("note", note)
    data.decode("utf-8", "note")
    for place in places:
        if place >= start:
            pieces.append(data[start : data.rfind(b"\n", 0, place) + 1])
            start = data.find(b"\n", place) + 1
            broken += 1
    return b"".join([*pieces, data[start:]]) if broken else data, broken


def load(number: int, item: dict[str, Any]) -> tuple[pl.DataFrame, int]:
    """A slice as parsed lines that are UTF-8, and how many are not."""
    data, broken = without_broken(Path(item["file"]).read_bytes())
    frame = pl.read_lines(data).with_columns(
        slice=pl.lit(number, pl.Int16), arrival=pl.lit(item["arrival"] // 1000)
    )
    return parse(frame), broken


def reason() -> pl.Expr:
    def empty(name: str) -> pl.Expr:
        return pl.col(name).fill_null("") == ""

    return (
        pl.when(pl.col("malformed")).then(pl.lit("malformed"))
        .when(empty("event_id")).then(pl.lit("missing_id"))
        .when(empty("tenant") | empty("event_type")).then(pl.lit("missing_field"))
        .when(pl.col("event_type") != "request").then(pl.lit("unknown_type"))
        .when(pl.col("ts").is_null()).then(pl.lit("bad_time"))
        .when(pl.col("quoted") | pl.col("status").is_null() | pl.col("latency").is_null())
        .then(pl.lit("wrong_type"))
        .when(pl.col("ts") > pl.col("arrival") + DAY_MS).then(pl.lit("skew"))
    )  # fmt: skip


def parse(frame: pl.DataFrame) -> pl.DataFrame:
    line = pl.col("line")
    malformed = ~(line.str.starts_with("{") & line.str.ends_with("}"))
    return (
        frame.with_columns(malformed=malformed)
        .with_columns(
            pl.when(~pl.col("malformed")).then(line).str.json_decode(RECORD).alias("record"),
            quoted=line.str.contains(r'"status"\s*:\s*"'),
        )
        .unnest("record")
        .with_columns(
            pl.col("ts").cast(pl.Int64, strict=False),
            pl.col("status").cast(pl.Float64, strict=False).cast(pl.Int64),
            latency=pl.col("latency_ms").cast(pl.Decimal(18, 3), strict=False),
            bytes=pl.col("bytes").cast(pl.Float64, strict=False).cast(pl.Int64),
        )
        .with_columns(reason=reason())
        .drop("latency_ms", "arrival", "malformed", "quoted")
    )


def same(one: str, other: str) -> bool:
    """Equal as JSON: order of keys, white space and the spelling of numbers do not count."""
    if one == other:
        return True
    decoder = json.JSONDecoder(parse_int=Decimal, parse_float=Decimal)
    return bool(decoder.decode(one) == decoder.decode(other))


def compare(losers: pl.DataFrame) -> pl.DataFrame:
    """Names the outcome of each row by its line and the `first` line of the same key."""
    equal = [same(one, other) for one, other in zip(losers["line"], losers["first"], strict=True)]
    return losers.with_columns(
        outcome=pl.Series(["duplicate" if each else "conflict" for each in equal], dtype=pl.String)
    )


def gate(frame: pl.DataFrame, outcomes: list[dict[str, int]]) -> pl.DataFrame:
    """What is accepted, in order of arrival; counts the rest."""
    count(outcomes, frame.filter(pl.col("reason").is_not_null()).rename({"reason": "outcome"}))
    frame = frame.filter(pl.col("reason").is_null()).drop("reason")
    first = frame.select(pl.struct(KEY).is_first_distinct()).to_series()
    again = frame.filter(~first)
    accepted = frame.filter(first)
    firsts = accepted.join(again.select(KEY).unique(), on=KEY, how="semi").select(*KEY, first="line")
    count(outcomes, compare(again.join(firsts, on=KEY)))
    return accepted


def count(outcomes: list[dict[str, int]], frame: pl.DataFrame) -> None:
    for number, outcome, rows in frame.group_by("slice", "outcome").len().iter_rows():
        outcomes[number][outcome] = outcomes[number].get(outcome, 0) + rows


def write_raw(accepted: pl.DataFrame, names: list[str], out: Path) -> None:
    frame = accepted.select(
        *KEY,
        (pl.col("ts") * 1000).cast(pl.Datetime("us", "UTC")).alias("ts"),
        pl.col("line").alias("payload"),
        "event_type",
        "api",
        "region",
        "status",
        pl.col("latency").alias("latency_ms"),
        "bytes",
        "user_agent",
        "trace",
        "slice",
        day=pl.col("ts") // DAY_MS,
    )
    for (number, day), part in frame.partition_by("slice", "day", as_dict=True, include_key=False).items():
        folder = out / "raw" / f"day={time.strftime('%Y-%m-%d', time.gmtime(day * 86_400))}"
        folder.mkdir(parents=True, exist_ok=True)
        target = folder / f"{Path(names[number]).stem}.parquet"
        part.sort("tenant", "ts").write_parquet(target, compression="zstd", compression_level=1)


def roll_up(accepted: pl.DataFrame) -> dict[str, pl.DataFrame]:
    latency = pl.col("latency")
    level = (
        accepted.lazy()
        .select(*DIMENSIONS[:-1], "latency", bucket=pl.col("ts") // 5000 * 5)
        .group_by(DIMENSIONS)
        .agg(n=pl.len().cast(pl.Int64), sum=latency.sum(), min=latency.min(), max=latency.max())
        .collect()
    )
    levels = {"5s": level}
    for name, width in list(LEVELS.items())[1:]:
        level = merged(level.with_columns(bucket=pl.col("bucket") // width * width))
        levels[name] = level
    return levels


def merged(cells: pl.DataFrame) -> pl.DataFrame:
    return cells.group_by(DIMENSIONS).agg(
        pl.col("n").sum(), pl.col("sum").sum(), pl.col("min").min(), pl.col("max").max()
    )


def write_rollups(levels: dict[str, pl.DataFrame], out: Path) -> None:
    """Add to what is stored: whole files are read, merged and written again."""
    for name, level in levels.items():
        folder = out / "rollups" / f"level={name}"
        parts = {(0,): level}
        if name in BY_HOUR:
            hours = level.with_columns(hour=pl.col("bucket") // 3600)
            parts = hours.partition_by("hour", as_dict=True, include_key=False)
        folder.mkdir(parents=True, exist_ok=True)
        for (hour,), part in parts.items():
            target = folder / f"part-{hour}.parquet"
            whole = merged(pl.concat([pl.read_parquet(target), part])) if target.exists() else part
            whole.write_parquet(target, compression="zstd", compression_level=1)


def gate_history(accepted: pl.DataFrame, outcomes: list[dict[str, int]], out: Path) -> pl.DataFrame:
    """Take out what the raw table already holds."""
    raw = pl.scan_parquet(out / "raw" / "*" / "*.parquet", hive_partitioning=False)
    keys = accepted.lazy().select(KEY)
    known = raw.select(KEY).join(keys, on=KEY, how="semi").collect()
    if known.is_empty():
        return accepted
    stored = raw.join(known.lazy(), on=KEY, how="semi").select(*KEY, first="payload").collect()
    count(outcomes, compare(accepted.join(stored, on=KEY)))
    return accepted.join(known, on=KEY, how="anti")


def run(job: dict[str, Any], out: Path) -> None:
    slices = job["slices"]
    with ThreadPoolExecutor(2) as pool:
        loaded = list(pool.map(load, range(len(slices)), slices))
    outcomes = [{"encoding": broken} if broken else {} for _, broken in loaded]
    accepted = gate(pl.concat([frame for frame, _ in loaded]), outcomes)
    if job["mode"] == "late":
        accepted = gate_history(accepted, outcomes, out)
    count(outcomes, accepted.select("slice", outcome=pl.lit("accepted")))
    write_raw(accepted, [item["file"] for item in slices], out)
    write_rollups(roll_up(accepted), out)
    (out / "outcomes.json").write_text(json.dumps(outcomes))


def main() -> None:
    started = time.perf_counter()
    run(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
