"""The gateway: every key, what it is by default, what is refused and how, and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.config import parse_project
from tidemill.config.gateway import (
    MAX_FOLDERS,
    AdaptiveWindow,
    FixedWindow,
    GatewaySettings,
    SessionWindow,
    is_loopback,
)
from tidemill.model.errors import ConfigError
from tidemill.model.time import DAY, HOUR, MILLISECOND, MINUTE, SECOND

FILE = Path("tidemill.yaml")
KIB, MIB = 1 << 10, 1 << 20
HEAD = """\
version: 1
streams: {s: {schema: {id: string}, identity: id}}
gateway:
"""
ADAPTIVE: dict[str, object] = {"kind": "adaptive", "min": 10 * MILLISECOND, "max": 5 * SECOND, "target": 100}
KINDS = "fixed, tumbling, sliding, session, adaptive"


def load(*lines: str, environ: dict[str, str] | None = None) -> GatewaySettings:
    text = HEAD + "".join(f"  {line}\n" for line in lines)
    return parse_project(text, FILE, (), environ or {}).gateway


def refused(*lines: str, environ: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(*lines, environ=environ)
    return caught.value


def test_the_defaults_are_those_of_the_adaptive_window() -> None:
    gateway = load()
    assert gateway == GatewaySettings()
    assert (gateway.host, gateway.port) == ("127.0.0.1", 8470)
    assert gateway.window == AdaptiveWindow()
    assert gateway.window.model_dump() == ADAPTIVE
    triggers = gateway.triggers
    assert (triggers.count, triggers.bytes, triggers.rate_change, triggers.memory, triggers.custom) == (
        50_000, 8 * MIB, 0.5, 0.8, (),
    )  # fmt: skip
    memory = gateway.memory
    assert (memory.max, memory.high_water, memory.emergency) == (100 * MIB, 0.8, 0.95)
    assert (memory.buffer, memory.requests, memory.windows, memory.rates) == (
        50 * MIB, 40 * MIB, 5 * MIB, 4 * MIB,
    )  # fmt: skip
    assert (gateway.background, gateway.receipts) == (100 * MILLISECOND, DAY)
    assert gateway.acknowledge == "logged"


def test_every_key_can_be_set() -> None:
    gateway = load(
        "host: 0.0.0.0",
        "port: 0",
        "acknowledge: landed",
        "window: {kind: adaptive, min: 1ms, max: 2s, target: 7}",
        "triggers: {count: 10, bytes: 1MiB, rate_change: 2, memory: 0.5, custom: [night, noon]}",
        "background: 20ms",
        "memory: {max: 20MiB, high_water: 0.5, emergency: 0.6, buffer: 10MiB, requests: 9MiB, windows: 1MiB, "
        "rates: 64KiB}",
        "wal: {segment: 1MiB}",
        "requests: {body: 1MiB, events: 3, depth: 4, field: 16, timeout: 1s, wait: 2s, connections: 5, "
        "spread: 2, sources: 6}",
        "receipts: 1h",
        "otlp: {logs: l, traces: t}",
        "objects: [incoming, /srv/files]",
    )
    assert (gateway.host, gateway.port, gateway.acknowledge) == ("0.0.0.0", 0, "landed")  # noqa: S104
    assert gateway.window.model_dump() == ADAPTIVE | {"min": MILLISECOND, "max": 2 * SECOND, "target": 7}
    assert gateway.triggers.model_dump() == {
        "count": 10, "bytes": MIB, "rate_change": 2.0, "memory": 0.5, "custom": ("night", "noon"),
    }  # fmt: skip
    assert gateway.background == 20 * MILLISECOND
    assert gateway.memory.model_dump() == {
        "max": 20 * MIB, "high_water": 0.5, "emergency": 0.6, "buffer": 10 * MIB, "requests": 9 * MIB,
        "windows": MIB, "rates": 64 * KIB,
    }  # fmt: skip
    assert gateway.wal.segment == MIB
    assert gateway.requests.model_dump() == {
        "body": MIB, "events": 3, "depth": 4, "field": 16, "timeout": SECOND, "wait": 2 * SECOND,
        "connections": 5, "spread": 2, "sources": 6,
    }  # fmt: skip
    assert gateway.receipts == HOUR
    assert (gateway.otlp.logs, gateway.otlp.traces) == ("l", "t")
    assert gateway.objects == ("incoming", "/srv/files")
    assert gateway.model_fields_set == set(GatewaySettings.model_fields)


@pytest.mark.parametrize(
    ("written", "window"),
    [
        ("{kind: fixed, size: 250ms}", {"kind": "fixed", "size": 250 * MILLISECOND}),
        ("{kind: fixed}", {"kind": "fixed", "size": SECOND}),
        ("{kind: tumbling, size: 1m}", {"kind": "tumbling", "size": MINUTE}),
        ("{kind: sliding}", {"kind": "sliding", "size": 5 * SECOND, "step": SECOND}),
        ("{kind: sliding, size: 3s, step: 3s}", {"kind": "sliding", "size": 3 * SECOND, "step": 3 * SECOND}),
        ("{kind: session}", {"kind": "session", "gap": 500 * MILLISECOND, "max": 5 * SECOND}),
        ("{kind: session, gap: 1s, max: 1s}", {"kind": "session", "gap": SECOND, "max": SECOND}),
        ("{kind: adaptive, min: 1s, max: 1s}", ADAPTIVE | {"min": SECOND, "max": SECOND}),
        ("{max: 2s}", ADAPTIVE | {"max": 2 * SECOND}),
        ("{kind: }", ADAPTIVE),
        ("{}", ADAPTIVE),
        ("", ADAPTIVE),
    ],
)
def test_kinds_of_windows_and_without_one_it_is_adaptive(written: str, window: dict[str, object]) -> None:
    assert load(f"window: {written}").window.model_dump() == window


def test_a_trigger_that_is_null_is_off_and_a_section_that_is_empty_is_the_default() -> None:
    off = load("triggers: {count: null, bytes: null, rate_change: null, memory: null}").triggers
    assert (off.count, off.bytes, off.rate_change, off.memory) == (None,) * 4
    assert load("triggers:", "memory:", "wal:", "requests:", "otlp:", "objects:") == GatewaySettings()


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("window: {kind: hopping}", "window.kind: 'hopping' is not a valid kind", f"choices: {KINDS}"),
        ("window: {kind: slidng}", "window.kind: 'slidng' is not a valid kind", "did you mean sliding?"),
        (
            "window: {size: 5s}",
            "window: kind is missing",
            "add kind: fixed | tumbling | sliding | session | adaptive",
        ),
        ("window: {kind: fixed, step: 1s}", "window.step: unknown key", "keys: kind, size"),
        ("window: {kind: sliding, gap: 1s}", "window.gap: unknown key", "keys: kind, size, step"),
        ("window: {kind: session, min: 1s}", "window.min: unknown key", "keys: kind, gap, max"),
        ("window: {kind: adaptive, size: 1s}", "window.size: unknown key", "keys: kind, min, max, target"),
        ("window: adaptive", "window: 'adaptive' should be a section", "use key: value"),
        ("window: {kind: fixed, size: 0s}", "window.size: a duration of 0 is too short", "longer one"),
        ("window: {max: 1}", "window.max: duration 1 has no unit", "250ms, 5s"),
        ("window: {min: 6s}", "window: max is shorter than min", "make max as long as min, or longer"),
        ("window: {target: 0}", "window.target: 0 should be at least 1", "use a larger one"),
        ("window: {target: 1.5}", "window.target: 1.5 should be a whole number", "use digits only"),
        (
            "window: {kind: sliding, size: 1s, step: 2s}",
            "window: step is longer than size",
            "make step as long as size, or shorter",
        ),
        (
            "window: {kind: sliding, size: 5s, step: 999999us}",
            "window: size and step have too small a common divisor",
            "make size a multiple of step",
        ),
        ("window: {kind: session, gap: 6s}", "window: gap is longer than max", "make gap as long as max"),
        ("host: 3", "host: 3 should be text", "put quotes around it"),
        ("host: ''", "host: '' is not a host", "use 127.0.0.1, ::1, localhost"),
        ("host: 'a b'", "host: 'a b' is not a host", "use 127.0.0.1, ::1, localhost"),
        ("port: 65536", "port: 65536 should be at most 65535", "use a smaller one"),
        ("port: -1", "port: -1 should be at least 0", "use a larger one"),
        ("port: true", "port: True should be a whole number", "use digits only"),
        ("triggers: {count: 0}", "triggers.count: 0 should be at least 1", "use a larger one"),
        ("triggers: {bytes: 0}", "triggers.bytes: 0 should be at least 1", "use a larger one"),
        ("triggers: {bytes: lots}", "triggers.bytes: 'lots' is not a size", "64KiB"),
        ("triggers: {rate_change: 0}", "triggers.rate_change: 0 is not a relative change", "above 0"),
        ("triggers: {rate_change: fast}", "triggers.rate_change: 'fast' is not a relative change", "above 0"),
        ("triggers: {memory: 1.5}", "triggers.memory: 1.5 is not a share", "above 0 and at most 1"),
        ("triggers: {memory: 0}", "triggers.memory: 0 is not a share", "above 0 and at most 1"),
        ("triggers: {custom: [ok, B-c]}", "triggers.custom[1]: name 'B-c' is not allowed", "lower-case"),
        ("triggers: {custom: night}", "triggers.custom: 'night' should be a list", "[a, b]"),
        ("triggers: {counts: 1}", "triggers.counts: unknown key", "did you mean count?"),
        ("background: 0s", "background: a duration of 0 is too short", "leave the key out"),
        ("memory: {max: 1MiB}", "memory.max: '1MiB' should be at least 4194304", "use a larger one"),
        (
            "memory: {high_water: 0.96}",
            "memory: emergency is below high_water",
            "the same, or higher",
        ),
        ("memory: {emergency: 0.5}", "memory: emergency is below high_water", "the same, or higher"),
        ("memory: {high_water: 0}", "memory.high_water: 0 is not a share", "such as 0.8"),
        ("memory: {emergency: true}", "memory.emergency: True is not a share", "such as 0.8"),
        (
            "memory: {buffer: 1GiB}",
            "memory: a part is larger than max",
            "make max larger",
        ),
        ("memory: {buffer: 1KiB}", "memory.buffer: '1KiB' should be at least 1048576", "larger"),
        (
            "memory: {requests: 1KiB}",
            "memory.requests: '1KiB' should be at least 1048576",
            "use a larger one",
        ),
        ("memory: {windows: 1KiB}", "memory.windows: '1KiB' should be at least 65536", "use a larger one"),
        ("memory: {rates: 1KiB}", "memory.rates: '1KiB' should be at least 65536", "use a larger one"),
        ("wal: {segment: 1}", "wal.segment: 1 should be at least 65536", "use a larger one"),
        ("requests: {body: 1}", "requests.body: 1 should be at least 1024", "use a larger one"),
        ("requests: {events: 0}", "requests.events: 0 should be at least 1", "use a larger one"),
        ("requests: {depth: 513}", "requests.depth: 513 should be at most 512", "use a smaller one"),
        ("requests: {field: 15}", "requests.field: 15 should be at least 16", "use a larger one"),
        ("requests: {timeout: 0s}", "requests.timeout: a duration of 0 is too short", "leave the key out"),
        ("requests: {wait: 0s}", "requests.wait: a duration of 0 is too short", "leave the key out"),
        ("requests: {connections: 0}", "requests.connections: 0 should be at least 1", "use a larger one"),
        ("acknowledge: never", "acknowledge: 'never' is not a valid acknowledge", "logged"),
        ("receipts: 0s", "receipts: a duration of 0 is too short", "leave the key out"),
        ("otlp: {logs: 'x y'}", "otlp.logs: name 'x y' is not allowed", "lower-case"),
        ("otlp: {metrics: m}", "otlp.metrics: unknown key", "keys: logs, traces"),
        (
            "objects: [in, 's3://x']",
            "objects[1]: 's3://x' does not name a folder",
            "relative to",
        ),
        ("objects: ['']", "objects[0]: '' does not name a folder", "relative to"),
        ("objects: in", "objects: 'in' should be a list", "[a, b]"),
        (f"objects: {['d'] * (MAX_FOLDERS + 1)}", "objects: a list has more than 64 items", "leave some out"),
        ("wals: {}", "wals: unknown key", "did you mean wal?"),
    ],
)
def test_mistake_about_the_gateway(written: str, message: str, hint: str) -> None:
    error = refused(written)
    assert error.where == "tidemill.yaml:4"
    assert error.message.startswith(f"gateway.{message}")
    assert hint in error.hint


@pytest.mark.parametrize(
    "lines",
    [
        ("requests: {body: 39MiB}",),  # of memory.requests, 38 MiB are given out
        ("requests: {body: 30MiB}", "memory: {buffer: 31MiB}"),
        ("requests: {body: 20MiB}", "memory: {max: 40MiB, buffer: 40MiB}"),  # it is there twice for a moment
    ],
)
def test_a_body_that_memory_never_has_room_for_is_refused(lines: tuple[str, ...]) -> None:
    error = refused(*lines)
    assert error.where == "tidemill.yaml:3"
    assert error.message.startswith("gateway: requests.body is too large")
    assert error.hint == "allow smaller bodies, or more memory"


def test_the_largest_body_that_fits() -> None:
    assert load("requests: {body: 37MiB}").requests.body == 37 * MIB
    assert load("requests: {body: 18MiB}", "memory: {max: 40MiB, buffer: 40MiB}").requests.body == 18 * MIB


def test_the_environment_sets_one_key_at_a_time() -> None:
    gateway = load(
        environ={
            "TIDEMILL__GATEWAY__WINDOW__MAX": "2s",
            "TIDEMILL__GATEWAY__TRIGGERS__COUNT": "null",
            "TIDEMILL__GATEWAY__MEMORY__HIGH_WATER": "0.7",
            "TIDEMILL__GATEWAY__PORT": "0",
            "TIDEMILL__GATEWAY__OBJECTS": "[incoming]",
        }
    )
    assert gateway.window.model_dump() == ADAPTIVE | {"max": 2 * SECOND}
    assert (gateway.triggers.count, gateway.triggers.bytes) == (None, 8 * MIB)
    assert (gateway.memory.high_water, gateway.memory.emergency) == (0.7, 0.95)
    assert (gateway.port, gateway.objects) == (0, ("incoming",))


def test_the_environment_changes_a_window_of_the_file() -> None:
    environ = {"TIDEMILL__GATEWAY__WINDOW__SIZE": "2s"}
    changed = load("window: {kind: fixed, size: 1m}", environ=environ).window
    assert changed == FixedWindow.model_validate({"kind": "fixed", "size": "2s"})
    whole = {"TIDEMILL__GATEWAY__WINDOW": "{kind: session, gap: 1s}"}
    replaced = load("window: {kind: fixed}", environ=whole).window
    assert replaced == SessionWindow.model_validate({"kind": "session", "gap": "1s"})


@pytest.mark.parametrize(
    ("variable", "value", "message", "hint"),
    [
        ("WINDOW__KIND", "hopping", "gateway.window.kind: 'hopping' is not a valid kind", KINDS),
        ("WINDOW__SIZE", "2s", "gateway.window: kind is missing", "fixed | tumbling"),
        ("WINDOW__MIN", "6s", "gateway.window: max is shorter than min", "or longer"),
        ("PORT", "http", "gateway.port: 'http' should be a whole number", "digits"),
        ("MEMORY__MAX", "1MiB", "gateway.memory.max: '1MiB' should be at least 4194304", "larger"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(
    variable: str, value: str, message: str, hint: str
) -> None:
    error = refused(environ={f"TIDEMILL__GATEWAY__{variable}": value})
    assert error.where == f"environment variable TIDEMILL__GATEWAY__{variable}"
    assert error.message == message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True),
        ("0.0.0.0", False), ("::", False), ("192.168.1.2", False), ("example.com", False),  # noqa: S104
    ],
)  # fmt: skip
def test_only_this_machine_reaches_a_loopback_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
