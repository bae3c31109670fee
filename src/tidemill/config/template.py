"""The `tidemill.yaml` that `tidemill init` writes: a whole, commented stream of web requests.

It must load as it is; a test proves it, and that what its comments call a default is one.
"""

from __future__ import annotations

from typing import Final

TEMPLATE: Final = """\
# A Tidemill project. Durations: 250ms, 5s, 1m, 2h30m, 1d, 1w or ISO 8601 (PT1H). Sizes: 64KiB, 32MiB, 1GB.
# Any setting can come from the environment: TIDEMILL__ENGINE__CORES=2,
# TIDEMILL__STREAMS__REQUESTS__SKEW__FUTURE=1h; values are YAML.
version: 1

# The folder that holds everything, relative to this file. Or set TIDEMILL_WAREHOUSE.
warehouse: warehouse

engine:
  cores: auto          # how many Spark may use; auto is all of them
  memory: 1g           # heap of the JVM; the Python workers come on top
  # batch_bytes: 1GiB  # how many bytes of slices are accepted in one batch
  # chunk_bytes: 32MiB # how much of a slice is read at once
  # inline_bytes: 64MiB # work on less is done without Spark; 0 does everything on Spark
  # compaction_memory: 256MiB # that compactions of chains may take at once
  # keep_replaced: 1h  # how long parts that were replaced stay, for those still reading them
  # flush_on_stop: true  # a graceful stop lets streaming windows that are open come out as they are

# limits:
#   record_bytes: 1MiB # a longer record is rejected as too_large
#   depth: 64          # a record that is nested deeper is rejected as malformed

# builder:             # of datasets; `tidemill build` starts more of them in other processes
#   concurrency: 2     # windows that are built at once; 0 leaves it to the others
#   attempts: 5        # then a window is set aside as failed, until `tidemill retry`
#   retry_delay: 1s    # after the first failure; doubles with each
#   max_retry_delay: 5m
#   lease: 1m          # how long a builder that fell silent keeps a window

# state: {kind: sqlite}  # the file state.db in the warehouse

# Who hears of each dataset: a file, a webhook ({kind: webhook, url: "https://…", secret_env: NAME}) or a
# Redis stream ({kind: redis, url: "redis://…"}). `tidemill events` shows them without a sink.
# events:
#   sinks:
#     log: {kind: file, path: events.ndjson}

# How events come in over HTTP. Beyond loopback it asks for tokens (`tidemill token create`).
# gateway:
#   host: 127.0.0.1
#   port: 8470           # 0 takes one that is free
#   window: {kind: adaptive, min: 10ms, max: 5s, target: 100}  # as long as it takes 100 events to come
#   # Or {kind: fixed, size: 1s}, which is tumbling; {kind: sliding, size: 5s, step: 1s};
#   # {kind: session, gap: 500ms, max: 5s}.
#   triggers:            # what closes a window before its time; null: this one never does
#     count: 50000       # events
#     bytes: 8MiB
#     rate_change: 0.5   # of the mean of the last 5 rates against the 10 before
#     memory: 0.8        # share of it in use, from which the largest windows go
#     custom: []         # names of entry points of the group tidemill.triggers
#   background: 100ms    # how often open windows are looked at
#   memory:
#     max: 100MiB        # in all; and for each part:
#     buffer: 50MiB      # events until their slice has landed
#     requests: 40MiB    # bodies while they are read
#     windows: 5MiB      # what is known of closed windows
#     rates: 1MiB        # what is remembered of arrivals
#     high_water: 0.8    # share of any of them, beyond which senders are told to wait
#     emergency: 0.95    # and beyond which nothing is taken
#   wal:
#     segment: 16MiB     # of the log that makes events durable; then a new file is begun
#   requests:            # a larger one is refused as a whole
#     body: 16MiB        # also once it is decompressed
#     events: 10000
#     depth: 64
#     field: 1MiB        # of one text in an event
#     timeout: 30s       # between two pieces of a body
#     wait: 30s          # the longest that a request waits for outcomes
#     connections: 1000  # at once
#   receipts: 1d         # how long the outcome of a request can be asked for
#   otlp: {logs: logs, traces: traces}  # the streams that they go to
#   objects: []          # folders whose files may be registered as slices

streams:
  requests:
    description: Web requests of the tenants acme, globex and initech
    keywords: [web, latency]
    source_links:
      - {href: "https://example.com/gateway", title: The gateway that sends them}

    # auto goes by the name of the file: ndjson, json, csv, parquet, arrow; also .gz and .zst
    format: auto
    # csv: {delimiter: ",", header: true}
    # Where the records of a JSON array are arrays themselves, the names of their values:
    # json: {columns: [event_id, event_type, ts, tenant, api]}  # and path: data, where an object is around it

    # Folders of responses that a collector fills: what their manifests say is complete is landed, once.
    # manifests: ["data/raw/*/manifest.json"]

    # Types: string, integer (64-bit), decimal (with a scale), float, boolean, object, array, any.
    # A record with a wrong type or without a required column is rejected; other columns are kept as
    # they are. A dot leads into an object: `resource.service: string`.
    schema:
      event_id: {type: string, required: true}
      event_type: {type: string, required: true}
      ts: {type: integer, required: true}
      tenant: {type: string, required: true}
      api: string
      region: string
      status: integer
      latency_ms: {type: decimal, scale: 3}
      # bytes: integer
      # session: string
      # step: string
      # messages: array

    # Only these types of events are accepted.
    event_type: {column: event_type, allowed: [request]}

    # When it happened. Types: unixtimestamp_s, _ms, _us, _ns, iso8601 (with `timezone` for times that do
    # not say their offset from UTC, which are refused otherwise). An event is late when it is
    # at or before the watermark: the least, over its sources, of the newest time less late_tolerance.
    event_time:
      column: ts
      type: unixtimestamp_ms
      late_tolerance: 2s
      # mode: event              # processing uses the arrival instead
      # enabled: true            # false does the same, and leaves the rest as it is
      # idle_timeout: 5m         # a source silent for so long holds nothing back; by default it always does
      # max_buffer_bytes: 256MiB # of rows that wait to be put in order; beyond it they go on early

    # Records that hold several messages of declared streams: the first one whose stream has an event time
    # tells the record's.
    # messages: {column: messages, stream: stream, body: data}

    # What makes it one event: a column or a list of columns. The same identity with the same content
    # is a duplicate, with other content a conflict. `gate: none` accepts every record.
    identity: event_id
    gate: event_id

    # Whose event it is: a column, or {value: acme} for all of them.
    tenant: {column: tenant}

    # How far event time may lie from the arrival. By default a hundred years back, so that the zero time
    # of a program is no event, and 1d ahead, since a time far ahead would make all that follows late.
    skew: {past: 400d, future: 5m}

    # Kept at 5s, 1m, 1h, 1d and 7d. Dimensions are strings, integers or booleans; measures and values
    # are integers or decimals, whose sums are exact. Kinds: counter, gauge, histogram, state, ratio.
    metrics:
      requests: {kind: counter, dimensions: [api, region, status], measures: [latency_ms]}
      # failures: {kind: counter, dimensions: [api, region], filter: status >= 500}
      # newest: {kind: gauge, value: latency_ms, policy: last, dimensions: [region]}  # avg, min, max, first
      # latency: {kind: histogram, value: latency_ms, accuracy: 0.01}
      # sizes: {kind: histogram, value: bytes, bounds: [1000, 50000], dimensions: [api], max_cardinality: 500}
      # checkouts:                  # the state of each object, and how often it went from which to which
      #   kind: state
      #   object: session
      #   state: step
      #   dimensions: [region]
      #   transitions:              # those with a name; from: last (the default), any, or a list of states
      #     paid: {from: [cart, address], to: [paid], until: [paid, left]}
      # failure_rate: {kind: ratio, numerator: failures, denominator: requests}
      # paid_after_cart:
      #   kind: ratio
      #   numerator: {metric: checkouts, transition: paid, from: [cart], to: [paid]}
      #   denominator: [{metric: checkouts, to: [cart]}]

    # Paths into the payload that a search can name in WHERE; they need not be in the schema, and lead
    # through arrays as well.
    # indexed: [api, region, status, tags, user.plan]

    # Windows that become datasets: one Arrow file for each hour, built once slices cover all of it (declare
    # what they cover: `tidemill ingest --start T --end T`) and the time for changes is over.
    # aggregation_span: 1h
    # subject_to_change_window: 6h    # how long after its end a window waits for slices; 0s by default
    # gap_tolerance: 1s               # between what slices cover, and at the edges of the window
    # coverage: observed              # beside bounds: rows without a hole; or watermark, or only declared
    # allow_incomplete_windows: false # true builds at once, and again with every change
    # max_slice_windows: 10000        # that the bounds of one slice may span without being asked about
    # late_slices: discard            # or {policy: reemit, max_lateness: 7d}: a new revision for each

    # Streaming windows: each has a table of results. Kinds: tumbling {size}, sliding {size, step: 1m or row},
    # session {gap}, count {n}, state {open, emit}; the last three may have a key. Aggregates: count, sum,
    # avg, min, max, first, last, stddev and percentiles (p50, p99.9).
    # windows:
    #   by_region:
    #     kind: sliding
    #     size: 5m
    #     step: 1m
    #     group_by: [region]
    #     aggregates: {requests: count, slow: p99.9(latency_ms), total: sum(latency_ms)}
    #     close: watermark          # or complete: once the datasets that it lies in are built
    #     late: discard             # or next_window, or {policy: reemit, max_lateness: 1h}
    #     having: requests > 100    # results that do not meet it do not come out
    #   around:
    #     kind: sliding
    #     size: 1m
    #     step: row                 # one for each row
    #     lookahead: 10s
    #   visits:
    #     kind: session
    #     gap: 30m
    #     key: [api]
    #   outages:
    #     kind: state
    #     open: status >= 500
    #     emit: status < 400
    #     emit_on_open: true        # false: the row that opens one is never its last
    #     key: [api, region]

    # How long what is kept is kept; without a limit, for ever.
    # retention:
    #   raw: 400d
    #   index: 90d
    #   quarantine: 30d
    #   datasets: 400d
    #   rollups: {5s: 7d, 1m: 90d}
    #   sealed: merge        # events of a time that raw is gone for; or refuse

    # What queries do unless they say otherwise: whose days, weeks and months intervals are.
    # query:
    #   timezone: Europe/Paris
    #   week_start: monday
    #   edges: include

    # The rows of many small slices become one large part, the oldest slices first; no row is changed.
    # pack:
    #   enabled: true        # by `tidemill run`; `tidemill pack` does it in any case
    #   slices: 64           # so many are packed at once,
    #   bytes: 128MiB        # or fewer, when their parts have so many bytes
    #   partial: 5s          # until it looks again, while some wait for more of them
    #   idle: 30s            # … and when none do
    #   retry_delay: 5s      # until a slice that can not be read is tried again; doubles with each try
    #   max_retry_delay: 10m

    # How the gateway gathers the events of this stream; what is left out is as under `gateway` above.
    # gateway:
    #   window: {kind: fixed, size: 1s}
    #   triggers: {count: 1000, bytes: 1MiB, rate_change: null, memory: 0.8, custom: []}
    #   memory: {buffer: 10MiB}  # of the memory for events; by default as much as all streams together

  # A stream of deltas: each record changes one vector. What its columns are follows from its kind:
  # delta_id, vector_id, op (replace, set, add, scale, offset, delete), values, and indices where only some
  # components are meant. `tidemill vector STREAM ID --at T` says what a vector was.
  # embeddings:
  #   kind: delta
  #   vector: {dimension: 384, id: vector_id, op: op, values: values, indices: indices, overflow: warn}
  #   event_time: {column: ts, type: iso8601}
  #   compaction:
  #     strategy: tiered_merge  # or full_merge, time_boundary (with an interval, such as 1h), adaptive
  #     keep_recent: 10         # deltas of a vector that stay as they are
  #     delta_threshold: 100    # pending deltas of a vector, from which its chain is compacted
  #     time_threshold: 1m      # age of the oldest of them, likewise
  #     max_chain_length: 1000  # a chain is never left longer
  #     background: true        # false leaves it to `tidemill compact`
  #     memory: null            # bytes that it may take at once; null: engine.compaction_memory
"""
