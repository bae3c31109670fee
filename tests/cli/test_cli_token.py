"""`tidemill token`: create, list and revoke; a secret is shown once and is nowhere else."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from tidemill.model.errors import AuthError
from tidemill.model.time import DAY, parse_instant
from tidemill.server.access import Scope, Tokens


def now() -> int:
    return time.time_ns() // 1000


def test_a_created_token_lets_in_who_shows_it(cli, project):
    done = cli("token", "create", "--scope", "ingest", "--scope", "read", "--tenant", "acme",
               "--name", "edge", "--rate", "50", "--expires", "90d")  # fmt: skip
    assert done.code == 0
    first, text = done.out.splitlines()
    who = Tokens(project / "warehouse").authenticate(f"Bearer {text}", now())
    assert (who.tenant, who.scopes, who.rate) == ("acme", {Scope.INGEST, Scope.READ}, 50)
    assert first.startswith(f"created {who.id}: ingest and read for tenant acme, 50 events a second, until 2")
    assert "it is not shown again" in done.err


def test_the_json_of_a_created_token_has_it_this_once(cli, project):
    made = cli("token", "create", "--scope", "admin", "--all-tenants", "--output", "json").json
    assert list(made) == [
        "token", "id", "name", "scopes", "tenant", "rate", "created", "expires", "revoked", "state",
    ]  # fmt: skip
    assert made["token"].startswith(f"tm_{made['id']}_")
    assert (made["scopes"], made["tenant"], made["state"]) == (["admin"], None, "active")
    del made["token"]
    listed = cli("token", "list", "--output", "json")
    assert listed.json == {"tokens": [made]}


def test_a_list_tells_neither_secrets_nor_hashes(cli, project):
    text = cli(
        "token", "create", "--scope", "read", "--tenant", "acme", "--name", "[bold]x"
    ).out.splitlines()[1]
    [token] = Tokens(project / "warehouse").list()
    for shown in (cli("token", "list").out, cli("token", "list", "--output", "json").out):
        assert token.id in shown
        assert "[bold]x" in shown
        assert text.rpartition("_")[2] not in shown
        assert token.digest not in shown


def test_expiry_is_counted_from_now(cli, project):
    before = now()
    made = cli(
        "token", "create", "--scope", "read", "--all-tenants", "--expires", "2d", "--output", "json"
    ).json
    assert before + 2 * DAY <= parse_instant(made["expires"]) <= now() + 2 * DAY


def test_a_revoked_token_works_no_more_and_stays_in_the_list(cli, project):
    made = cli("token", "create", "--scope", "read", "--all-tenants", "--output", "json").json
    tokens = Tokens(project / "warehouse")
    tokens.authenticate(f"Bearer {made['token']}", now())
    assert cli("token", "revoke", made["id"]).out == f"revoked {made['id']}: read for all tenants\n"
    with pytest.raises(AuthError, match="revoked"):
        tokens.authenticate(f"Bearer {made['token']}", now())
    [row] = cli("token", "list", "--output", "json").json["tokens"]
    assert (row["id"], row["state"]) == (made["id"], "revoked")
    assert cli("token", "revoke", made["id"], "--output", "json").json["revoked"] == row["revoked"]


@pytest.mark.parametrize(
    ("said", "message", "hint"),
    [
        (["--scope", "read"], "for one tenant or for all", "--all-tenants"),
        (
            ["--scope", "read", "--tenant", "a", "--all-tenants"],
            "for one tenant or for all",
            "--tenant NAME",
        ),
        (["--all-tenants"], "a token needs a scope", "ingest, read, admin"),
        (["--scope", "read", "--tenant", " "], "cannot name a tenant", "printable"),
        (["--scope", "read", "--all-tenants", "--rate", "0"], "a rate of 0", "from 1"),
        (["--scope", "read", "--all-tenants", "--expires", "soon"], "'soon' is not a duration", "1d"),
        (["--scope", "read", "--all-tenants", "--expires", "0s"], "expired is of no use", "90d"),
        (["--scope", "read", "--all-tenants", "--expires", "999999999999w"], "cannot last so long", "90d"),
    ],
)
def test_what_makes_no_sense_is_told_and_nothing_is_created(cli, project, said, message, hint):
    done = cli("token", "create", *said, "--output", "json")
    assert done.code == 2
    assert message in done.error["message"]
    assert hint in done.error["hint"]
    assert not (project / "warehouse" / "access").exists()


def test_a_scope_that_there_is_not_is_wrong_usage(cli, project):
    done = cli("token", "create", "--scope", "write", "--all-tenants")
    assert done.code == 2
    assert all(scope in done.err for scope in Scope)


def test_a_token_that_there_is_not_cannot_be_revoked(cli, project):
    done = cli("token", "revoke", "x", "--output", "json")
    assert (done.code, done.error["code"]) == (2, "not_found")


def test_an_empty_list_says_what_that_means(cli, project):
    done = cli("token", "list")
    assert (done.code, done.out) == (0, "no tokens\n")
    assert "open to this machine" in done.err
    assert cli("token", "list", "--output", "json").json == {"tokens": []}


def test_tokens_need_neither_state_nor_spark(cli, project):
    script = (
        "import sys\nfrom tidemill.cli.main import main\n"
        "try: main(['token', 'create', '--scope', 'read', '--all-tenants'])\n"
        "except SystemExit as left: assert not left.code\n"
        "heavy = {'pyspark', 'numba', 'duckdb', 'deltalake', 'tidemill.mill'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=project, check=True, capture_output=True)
    assert [path.name for path in (project / "warehouse").iterdir()] == ["access"]
