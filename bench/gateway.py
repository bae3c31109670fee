"""The cases about the gateway: how fast events are durable over HTTP, and when they are seen in a rollup.

The peer is a FastAPI handler that only appends the body to a file and syncs it. No time counts before it is
checked that everything that was acknowledged is stored, each event once.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from bench import work
from bench.load import Load, Sent
from bench.ours import PROJECT
from bench.running import OUT, Bench, Result
from tidemill.formats.stored_slice import content_bytes
from tidemill.mill import Mill

BATCH_TARGET = 0.7
SINGLE_TARGET = 0.5
CONNECTIONS = 8
BATCH = 500
WARM_POSTS = 20
PER_SECOND = 200  # events that come in while probes are looked for
STARTED = 120.0  # seconds that a server may take to answer for the first time
ROOT = Path(__file__).resolve().parent.parent


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def _server(command: Sequence[str], port: int) -> Iterator[None]:
    """A server in a process of its own, once it takes connections; ended by SIGTERM."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        try:
            until = time.monotonic() + STARTED
            while True:
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"the server did not start: {_last_words(process)}")
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    time.sleep(0.05)
            yield
        finally:
            process.terminate()
            process.wait(60)


def _last_words(process: subprocess.Popen[bytes]) -> str:
    process.kill()
    assert process.stderr is not None
    return process.stderr.read().decode(errors="replace")[-2000:]


def _post(load: Load) -> Sent:
    done = subprocess.run(
        [sys.executable, "-m", "bench.load"],
        input=json.dumps(asdict(load)), capture_output=True, text=True, cwd=ROOT, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the load was not taken:\n{done.stderr[-2000:]}")
    return Sent(**json.loads(done.stdout))


def _event(number: int, ts: int, api: str = "/v1/prices") -> str:
    """As those of the other cases, about 260 bytes."""
    return (
        f'{{"event_id":"{number:032x}","ts":{ts},"event_type":"request","tenant":"globex","api":"{api}",'
        f'"region":"eu-west","status":200,"latency_ms":{number % 997}.645,"bytes":40900,'
        f'"user_agent":"python-httpx/0.27 (mesh)","trace":"{number * 2654435761 % 2**64:016x}"}}\n'
    )


def _events(count: int) -> Path:
    path = work.WORK / f"gateway-{count}.ndjson"
    if not path.exists():
        work.WORK.mkdir(parents=True, exist_ok=True)
        start = work.START // 1000
        with path.open("w") as file:
            file.writelines(_event(number, start + number) for number in range(count))
    return path


def _load(port: int, batch: int, posts: int) -> Load:
    file = str(_events(batch * max(posts, WARM_POSTS)))
    return Load(
        "127.0.0.1",
        port,
        "/v1/streams/requests/events",
        "application/x-ndjson",
        file,
        batch,
        posts,
        CONNECTIONS,
    )


def _ours(batch: int, posts: int) -> Sent:
    folder = OUT / "gateway"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "tidemill.yaml").write_text(PROJECT)
    port = _free_port()
    command = [sys.executable, "-m", "tidemill.cli.main", "serve", "--port", str(port), "-p", str(folder)]
    with _server(command, port):
        _post(_load(port, batch, WARM_POSTS))  # the first requests find nothing warm, here and at the peer
        sent = _post(_load(port, batch, posts))
    _check_stored(folder, _load(port, batch, posts))
    return sent


def _check_stored(folder: Path, load: Load) -> None:
    """Every acknowledged event is in a slice of the ledger."""
    from bench.load import bodies

    wanted = {line for body in bodies(load) for line in body.splitlines()}
    with Mill.open(folder) as mill:
        slices = [mill.project.warehouse / entry.slice.path for entry in mill.ledger("requests")]
    for path in slices:
        wanted.difference_update(content_bytes(path).splitlines())
    if wanted:
        raise RuntimeError(f"{len(wanted)} acknowledged events are not stored")


def _theirs(batch: int, posts: int) -> Sent:
    path, port = OUT / "appended.ndjson", _free_port()
    path.unlink(missing_ok=True)
    with _server([sys.executable, "-m", "bench.peers.append_server", str(path), str(port)], port):
        before = _post(_load(port, batch, WARM_POSTS))
        sent = _post(_load(port, batch, posts))
    if path.stat().st_size != sent.bytes + before.bytes:
        raise RuntimeError("the peer did not store what it acknowledged")
    path.unlink()
    return sent


def _compared(bench: Bench, case: str, batch: int, posts: int, target: float) -> Result:
    ours: list[Sent] = []
    theirs: list[Sent] = []
    for turn in range(bench.plan.repeats):
        bench.say(f"{case}, {turn + 1} of {bench.plan.repeats}")
        ours.append(_ours(batch, posts))
        theirs.append(_theirs(batch, posts))
    mine, peer = (max(sent, key=lambda one: one.events / one.seconds) for sent in (ours, theirs))
    rate, their_rate = mine.events / mine.seconds, peer.events / peer.seconds
    note = (
        f"events/s durable; p50 {mine.at(0.5):.1f}, p99 {mine.at(0.99):.1f} ms"
        f" (peer {peer.at(0.5):.1f}, {peer.at(0.99):.1f}); {CONNECTIONS} connections"
    )
    ratio = rate / their_rate
    return Result(case, rate, their_rate, ratio, target, ratio >= target, "/s", ">=", note)


def gateway(bench: Bench) -> list[Result]:
    """Durable events per second, in batches of 500 and one by one, beside a handler that only appends."""
    plan = bench.plan
    return [
        _compared(bench, "gateway_batches", BATCH, plan.posts, BATCH_TARGET),
        _compared(bench, "gateway_single", 1, plan.single_posts, SINGLE_TARGET),
    ]


def gateway_visible(bench: Bench) -> list[Result]:
    """From the start of a post until a query of the 5s rollup has the event, with `tidemill up`."""
    folder = OUT / "gateway"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "tidemill.yaml").write_text(PROJECT)
    port = _free_port()
    command = [sys.executable, "-m", "tidemill.cli.main", "up", "--port", str(port), "-p", str(folder)]
    probes = bench.plan.probes
    with _server(command, port), _trickle(port):
        _seen(port, 10**9)  # the first one waits for what is compiled and started once
        found = []
        for number in range(probes):
            bench.say(f"probe {number + 1} of {probes}")
            found.append(_seen(port, 10**9 + 1 + number))
    found.sort()
    p99 = found[min(len(found) - 1, int(0.99 * len(found)))]
    note = f"p99 {p99:.2f} s; {PER_SECOND} events/s come in beside; {probes} probes"
    return [Result("gateway_visible", statistics.median(found), None, None, None, True, "s", "", note)]


@contextmanager
def _trickle(port: int) -> Iterator[None]:
    """Events that come in at a steady pace, from another process."""
    script = (
        "import sys,time,urllib.request\n"
        "from bench.gateway import PER_SECOND,_event,send\n"
        "began,n=time.time(),0\n"
        "while time.time()-began<600:\n"
        f"    n+=1; send({port},_event(2*10**9+n,int(time.time()*1000)))\n"
        "    time.sleep(max(0,began+n/PER_SECOND-time.time()))\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.kill()


def send(port: int, event: str) -> None:
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/streams/requests/events",
        data=event.encode(),
        headers={"Content-Type": "application/x-ndjson"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
        answer.read()


def _seen(port: int, number: int) -> float:
    api = f"/probe/{number}"
    text = f"SELECT count FROM requests.requests WHERE api = '{api}' USING ROLLUP 5s"
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/query",
        data=json.dumps({"query": text}).encode(),
        headers={"Content-Type": "application/json"},
    )
    began = time.perf_counter()
    send(port, _event(number, int(time.time() * 1000), api))
    while time.perf_counter() - began < STARTED:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - loopback
            if json.load(answer)["rows"]:
                return time.perf_counter() - began
        time.sleep(0.02)
    raise RuntimeError("the event was never seen")
