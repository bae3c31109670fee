"""Sealed texts: only the warehouse can read them, only their tenant can hand them back, and unchanged."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.model.errors import InputError
from tidemill.server.access.cursor_encryption import Seals

TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=200)


@pytest.fixture(scope="module")
def seals(tmp_path_factory: pytest.TempPathFactory) -> Seals:
    return Seals(tmp_path_factory.mktemp("warehouse"))


@given(text=TEXTS, tenant=TEXTS)
def test_what_was_sealed_is_opened_by_its_tenant_only(seals: Seals, text: str, tenant: str) -> None:
    sealed = seals.seal(text, tenant)
    assert seals.open(sealed, tenant) == text
    with pytest.raises(InputError):
        seals.open(sealed, tenant + "x")


@given(text=TEXTS, place=st.integers(0, 1000), bit=st.integers(0, 7))
def test_a_single_changed_bit_is_refused(seals: Seals, text: str, place: int, bit: int) -> None:
    sealed = seals.seal(text, "acme")
    whole = bytearray(base64.urlsafe_b64decode(sealed + "=" * (-len(sealed) % 4)))
    whole[place % len(whole)] ^= 1 << bit
    with pytest.raises(InputError):
        seals.open(base64.urlsafe_b64encode(bytes(whole)).decode().rstrip("="), "acme")


@pytest.mark.parametrize("text", ["", "0", "17", "AAAA", "é", "=" * 40, "A" * 22, "A" * 1000])
def test_what_was_never_sealed_is_refused(seals: Seals, text: str) -> None:
    with pytest.raises(InputError) as error:
        seals.open(text, "acme")
    assert "leave it out" in error.value.hint


def test_how_large_a_number_is_does_not_show(seals: Seals) -> None:
    assert len({len(seals.seal(str(10**digits), "acme")) for digits in range(19)}) == 1


def test_another_server_of_the_warehouse_has_the_same_key_and_nobody_else_reads_it(tmp_path: Path) -> None:
    sealed = Seals(tmp_path).seal("17", "acme")
    assert Seals(tmp_path).open(sealed, "acme") == "17"
    (key,) = tmp_path.rglob("seal.key")
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)
    elsewhere = Seals(tmp_path / "another")
    with pytest.raises(InputError):
        elsewhere.open(sealed, "acme")


def test_a_key_that_was_cut_short_is_made_anew(tmp_path: Path) -> None:
    Seals(tmp_path).seal("17", "acme")
    (key,) = tmp_path.rglob("seal.key")
    key.write_bytes(b"short")
    seals = Seals(tmp_path)
    assert seals.open(seals.seal("17", "acme"), "acme") == "17"
