"""The case about a warehouse in a bucket: the whole job there, beside the same on the local disk.

The server is a real one on loopback (`s3_server`); without its program the case is skipped. No time counts
before the results were checked.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bench import s3_server, work
from bench.ours import Warehouse
from bench.running import OUT, Bench, Result, Skipped, within

TIMES = 1.6  # of the local disk, at most


def bucket(bench: Bench) -> list[Result]:
    """Seconds of the whole job, in turn in a bucket and on the local disk; the best of each counts."""
    server = s3_server.program()
    if server is None:
        raise Skipped(f"no S3 server: `make interop` builds one, or name it by {s3_server.VARIABLE}")
    assert bench.ours is not None
    objects, session = OUT / "objects", bench.ours.session()
    shutil.rmtree(objects, ignore_errors=True)
    local: list[float] = []
    remote: list[float] = []
    with (
        s3_server.running(server, objects) as running,
        s3_server.environment(running.environment),
    ):
        workers = session.sparkContext.environment  # the variables of its Python workers
        workers.update(running.environment)
        try:
            for turn in range(bench.plan.repeats + 1):
                took = [_load(bench, f"disk-{turn}", None), _load(bench, f"bucket-{turn}", f"shop{turn}")]
                local.append(took[0])
                remote.append(took[1])
        finally:
            for name in running.environment:
                workers.pop(name, None)
    kept = slice(1, None)  # new workers compile and import in the first turn
    stored = sum(path.stat().st_size for path in objects.rglob("*") if path.is_file()) / 1e6
    note = f"{bench.plan.events:,} events, S3 on loopback; {stored:.0f} MB of objects in all turns"
    return [within("bucket", min(remote[kept]), min(local[kept]), TIMES, "s", note)]


def _load(bench: Bench, name: str, prefix: str | None) -> float:
    """Seconds of the whole job, in a folder or under a prefix of the bucket."""
    assert bench.ours is not None
    folder: Path = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    whole = work.batch(bench.plan.events)
    settings = "" if prefix is None else f"warehouse: s3://{s3_server.BUCKET}/{prefix}\n"
    store = Warehouse(folder, bench.ours.session(), settings)
    took = store.load(whole.slices)
    bench.check(f"tidemill ({name})", "whole job", store.outputs(), whole.truth)
    store.close()
    bench.say(f"{name}: {took:.2f} s")
    return took
