"""Tokens: hashed at rest, compared in constant time, and gone at once when they are revoked."""

from __future__ import annotations

import json
import multiprocessing
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tidemill.model.errors import AuthError, InputError, NotFoundError, StorageError
from tidemill.model.time import DAY, SECOND, parse_instant
from tidemill.server.access import LOCAL, Principal, Scope, Tokens
from tidemill.server.access import tokens as room

NOW = parse_instant("2024-01-15T14:00:00Z")


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "warehouse")


def header(text: str) -> str:
    return f"Bearer {text}"


def file_of(tmp_path: Path) -> Path:
    return tmp_path / "warehouse" / "access" / "tokens.json"


def test_who_shows_a_token_is_known_by_its_scopes_and_tenant(tokens):
    token, text = tokens.create(["ingest"], tenant="acme", name="edge", rate=500, now=NOW)
    who = tokens.authenticate(header(text), NOW)
    assert who == Principal(token.id, "acme", frozenset({Scope.INGEST}), 500)
    assert (who.may(Scope.INGEST), who.may(Scope.READ), who.may(Scope.ADMIN)) == (True, False, False)


def test_admin_includes_the_other_scopes(tokens):
    _, text = tokens.create(["admin"], tenant=None, now=NOW)
    who = tokens.authenticate(header(text), NOW)
    assert who.tenant is None
    assert all(who.may(scope) for scope in Scope)
    assert all(LOCAL.may(scope) for scope in Scope)


def test_the_text_is_its_id_and_a_secret_of_256_bits(tokens):
    token, text = tokens.create(["read"], tenant=None, now=NOW)
    word, id_, secret = text.split("_")
    assert (word, id_, len(bytes.fromhex(secret))) == ("tm", token.id, 32)


def test_a_secret_is_nowhere_on_disk_and_not_in_a_representation(tokens, tmp_path):
    token, text = tokens.create(["read"], tenant=None, now=NOW)
    secret = text.rpartition("_")[2]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"tokens.json", "tokens.lock"}
    assert all(secret not in path.read_text("utf-8") for path in files)
    assert secret not in repr(token)
    assert token.digest not in repr(token)


def test_only_its_owner_can_read_the_file(tokens, tmp_path):
    before = os.umask(0)
    try:
        tokens.create(["read"], tenant=None, now=NOW)
        tokens.create(["read"], tenant=None, now=NOW)
    finally:
        os.umask(before)
    folder = file_of(tmp_path).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {
        "tokens.json": 0o600,
        "tokens.lock": 0o600,
    }


def test_a_file_left_by_a_crash_is_in_nobodys_way(tokens, tmp_path):
    tokens.create(["read"], tenant=None, now=NOW)
    left = file_of(tmp_path).with_name(".tokens.json.00aa.tmp")
    left.write_text("half")
    tokens.create(["read"], tenant=None, now=NOW)
    assert len(tokens.list()) == 2
    assert not left.exists()


def test_a_known_and_an_unknown_id_take_the_same_path(tokens, monkeypatch):
    _, text = tokens.create(["read"], tenant=None, now=NOW)
    compared, right = [], room.hmac.compare_digest

    def compare(shown, kept):
        compared.append((len(shown), len(kept)))
        return right(shown, kept)

    monkeypatch.setattr(room.hmac, "compare_digest", compare)
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    unknown = f"tm_{'0' * 12}_{text.rpartition('_')[2]}"
    said = set()
    for shown in (wrong, unknown):
        with pytest.raises(AuthError) as raised:
            tokens.authenticate(header(shown), NOW)
        said.add((raised.value.message, raised.value.hint))
    assert len(said) == 1  # nothing tells one from the other
    tokens.authenticate(header(text), NOW)
    assert compared == [(64, 64)] * 3


def test_nobody_has_the_digest_that_unknown_ids_are_compared_with(tokens):
    tokens.create(["read"], tenant=None, now=NOW)
    with pytest.raises(AuthError):
        tokens.authenticate(header(f"tm_{'0' * 12}_{'0' * 64}"), NOW)


def malformed(text: str) -> list[str | None]:
    id_, secret = text.split("_")[1:]
    return [
        None, "", " ", "Bearer", "Bearer ", text, f"Basic {text}", f"Bearer{text}", f"Bearer  x {text}",
        f"Bearer {text} x", f"Bearer {text},{text}", f"Bearer {text}\n", f"Bearer\n{text}",
        f"Bearer {text}\0",
        f"Bearer {id_}_{secret}", f"Bearer tm_{id_}", f"Bearer tm_{id_}_", f"Bearer tm__{secret}",
        f"Bearer tm_{id_}_{secret[:-1]}", f"Bearer tm_{id_}_{secret}0", f"Bearer tm_{id_.upper()}F_{secret}",
        f"Bearer tm_{id_}_{'ü' * 64}", f"Bearer tm_{id_}_{'٣' * 64}", f"Bearer tm_{id_}_" + "\ud800" * 64,
        "Bearer tm_../../etc/pass_" + secret, "Bearer " + "tm_" * 100_000, "\0" * 2000,
    ]  # fmt: skip


@pytest.mark.parametrize("place", range(len(malformed("tm_i_s"))))
def test_a_malformed_header_is_nobodys(tokens, place):
    _, text = tokens.create(["admin"], tenant=None, now=NOW)
    with pytest.raises(AuthError) as raised:
        tokens.authenticate(malformed(text)[place], NOW)
    assert raised.value.hint
    assert text.rpartition("_")[2] not in f"{raised.value} {raised.value.hint}"


def test_the_scheme_is_read_in_any_case(tokens):
    _, text = tokens.create(["read"], tenant=None, now=NOW)
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert tokens.authenticate(f"{scheme} {text} ", NOW).may(Scope.READ)


def test_a_revoked_token_is_refused_at_once_by_all_that_are_open(tokens, tmp_path):
    token, text = tokens.create(["read"], tenant=None, now=NOW)
    other = Tokens(tmp_path / "warehouse")
    assert other.authenticate(header(text), NOW).id == token.id
    assert tokens.revoke(token.id, NOW + 5).revoked == NOW + 5
    for one in (tokens, other):
        with pytest.raises(AuthError, match=r"revoked at 2024-01-15T14:00:00\.000005Z"):
            one.authenticate(header(text), NOW + 5)
        assert not one.any_active(NOW + 5)


def test_every_change_is_seen_however_quickly_they_follow(tokens, tmp_path):
    """Also when the clock of the file system does not tick between two, and a file gets the old inode."""
    other = Tokens(tmp_path / "warehouse")
    for count in range(1, 41):
        tokens.create(["read"], tenant=None, name="x", now=NOW)
        assert len(other.list()) == count
    for token in other.list():
        tokens.revoke(token.id, NOW)
        assert next(one for one in other.list() if one.id == token.id).revoked == NOW


def test_revoking_again_keeps_the_first_time(tokens):
    token, _ = tokens.create(["read"], tenant=None, now=NOW)
    tokens.revoke(token.id, NOW + 1)
    assert tokens.revoke(token.id, NOW + 9).revoked == NOW + 1
    assert tokens.list()[0].revoked == NOW + 1


def test_an_unknown_token_cannot_be_revoked_and_the_hint_names_those_there_are(tokens, tmp_path):
    with pytest.raises(NotFoundError, match="there is no token 'x'") as raised:
        tokens.revoke("x", NOW)
    assert raised.value.hint == "there are none that work"
    assert not (tmp_path / "warehouse").exists()
    token, _ = tokens.create(["read"], tenant=None, now=NOW)
    with pytest.raises(NotFoundError) as raised:
        tokens.revoke("x", NOW)
    assert token.id in raised.value.hint


def test_a_token_expires_at_its_instant(tokens, tmp_path):
    _, text = tokens.create(["read"], tenant=None, expires=NOW + DAY, now=NOW)
    other = Tokens(tmp_path / "warehouse")
    assert other.authenticate(header(text), NOW + DAY - 1).may(Scope.READ)
    assert other.any_active(NOW + DAY - 1)
    with pytest.raises(AuthError, match="expired at 2024-01-16T14:00:00Z"):
        other.authenticate(header(text), NOW + DAY)
    assert not other.any_active(NOW + DAY)


def test_without_a_file_there_are_none(tokens, tmp_path):
    assert tokens.list() == ()
    assert not tokens.any_active(NOW)
    with pytest.raises(AuthError):
        tokens.authenticate("Bearer x", NOW)
    assert not (tmp_path / "warehouse").exists()


def test_what_was_created_is_listed_with_all_that_was_said(tokens, tmp_path):
    first, _ = tokens.create(
        ["read", "ingest"], tenant="acmé", name="a b", rate=7, expires=NOW + SECOND, now=NOW
    )
    second, _ = tokens.create(["admin"], tenant=None, now=NOW + 1)
    assert Tokens(tmp_path / "warehouse").list() == (first, second)
    assert first.scopes == {Scope.INGEST, Scope.READ}


@pytest.mark.parametrize(
    "tenant", ["", " ", " acme", "acme ", "a\nb", "a\0b", "\ud800", "x" * 257, "é" * 129]
)
def test_a_tenant_that_no_event_can_have_is_refused(tokens, tenant):
    with pytest.raises(InputError) as raised:
        tokens.create(["read"], tenant=tenant, now=NOW)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"scopes": []}, "a token needs a scope"),
        ({"scopes": ["write"]}, "there is no scope 'write'"),
        ({"rate": 0}, "a rate of 0 is not possible"),
        ({"rate": -1}, "a rate of -1 is not possible"),
        ({"name": "x" * 101}, "cannot name a token"),
        ({"name": "a\x1b[0m"}, "cannot name a token"),
        ({"expires": NOW}, "a token that has expired is of no use"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_kept(tokens, tmp_path, said, message):
    with pytest.raises(InputError, match=message) as raised:
        tokens.create(**{"scopes": ["read"], "tenant": None, "now": NOW, **said})
    assert raised.value.hint
    assert not (tmp_path / "warehouse").exists()


DAMAGE = [
    b"", b"{", b"[]", b"null", b"1", b'{"version":2,"tokens":[]}', b'{"version":1}',
    b'{"version":1,"tokens":{}}',
    b'{"version":1,"tokens":[1]}', b'{"version":1,"tokens":[{"id":"x"}]}', b"\xff\xfe", b"[" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_lets_nobody_in(tokens, tmp_path, content):
    _, text = tokens.create(["read"], tenant=None, now=NOW)
    file_of(tmp_path).write_bytes(content)
    for act in (
        lambda: tokens.authenticate(header(text), NOW),
        lambda: tokens.any_active(NOW),
        lambda: tokens.create(["read"], tenant=None, now=NOW),
    ):
        with pytest.raises(StorageError, match="damaged") as raised:
            act()
        assert "tokens.json" in raised.value.where
    assert file_of(tmp_path).read_bytes() == content


@pytest.mark.parametrize(
    ("key", "value"),
    [("sha256", "00"), ("sha256", "x" * 64), ("scopes", "read"), ("scopes", ["root"]), ("tenant", 5),
     ("created", None), ("created", "soon"), ("expires", 5), ("rate", "many"), ("id", None)],
)  # fmt: skip
def test_a_damaged_token_lets_nobody_in(tokens, tmp_path, key, value):
    tokens.create(["read"], tenant=None, now=NOW)
    document = json.loads(file_of(tmp_path).read_text())
    document["tokens"][0][key] = value
    file_of(tmp_path).write_text(json.dumps(document))
    with pytest.raises(StorageError, match="damaged"):
        tokens.any_active(NOW)


def test_at_the_limit_the_oldest_that_no_longer_works_goes(tokens, monkeypatch):
    monkeypatch.setattr(room, "MAX_TOKENS", 3)
    made = [tokens.create(["read"], tenant=None, now=NOW)[0] for _ in range(3)]
    with pytest.raises(InputError, match="there are 3 tokens that work"):
        tokens.create(["read"], tenant=None, now=NOW)
    tokens.revoke(made[1].id, NOW)
    new, _ = tokens.create(["read"], tenant=None, now=NOW)
    assert [token.id for token in tokens.list()] == [made[0].id, made[2].id, new.id]


def _create_some(warehouse: str, tenant: str) -> list[str]:
    tokens = Tokens(Path(warehouse))
    return [tokens.create(["ingest"], tenant=tenant, now=NOW)[1] for _ in range(20)]


def test_processes_that_create_at_the_same_time_lose_nothing(tmp_path):
    warehouse = tmp_path / "warehouse"
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        made = pool.starmap(_create_some, [(str(warehouse), "acme"), (str(warehouse), "globex")])
    tokens = Tokens(warehouse)
    for texts, tenant in zip(made, ("acme", "globex"), strict=True):
        assert {tokens.authenticate(header(text), NOW).tenant for text in texts} == {tenant}
    assert len(tokens.list()) == 40


def test_threads_share_one(tokens):
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: tokens.create(["read"], tenant=None, now=NOW)[1], range(20)))
        ids = list(pool.map(lambda text: tokens.authenticate(header(text), NOW).id, texts))
    assert len(set(ids)) == len(tokens.list()) == 20
