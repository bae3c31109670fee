"""Reads a project, and makes sure that the plugins it names can be used."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final

from tidemill import eventtime
from tidemill.config import Plugins, Project, load_project
from tidemill.storage.bucket_path import warehouse_path

# Imports inside functions keep start-up short: only a project with triggers of its own needs them.

_TIME_TYPES: Final = eventtime.Registered()


def open_project(path: str | Path) -> Project:
    """The project at `path` (a `tidemill.yaml`, or its folder). ConfigError for everything that is wrong with
    it, including a parser or trigger that cannot be loaded."""
    project = load_project(Path(path), _TIME_TYPES, plugins=Plugins(_time_type, _trigger))
    return replace(project, warehouse=warehouse_path(project.warehouse))


def _time_type(name: str) -> str | None:
    return eventtime.fault_of(name) if name in _TIME_TYPES else None  # the file reports it differently


def _trigger(name: str) -> str | None:
    from tidemill.ingest.gateway.triggers import fault_of

    return fault_of(name)
