"""The `gateway` section: where it listens, how it gathers events into windows, limits of memory and requests.

The defaults are those of the adaptive window: 10 ms to 5 s for 100 events, within 100 MiB.
"""

from __future__ import annotations

import math
from ipaddress import ip_address
from typing import Annotated, Final, Literal

import pydantic
from pydantic import AfterValidator, BeforeValidator, StrictInt, model_validator

from tidemill.config.schema import ABSENT, SECTION, without_empty
from tidemill.config.values import ByteSize, PositiveDuration, SafeName, wrong
from tidemill.model.time import DAY, MILLISECOND, SECOND

KIB: Final = 1 << 10
MIB: Final = 1 << 20
MAX_FOLDERS: Final = 64
MAX_PANES: Final = 10_000  # parts that the statistics of a sliding window are made of


def _share(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise wrong(f"{value!r} is not a share", "use a number above 0 and at most 1, such as 0.8")
    return float(value)


def _change(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise wrong(f"{value!r} is not a relative change", "use a number above 0: 0.5 is half as much again")
    return float(value)


def _host(value: str) -> str:
    if not value.strip() or not value.isprintable() or " " in value:
        raise wrong(f"{value!r} is not a host", "use 127.0.0.1, ::1, localhost or an address of this machine")
    return value


def _folder(value: str) -> str:
    if not value.strip() or "\0" in value or "://" in value:
        raise wrong(
            f"{value!r} does not name a folder", "name a folder, relative to tidemill.yaml or absolute"
        )
    return value


Share = Annotated[float, BeforeValidator(_share)]
Change = Annotated[float, BeforeValidator(_change)]
Port = Annotated[StrictInt, pydantic.Field(ge=0, le=65535)]
Count = Annotated[StrictInt, pydantic.Field(ge=1, le=10**9)]


class FixedWindow(pydantic.BaseModel):
    """Closed at every multiple of `size` since the epoch. `tumbling` is a synonym."""

    model_config = SECTION

    kind: Literal["fixed", "tumbling"]
    size: PositiveDuration = SECOND


class SlidingWindow(pydantic.BaseModel):
    """Closed every `step`; its statistics cover the last `size`, and each event is in one slice only."""

    model_config = SECTION

    kind: Literal["sliding"]
    size: PositiveDuration = 5 * SECOND
    step: PositiveDuration = SECOND

    @model_validator(mode="after")
    def _steps_fit(self) -> SlidingWindow:
        if self.size < self.step:
            raise wrong("step is longer than size", "make step as long as size, or shorter")
        if self.size // math.gcd(self.size, self.step) > MAX_PANES:
            raise wrong("size and step have too small a common divisor", "make size a multiple of step")
        return self


class SessionWindow(pydantic.BaseModel):
    """Closed when nothing has arrived for `gap`, and after `max` in any case."""

    model_config = SECTION

    kind: Literal["session"]
    gap: PositiveDuration = 500 * MILLISECOND
    max: PositiveDuration = 5 * SECOND

    @model_validator(mode="after")
    def _gap_fits(self) -> SessionWindow:
        if self.max < self.gap:
            raise wrong("gap is longer than max", "make gap as long as max, or shorter")
        return self


class AdaptiveWindow(pydantic.BaseModel):
    """As long as it takes `target` events to arrive at the present rate, between `min` and `max`."""

    model_config = SECTION

    kind: Literal["adaptive"] = "adaptive"
    min: PositiveDuration = 10 * MILLISECOND
    max: PositiveDuration = 5 * SECOND
    target: Count = 100

    @model_validator(mode="after")
    def _bounds_fit(self) -> AdaptiveWindow:
        if self.max < self.min:
            raise wrong("max is shorter than min", "make max as long as min, or longer")
        return self


def _adaptive_by_default(value: object) -> object:
    """Adaptive is the default kind even if other keys are set: the environment sets them one by one."""
    adaptive = AdaptiveWindow.model_fields.keys()
    if isinstance(value, dict) and value.get("kind") is None and value.keys() <= adaptive:
        return {**value, "kind": "adaptive"}
    return value


BufferWindow = FixedWindow | SlidingWindow | SessionWindow | AdaptiveWindow
DeclaredWindow = Annotated[
    BufferWindow, pydantic.Field(discriminator="kind"), BeforeValidator(_adaptive_by_default)
]


class Triggers(pydantic.BaseModel):
    """What closes a window early. null disables a trigger."""

    model_config = SECTION

    count: Count | None = 50_000  # events
    bytes: Annotated[ByteSize, pydantic.Field(ge=1)] | None = 8 * MIB
    rate_change: Change | None = 0.5  # the mean of the last 5 rates against that of the 10 before
    memory: Share | None = 0.8  # share of what the gateway may use
    custom: tuple[SafeName, ...] = ()  # names of entry points in the group tidemill.triggers


class Memory(pydantic.BaseModel):
    """The memory that the gateway may use: in total, and for each part."""

    model_config = SECTION

    max: Annotated[ByteSize, pydantic.Field(ge=4 * MIB)] = 100 * MIB
    high_water: Share = 0.8  # above it senders are asked to wait
    emergency: Share = 0.95  # above it requests are refused
    buffer: Annotated[ByteSize, pydantic.Field(ge=MIB)] = 50 * MIB  # events until their slice has landed
    requests: Annotated[ByteSize, pydantic.Field(ge=MIB)] = 40 * MIB  # bodies while they are being read
    windows: Annotated[ByteSize, pydantic.Field(ge=64 * KIB)] = 5 * MIB  # data about closed windows
    rates: Annotated[ByteSize, pydantic.Field(ge=64 * KIB)] = 4 * MIB  # data about arrivals

    @model_validator(mode="after")
    def _marks_are_in_order(self) -> Memory:
        if self.emergency < self.high_water:
            raise wrong("emergency is below high_water", "make it the same, or higher")
        if max(self.buffer, self.requests, self.windows, self.rates) > self.max:
            raise wrong("a part is larger than max", "make max larger, or the part smaller")
        return self


class StreamMemory(pydantic.BaseModel):
    """The memory that the gateway may use for one stream; null: no limit of its own."""

    model_config = SECTION

    buffer: Annotated[ByteSize, pydantic.Field(ge=64 * KIB)] | None = None


class StreamGateway(pydantic.BaseModel):
    """How the events of one stream are gathered, where that differs from `gateway`."""

    model_config = SECTION

    window: DeclaredWindow | None = None  # null: as in `gateway`
    triggers: Triggers = ABSENT  # keys that are not set are as in `gateway`
    memory: StreamMemory = ABSENT

    _empty_section_is_absent = model_validator(mode="before")(without_empty)


class WalSettings(pydantic.BaseModel):
    """The write-ahead log, which makes events durable before they are in a slice."""

    model_config = SECTION

    segment: Annotated[ByteSize, pydantic.Field(ge=64 * KIB)] = 16 * MIB  # then a new file is started


class Requests(pydantic.BaseModel):
    """Limits of a request; one beyond them is refused as a whole."""

    model_config = SECTION

    body: Annotated[ByteSize, pydantic.Field(ge=KIB)] = 16 * MIB  # also after decompression
    events: Count = 10_000
    spread: Count = 2_000  # windows (or days) that its events may touch
    depth: Annotated[StrictInt, pydantic.Field(ge=1, le=512)] = 64
    field: Annotated[ByteSize, pydantic.Field(ge=16)] = MIB  # of one string in an event
    timeout: PositiveDuration = 30 * SECOND  # between two pieces of a body
    wait: PositiveDuration = 30 * SECOND  # the longest time that a request may wait for outcomes
    connections: Count = 1000  # at once
    sources: Count = 128  # values of `source` that one sender may use at once


class Otlp(pydantic.BaseModel):
    """The streams that logs and spans go to."""

    model_config = SECTION

    logs: SafeName = "logs"
    traces: SafeName = "traces"


class GatewaySettings(pydantic.BaseModel):
    """How events are received over HTTP."""

    model_config = SECTION

    host: Annotated[str, AfterValidator(_host)] = "127.0.0.1"
    port: Port = 8470
    acknowledge: Literal["logged", "landed"] = "logged"  # when events are in the gateway's log, or in a slice
    window: DeclaredWindow = ABSENT
    triggers: Triggers = ABSENT
    background: PositiveDuration = 100 * MILLISECOND  # how often open windows are checked
    memory: Memory = ABSENT
    wal: WalSettings = ABSENT
    requests: Requests = ABSENT
    receipts: PositiveDuration = DAY  # how long outcomes can be queried
    otlp: Otlp = ABSENT
    objects: Annotated[
        tuple[Annotated[str, AfterValidator(_folder)], ...], pydantic.Field(max_length=MAX_FOLDERS)
    ] = ()

    _empty_section_is_absent = model_validator(mode="before")(without_empty)

    @model_validator(mode="after")
    def _requests_fit(self) -> GatewaySettings:
        """Check that memory has room for a body; else it would be retried without end."""
        memory = self.memory
        # A body is in memory while it is read and while it is buffered.
        least = min(memory.requests, memory.buffer, memory.max / 2)
        if self.requests.body + KIB > memory.emergency * least:
            raise wrong(
                "requests.body is too large: at most memory.emergency of memory.requests, of memory.buffer, "
                "and of half of memory.max",
                "allow smaller bodies, or more memory",
            )
        return self


def settings_of(gateway: GatewaySettings, own: StreamGateway) -> GatewaySettings:
    """How the events of a stream are gathered. Without a memory trigger, windows are still closed before
    senders would have to wait."""
    own_triggers = {key: getattr(own.triggers, key) for key in own.triggers.model_fields_set}
    triggers = gateway.triggers.model_copy(update=own_triggers)
    if triggers.memory is None:
        triggers = triggers.model_copy(update={"memory": gateway.memory.high_water})
    return gateway.model_copy(update={"window": own.window or gateway.window, "triggers": triggers})


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that binds to `host`."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
