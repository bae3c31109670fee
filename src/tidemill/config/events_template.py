"""The `tidemill.yaml` that `tidemill up` writes where there is none: events, logs and traces over HTTP.

It must load as it is, and take what the gateway makes of OTLP; tests prove both.
"""

from __future__ import annotations

from typing import Final

EVENTS_TEMPLATE: Final = """\
# A Tidemill project that takes events over HTTP. Durations: 250ms, 5s, 1m, 2h30m, 1d, 1w. Any setting can
# come from the environment: TIDEMILL__GATEWAY__PORT=9000; values are YAML.
version: 1

# The folder that holds everything, relative to this file. Or set TIDEMILL_WAREHOUSE.
warehouse: warehouse

# Where it listens. Beyond this machine it does only once there is a token: `tidemill token create`.
gateway:
  host: 127.0.0.1
  port: 8470
  otlp: {logs: logs, traces: traces}  # the streams that OpenTelemetry's logs and spans go to

streams:
  # POST /v1/streams/events/events: {"event_id": "o-1", "ts": "2024-01-15T14:23:45Z", "event_type":
  # "order.placed", "tenant": "acme", "resource": {"service": "shop"}, "attributes": {"items": 3}}
  events:
    description: Events of all kinds
    # Other members are kept as they are. A dot leads into an object.
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      event_type: {type: string, required: true}
      tenant: {type: string, required: true}
      resource: object
      resource.service: string
      attributes: object
      outcome: any
    # Only these types would be accepted:
    # event_type: {column: event_type, allowed: [order.placed, order.paid]}
    event_time: {column: ts, type: iso8601, late_tolerance: 1m, idle_timeout: 5m}
    identity: event_id
    tenant: {column: tenant}
    skew: {future: 1h}
    metrics:
      events: {kind: counter, dimensions: [event_type, resource.service]}
    # What a search can name in WHERE; FILTER reads all of an event.
    indexed: [event_type, resource.service, outcome]
    # retention: {raw: 400d, index: 90d, quarantine: 30d, rollups: {5s: 7d, 1m: 90d}}

  # POST /v1/otlp/v1/logs, as an OpenTelemetry exporter sends them.
  logs:
    description: Logs by OpenTelemetry
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      event_type: {type: string, required: true}
      tenant: {type: string, required: true}
      severity: string
      severity_number: integer
      body: any
      trace_id: string
      span_id: string
      resource: object
      resource.service: string
      attributes: object
    event_time: {column: ts, type: iso8601, late_tolerance: 1m, idle_timeout: 5m}
    identity: event_id
    tenant: {column: tenant}
    skew: {future: 1h}
    metrics:
      logs: {kind: counter, dimensions: [resource.service, severity]}
    indexed: [event_type, resource.service, severity, trace_id]

  # POST /v1/otlp/v1/traces. An event is a span, and its time is when it began.
  traces:
    description: Spans by OpenTelemetry
    schema:
      event_id: {type: string, required: true}
      ts: {type: string, required: true}
      event_type: {type: string, required: true}
      tenant: {type: string, required: true}
      name: string
      kind: string
      outcome: string
      duration_ns: integer
      trace_id: string
      span_id: string
      parent_span_id: string
      resource: object
      resource.service: string
      attributes: object
    event_time: {column: ts, type: iso8601, late_tolerance: 1m, idle_timeout: 5m}
    identity: event_id
    tenant: {column: tenant}
    skew: {future: 1h}
    metrics:
      traces: {kind: counter, dimensions: [resource.service, kind, outcome], measures: [duration_ns]}
      duration: {kind: histogram, value: duration_ns, dimensions: [resource.service], accuracy: 0.01}
    indexed: [name, resource.service, kind, outcome, trace_id, parent_span_id]
"""
