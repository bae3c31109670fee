"""A project to read from: a stream of one tenant and one that several share, with datasets of each hour."""

from __future__ import annotations

PROJECT = """
version: 1
engine: {cores: 2, memory: 1g}
gateway:
  window: {kind: adaptive, min: 1ms, max: 20ms, target: 100}
  %(gateway)s
streams:
  requests:
    schema: &fields
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      api: string
      status: integer
      latency_ms: {type: decimal, scale: 3}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: acme}
    aggregation_span: 1h
    allow_incomplete_windows: true
    metrics: &metrics
      hits: {kind: counter, dimensions: [api], measures: [latency_ms]}
    indexed: [api]
  shared:
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      tenant: {type: string, required: true}
      api: string
      status: integer
      latency_ms: {type: decimal, scale: 3}
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {column: tenant}
    aggregation_span: 1h
    allow_incomplete_windows: true
    metrics: *metrics
    indexed: [api]
  theirs:
    schema: *fields
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: globex}
    aggregation_span: 1h
    allow_incomplete_windows: true
    metrics: *metrics
    indexed: [api]
  bare:
    schema: *fields
    event_time: {column: ts, type: iso8601}
    identity: [event_id]
    tenant: {value: acme}
"""
HOUR = "2026-01-05T10:00:00Z"
BEFORE = "2026-01-05T09:00:00Z"
