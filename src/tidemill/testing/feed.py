"""A seeded feed of web requests as NDJSON slices, fast enough for benchmarks, with the expected totals in a
manifest.

Equal arguments always give equal bytes. The rules of the product are not run: the outcome of each record is
known because it is made to be accepted, replayed, contradicted or broken.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidemill.model.errors import InputError
from tidemill.model.slices import Counts, Reject
from tidemill.model.time import DAY, HOUR, MILLISECOND, SECOND, align, parse_instant

TENANTS: Final = ("acme", "globex", "initech")
APIS: Final = tuple(
    f"/v1/{name}"
    for name in (
        "orders", "search", "cart", "users", "login", "items", "prices", "stock", "reviews", "images",
        "checkout", "payments", "refunds", "coupons", "invoices", "shipping", "returns", "reports",
        "webhooks", "admin",
    )
)  # fmt: skip
REGIONS: Final = ("eu-west", "us-east", "ap-south", "sa-east")
STATUSES: Final = (200, 201, 404, 429, 500)
USER_AGENTS: Final = (
    "Mozilla/5.0 (X11) Gecko/128.0",
    "Mozilla/5.0 (iPhone) Mobile",
    "okhttp/4.12.0 (Android 14)",
    "python-httpx/0.27 (mesh)",
    "curl/8.9.1 (cron)",
)
_REGION_WEIGHTS = (0.5, 0.3, 0.15, 0.05)
_STATUS_WEIGHTS = (0.85, 0.05, 0.05, 0.02, 0.03)
LATE_TOLERANCE: Final = 2 * SECOND  # of the stream that the feed is made for; later events count as late
_FAR_FUTURE_MS = parse_instant("3000-01-01T00:00:00Z") // MILLISECOND
_FRACTIONS = tuple(f"{i:03d}" for i in range(1000))
_ID_END = len('{"event_id":"') + 32 + len('",')

Ints = NDArray[np.int64]
Sums = dict[str, tuple[int, int]]  # accepted events, sum of latency_ms in thousandths


@dataclass(frozen=True, slots=True)
class SliceTruth:
    """A slice file and the outcomes of its records if slices land in the order of the manifest."""

    file: str
    arrival: int
    counts: Counts
    watermark: int | None  # that its records meet


@dataclass(frozen=True, slots=True)
class Manifest:
    """The expected outcome of a feed: its slices in landing order, and exact totals of accepted events."""

    seed: int
    slices: tuple[SliceTruth, ...] = ()
    total: Counts = field(default_factory=Counts)
    tenants: Sums = field(default_factory=dict)
    hours: Sums = field(default_factory=dict)  # by the start of the hour, in microseconds
    max_seen: int | None = None

    def paths(self, folder: Path) -> list[Path]:
        return [folder / truth.file for truth in self.slices]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        data = json.loads(text)
        data["slices"] = tuple(
            SliceTruth(**{**entry, "counts": Counts(**entry["counts"])}) for entry in data["slices"]
        )
        data["total"] = Counts(**data["total"])
        for name in ("tenants", "hours"):
            data[name] = {key: (events, latency) for key, (events, latency) in data[name].items()}
        return cls(**data)


@dataclass(frozen=True, slots=True)
class _Events:
    """Well-formed events as columns and as lines."""

    lines: list[str]
    ts_ms: Ints
    tenant: Ints
    latency: Ints  # in thousandths of a millisecond


@dataclass(frozen=True, slots=True)
class RequestFeed:
    """`events` records in `slices` files of web requests, as JSON lines.

    Rates are shares of all records. `disorder` is how far event time may lag behind the order of the file;
    with `shuffled`, whole slices land out of order too.
    """

    seed: int
    events: int
    tenants: int = 3
    start: int = parse_instant("2024-01-01T00:00:00Z")
    span: int = DAY
    replays: float = 0.01
    conflicts: float = 0.0005
    bad: float = 0.001
    disorder: int = 2 * SECOND
    slices: int = 20
    shuffled: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.slices <= self.events:
            raise InputError(
                f"{self.events} events do not fill {self.slices} slices", hint="use 1 <= slices <= events"
            )
        if min(self.replays, self.conflicts, self.bad) < 0 or self.replays + self.conflicts + self.bad > 0.9:
            raise InputError(
                "the rates of replays, conflicts and bad records make no sense",
                hint="each at least 0, together at most 0.9",
            )
        if self.tenants < 1 or self.span <= 0 or self.disorder < 0 or self.seed < 0:
            raise InputError("a feed needs tenants and a span", hint="tenants, span > 0; disorder, seed >= 0")

    def tenant_names(self) -> tuple[str, ...]:
        more = (f"tenant-{i:05d}" for i in range(len(TENANTS), self.tenants))
        return (*TENANTS[: self.tenants], *more)

    def hours(self) -> range:
        """The starts of the hours that this feed covers."""
        return range(align(self.start, HOUR), self.start + self.span, HOUR)

    def write(self, folder: Path, progress: Callable[[SliceTruth], None] | None = None) -> Manifest:
        """Write the slices and `manifest.json` into `folder`; `progress` is called for each slice."""
        folder.mkdir(parents=True, exist_ok=True)
        order = list(range(self.slices))
        if self.shuffled:
            order = [int(i) for i in np.random.default_rng([self.seed, 1]).permutation(self.slices)]
        manifest, earlier = Manifest(self.seed), list[list[str]]()
        for chunk in order:
            manifest = self._write_chunk(folder, chunk, manifest, earlier)
            if progress:
                progress(manifest.slices[-1])
        (folder / "manifest.json").write_text(manifest.to_json())
        return manifest

    def late_slice(self, folder: Path, events: int, hours: Iterable[int], after: Manifest) -> Manifest:
        """Write one more slice of new events in old `hours` (their starts); returns the longer manifest."""
        starts = np.array(sorted(hours), dtype=np.int64) // MILLISECOND
        if not len(starts) or events < 1:
            raise InputError("a late slice needs events and hours", hint="take some of feed.hours()")
        number = len(after.slices)
        rng = np.random.default_rng([self.seed, 2, number])
        ts = rng.choice(starts, events) + rng.integers(0, HOUR // MILLISECOND, events)
        new = self._events(rng, ts)
        arrival = max([truth.arrival for truth in after.slices] + [self.start + self.span]) + HOUR
        manifest = self._finish(folder, f"late-{number:05d}.ndjson", arrival, new, new.lines, Counts(), after)
        (folder / "manifest.json").write_text(manifest.to_json())
        return manifest

    def _write_chunk(
        self, folder: Path, chunk: int, manifest: Manifest, earlier: list[list[str]]
    ) -> Manifest:
        """The records of one chunk of event time; `earlier` holds samples of what landed before."""
        rng = np.random.default_rng([self.seed, 3, chunk])
        first, end = (self.events * i // self.slices for i in (chunk, chunk + 1))
        extras = rng.binomial(end - first, (self.replays, self.conflicts, self.bad))
        replays, conflicts, bad = (int(n) for n in extras)
        spare = max(end - first - 1, 0)  # so that at least one record is new
        replays = min(replays, spare)
        conflicts = min(conflicts, spare - replays)
        bad = min(bad, spare - replays - conflicts)
        fresh = self._events(rng, self._times(rng, chunk, end - first - replays - conflicts - bad))

        positions, lines = list(range(len(fresh.lines))), list(fresh.lines)
        for again, count in ((_replayed, replays), (_contradicted, conflicts)):
            for _ in range(count):
                at, original = _pick(rng, fresh.lines, earlier)
                positions.append(at)
                lines.append(again(original, int(rng.integers(1 << 30))))
        rejects: Counter[str] = Counter()
        for line in self._events(rng, self._times(rng, chunk, bad)).lines:
            reason, spoil = _SPOILS[int(rng.integers(len(_SPOILS)))]
            rejects[reason.value] += 1
            positions.append(int(rng.integers(len(fresh.lines))))
            lines.append(spoil(line, int(rng.integers(1 << 30))))
        # stable, so that what was added at a position comes after the new event there
        order = np.argsort(np.array(positions), kind="stable").tolist()

        kept = min(len(fresh.lines), max(16, replays + conflicts))
        earlier.append([fresh.lines[i] for i in rng.choice(len(fresh.lines), kept, replace=False).tolist()])
        arrival = self.start + self.span * (chunk + 1) // self.slices
        if manifest.slices:
            arrival = max(arrival, manifest.slices[-1].arrival)
        extra = Counts(
            duplicate=replays, conflict=conflicts, rejected=bad, rejects=dict(sorted(rejects.items()))
        )
        file = f"slice-{chunk:05d}.ndjson"
        return self._finish(folder, file, arrival, fresh, [lines[i] for i in order], extra, manifest)

    def _times(self, rng: np.random.Generator, chunk: int, count: int) -> Ints:
        """Event times of `count` records sent evenly over the chunk, each up to `disorder` ago."""
        begin, end = (self.start + self.span * i // self.slices for i in (chunk, chunk + 1))
        sent = np.linspace(begin, end, count, endpoint=False).astype(np.int64)
        delay = rng.integers(0, max(self.disorder, 1), count)
        result: Ints = np.maximum(sent - delay, self.start) // MILLISECOND
        return result

    def _events(self, rng: np.random.Generator, ts: Ints) -> _Events:
        count = len(ts)
        names = self.tenant_names()
        ids = rng.bytes(16 * count).hex()
        traces = rng.bytes(8 * count).hex()
        tenant = rng.integers(0, len(names), count)
        kind = rng.choice(len(_KINDS), count, p=_KIND_WEIGHTS)
        latency = (rng.gamma(2.0, 40.0, count) * 1000).astype(np.int64)
        size = rng.integers(100, 100_000, count)
        agent = rng.integers(0, len(USER_AGENTS), count)
        columns = zip(
            range(count), ts.tolist(), tenant.tolist(), kind.tolist(), (latency // 1000).tolist(),
            (latency % 1000).tolist(), size.tolist(), agent.tolist(), strict=True,
        )  # fmt: skip
        lines = [
            f'{{"event_id":"{ids[32 * i : 32 * i + 32]}","ts":{at},"event_type":"request",'
            f'"tenant":"{names[t]}",{_KINDS[k]},"latency_ms":{whole}.{_FRACTIONS[part]},"bytes":{b},'
            f'"user_agent":"{USER_AGENTS[a]}","trace":"{traces[16 * i : 16 * i + 16]}"}}'
            for i, at, t, k, whole, part, b, a in columns
        ]
        return _Events(lines, ts, tenant, latency)

    def _finish(
        self,
        folder: Path,
        file: str,
        arrival: int,
        fresh: _Events,
        lines: Sequence[str],
        extra: Counts,
        manifest: Manifest,
    ) -> Manifest:
        """Write one slice and add its expected outcome."""
        data = "\n".join(lines) + "\n"
        (folder / file).write_bytes(data.encode("utf-8", "surrogateescape"))
        ts = fresh.ts_ms * MILLISECOND
        newest = int(ts.max())
        watermark = None if manifest.max_seen is None else manifest.max_seen - LATE_TOLERANCE
        late = 0 if watermark is None else int(np.count_nonzero(ts <= watermark))
        counts = replace(extra, records=len(lines), accepted=len(ts), late=late)
        return Manifest(
            seed=manifest.seed,
            slices=(*manifest.slices, SliceTruth(file, arrival, counts, watermark)),
            total=_plus(manifest.total, counts),
            tenants=_sums(manifest.tenants, fresh.tenant, fresh.latency, self.tenant_names()),
            hours=_sums(manifest.hours, ts // HOUR * HOUR, fresh.latency),
            max_seen=newest if manifest.max_seen is None else max(newest, manifest.max_seen),
        )


def _pick(rng: np.random.Generator, lines: list[str], earlier: list[list[str]]) -> tuple[int, str]:
    """An original, and a position in this slice after it: half from this slice, half from earlier ones."""
    position, choice = int(rng.integers(len(lines))), int(rng.integers(1 << 30))
    if not earlier or choice % 2:
        return position, lines[choice // 2 % (position + 1)]
    sample = earlier[choice // 2 % len(earlier)]
    return position, sample[int(rng.integers(len(sample)))]


def _replayed(line: str, dice: int) -> str:
    """The same event again: two of three byte for byte, the others with another order, spacing and
    numbers."""
    if dice % 3:
        return line
    pieces = [piece if piece.startswith('"') else f'"{piece}' for piece in line[1:-1].split(',"')]
    respelled = [_respelled(piece) for piece in pieces]
    turn = dice // 3 % len(respelled)
    return "{ " + ", ".join(respelled[turn:] + respelled[:turn]) + " }"


def _respelled(piece: str) -> str:
    key, _, value = piece.partition(":")
    if key in ('"status"', '"bytes"'):
        return f"{key}: {value}.0"
    if key == '"latency_ms"':
        return f"{key}: {value.replace('.', '')}e-3" if value[0] != "0" else f"{key}: {value}0"
    return f"{key}: {value}"


def _contradicted(line: str, dice: int) -> str:
    """The same id with another payload: more bytes, another status, or another time."""
    name, by = (("bytes", 1), ("status", 1), ("ts", 1000))[dice % 3]
    before, value, after = _around(line, name)
    return f"{before}{int(value) + by}{after}"


def _around(line: str, name: str) -> tuple[str, str, str]:
    """The text before, in and after the number of a field."""
    head, key, rest = line.partition(f'"{name}":')
    value, comma, tail = rest.partition(",")
    return head + key, value, comma + tail


def _truncated(line: str, dice: int) -> str:
    return line[: 2 + dice % (len(line) - 3)]


def _wrong_type(line: str, dice: int) -> str:
    before, value, after = _around(line, "status")
    return f'{before}"{value}"{after}'


def _unknown_type(line: str, dice: int) -> str:
    return line.replace('"event_type":"request"', '"event_type":"heartbeat"')


def _bad_time(line: str, dice: int) -> str:
    before, _, after = _around(line, "ts")
    return f'{before}"yesterday"{after}'


def _far_future(line: str, dice: int) -> str:
    before, _, after = _around(line, "ts")
    return f"{before}{_FAR_FUTURE_MS}{after}"


def _invalid_utf8(line: str, dice: int) -> str:
    return line.replace('"user_agent":"', '"user_agent":"\udcff\udcfe')  # written as the bytes FF FE


def _without_id(line: str, dice: int) -> str:
    return "{" + line[_ID_END:]


_SPOILS: Final[tuple[tuple[Reject, Callable[[str, int], str]], ...]] = (
    (Reject.MALFORMED, _truncated),
    (Reject.WRONG_TYPE, _wrong_type),
    (Reject.UNKNOWN_TYPE, _unknown_type),
    (Reject.BAD_TIME, _bad_time),
    (Reject.SKEW, _far_future),
    (Reject.ENCODING, _invalid_utf8),
    (Reject.MISSING_ID, _without_id),
)


def _plus(a: Counts, b: Counts) -> Counts:
    rejects = Counter(a.rejects) + Counter(b.rejects)
    return Counts(
        a.records + b.records,
        a.accepted + b.accepted,
        a.duplicate + b.duplicate,
        a.conflict + b.conflict,
        a.rejected + b.rejected,
        a.late + b.late,
        dict(sorted(rejects.items())),
    )


def _sums(old: Sums, keys: Ints, latency: Ints, names: Sequence[str] | None = None) -> Sums:
    """`old` plus events and exact latency by key."""
    found, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    sums = np.zeros(len(found), dtype=np.int64)
    np.add.at(sums, inverse, latency)
    result = dict(old)
    for key, count, total in zip(found.tolist(), counts.tolist(), sums.tolist(), strict=True):
        name = names[key] if names else str(key)
        events, before = result.get(name, (0, 0))
        result[name] = (events + count, before + total)
    return result


def _kinds() -> tuple[list[str], NDArray[np.float64]]:
    """Every combination of the dimensions, ready to write, and its probability."""
    api_weights = 1 / np.arange(1, len(APIS) + 1)
    weights = np.einsum("i,j,k->ijk", api_weights / api_weights.sum(), _REGION_WEIGHTS, _STATUS_WEIGHTS)
    kinds = [
        f'"api":"{api}","region":"{region}","status":{status}'
        for api in APIS
        for region in REGIONS
        for status in STATUSES
    ]
    return kinds, weights.ravel()


_KINDS, _KIND_WEIGHTS = _kinds()
