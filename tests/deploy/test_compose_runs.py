"""The services of the compose file, as processes: the same commands, project and variables, with the
addresses of servers of the test. What the gateway acknowledged is in a dataset of the builder.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml
from bench.s3_server import CREDENTIALS
from tests.support.bucket_server import BucketServer
from tests.support.patience import PATIENCE
from tests.support.postgres_server import PostgresServer

pytestmark = [pytest.mark.soak, pytest.mark.process]

COMPOSE = Path(__file__).parents[2] / "deploy" / "compose"
START, END = "2024-01-15T12:00:00Z", "2024-01-15T13:00:00Z"
PARTS = ("gateway", "runner", "builder")
ORDERS = [
    {"id": f"o-{n}", "at": f"2024-01-15T12:{n:02d}:00Z", "shop": "north", "amount": n + 0.25}
    for n in range(40)
]


class Deployed:
    """A project with the compose file's services, in a folder for each."""

    def __init__(self, folder: Path, bucket: BucketServer, state: PostgresServer) -> None:
        self.services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
        self.folder = folder
        self.given = {
            **CREDENTIALS,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{bucket.port}",
            "TIDEMILL_WAREHOUSE": bucket.new_url(),
            "TIDEMILL__STATE__URL": state.url,
            "TIDEMILL__STATE__SCHEMA": state.new_schema(),
            "TIDEMILL__GATEWAY__HOST": "127.0.0.1",
            "TIDEMILL__GATEWAY__PORT": "0",
            "TIDEMILL_PROJECT": str(COMPOSE),
            "TIDEMILL_OUTPUT": "json",
        }

    def environment(self, part: str) -> dict[str, str]:
        """Of a service; addresses and secrets are those of the test."""
        own = {name: value for name, value in self.services[part]["environment"].items() if "$" not in value}
        place = {"TIDEMILL__BUCKET__FOLDER": str(self.folder / part), "PYTHONPATH": os.pathsep.join(sys.path)}
        return {**os.environ, **own, **self.given, **place}

    def run(self, part: str, *words: str) -> dict[str, object]:
        """A command in a container, as `docker compose exec` runs it."""
        done = subprocess.run(
            [sys.executable, "-m", "tidemill.cli.main", *words],
            env=self.environment(part), capture_output=True, text=True, check=False, timeout=PATIENCE,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    @contextmanager
    def service(self, part: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tidemill.cli.main", *self.services[part]["command"]],
            env=self.environment(part), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield process
            process.terminate()  # as a container is stopped
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
        finally:
            process.kill()
            process.wait()


def test_the_services_of_the_compose_file_work_together(
    tmp_path: Path, bucket_server: BucketServer, postgres_server: PostgresServer
) -> None:
    deployed = Deployed(tmp_path, bucket_server, postgres_server)
    token = deployed.run("runner", "token", "create", "--scope", "admin", "--all-tenants")["token"]
    with ExitStack() as stack:
        gateway, _, builder = (stack.enter_context(deployed.service(part)) for part in PARTS)
        assert gateway.stdout is not None
        url = json.loads(gateway.stdout.readline())["url"]
        body = "\n".join(map(json.dumps, ORDERS)).encode()
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{url}/v1/streams/orders/events?start={START}&end={END}",
            data=body,
            headers={"content-type": "application/x-ndjson", "authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310
            assert answer.status == 202
        assert builder.stdout is not None
        built = json.loads(builder.stdout.readline())
    assert built["outcome"] == "built", built
    asked = f"SELECT count, sum(amount) FROM orders.sales BETWEEN {START} AND {END}"
    total = sum(float(str(one["amount"])) for one in ORDERS)  # quarters: exact
    found = deployed.run("runner", "query", asked, "--all-tenants")
    assert found["rows"] == [{"count": len(ORDERS), "sum(amount)": total}]
    assert built["rows"] == len(ORDERS), built
    assert deployed.run("runner", "verify")["ok"]
