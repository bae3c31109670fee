"""Opening the state that a Redis server keeps under a prefix, and putting a fresh one in its place.

A state is never made where a newer Tidemill or somebody else wrote; what the server may lose is said once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from tidemill.state.redis_link import OPENING, PATIENCE, Link
from tidemill.state.redis_rows import number
from tidemill.state.redis_state import RedisState

CURRENT, FRESH = "current", "fresh"

log = logging.getLogger(__name__)


def open_redis(
    url: str,
    prefix: str,
    *,
    patience: float = PATIENCE,
    sleep: Callable[[float], object] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> RedisState:
    """The state under `prefix`, made when it is not there. While the server is away, an act waits for it up
    to `patience` seconds; opening does so for a few only, since the address may be wrong."""
    link = Link(url, prefix, patience=patience, sleep=sleep, clock=clock)
    link.act(CURRENT, "open", {}, patience=OPENING)
    _warn_of_losses(link)
    return RedisState(link, CURRENT)


def redis_state_exists(url: str, prefix: str) -> bool:
    link = Link(url, prefix)
    try:
        return number(link.look(CURRENT, "exists", {}, patience=OPENING)[0]) == 1
    finally:
        link.close()


def open_fresh_redis(url: str, prefix: str) -> RedisState:
    """An empty state beside the current one, which nobody else sees; an older fresh one is deleted."""
    link = Link(url, prefix)
    link.act(FRESH, "anew", {}, patience=OPENING)
    link.sweep()
    _warn_of_losses(link)
    return RedisState(link, FRESH)


def promote_fresh_redis(url: str, prefix: str) -> None:
    """For everybody at once, the fresh state is the current one; then the old one is deleted."""
    link = Link(url, prefix)
    try:
        link.act(FRESH, "promote", {})
        link.sweep()
    finally:
        link.close()


def _warn_of_losses(link: Link) -> None:
    """An act is acknowledged when the server has done it; whether that outlives the server is its setting."""
    settings = link.settings("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
    if settings.get("appendonly", "yes") != "yes":
        log.warning(
            "the Redis server at %s keeps no append-only file: what it acknowledged is lost when it stops;"
            " set appendonly yes and appendfsync always, or run `tidemill recover` after each stop",
            link.address,
        )
    elif settings.get("appendfsync", "always") != "always":
        log.warning(
            "the Redis server at %s writes to disk with appendfsync %s: a power cut can lose the last acts"
            " it acknowledged; set appendfsync always",
            link.address,
            settings["appendfsync"],
        )
    if settings.get("maxmemory", "0") != "0" and settings["maxmemory-policy"].startswith("allkeys"):
        log.warning(
            "the Redis server at %s may throw keys of the state away when its memory is full (%s);"
            " set maxmemory-policy noeviction",
            link.address,
            settings["maxmemory-policy"],
        )
