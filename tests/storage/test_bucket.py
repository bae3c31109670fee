"""A warehouse in a bucket, on a real S3 server: its objects, its logs, its copies, and whose state it has."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.s3_server import CREDENTIALS
from tests.support.bucket_server import FAULTS, BrokenNetwork, BucketServer, Network
from tests.support.patience import PATIENCE

from tidemill.config import load_project
from tidemill.config.project import StateStore
from tidemill.eventtime import registered
from tidemill.ingest.gateway.gateway_registry import GatewayLog
from tidemill.model.errors import ConfigError, ConflictError, LeaseLostError, StorageError
from tidemill.model.names import bucket_folder
from tidemill.model.time import MINUTE
from tidemill.storage import bucket as client
from tidemill.storage import bucket_path, layout, state_owner
from tidemill.storage.bucket import Bucket, BucketError
from tidemill.storage.bucket_path import (
    BucketPath,
    LocalCopies,
    append_to_log,
    current_log,
    forget_copy,
    local_copy,
    look_again,
    on_disk,
    rewrite_log,
    size_of,
    warehouse_path,
)
from tidemill.storage.files import append, atomic_write, place, remove_tree, storage_errors
from tidemill.storage.state import opening
from tidemill.storage.state.sqlite import open_state

HOUR = 60 * MINUTE
SECRET = CREDENTIALS["AWS_SECRET_ACCESS_KEY"]


def machine(folder: Path, url: str) -> BucketPath:
    """The warehouse as one machine has it, whose disk is `folder`."""
    found = warehouse_path(folder / bucket_folder(url))
    assert isinstance(found, BucketPath)
    on_disk(found).mkdir(parents=True)
    return found


@pytest.fixture
def bucket_url(bucket_server: BucketServer) -> str:
    return bucket_server.new_url()


@pytest.fixture
def here(tmp_path: Path, bucket_url: str) -> BucketPath:
    return machine(tmp_path / "here", bucket_url)


@pytest.fixture
def there(tmp_path: Path, bucket_url: str) -> BucketPath:
    """The same warehouse on another machine."""
    return machine(tmp_path / "there", bucket_url)


def write(path: BucketPath, content: bytes) -> BucketPath:
    on_disk(path.parent).mkdir(parents=True, exist_ok=True)
    atomic_write(path, content)
    return path


# -- objects


def test_what_is_written_is_an_object_and_other_machines_read_it(
    here: BucketPath, there: BucketPath, bucket_url: str
) -> None:
    path = write(here / "raw" / "s" / "part.parquet", b"rows")
    assert path.as_uri() == f"{bucket_url}/raw/s/part.parquet"
    assert Bucket(bucket_url).read("raw/s/part.parquet") == b"rows"
    other = there / "raw" / "s" / "part.parquet"
    assert (other.exists(), other.is_file(), other.is_dir()) == (True, True, False)
    assert (other.read_bytes(), other.read_text(), other.stat().st_size) == (b"rows", "rows", 4)
    assert not on_disk(other).exists()  # small reads leave no copy
    with other.open("rb") as file:
        assert file.read() == b"rows"
    assert on_disk(other).read_bytes() == b"rows"
    assert local_copy(str(other)) == on_disk(other)
    assert size_of(other) == 4


def test_listing_and_globbing_find_objects_of_all_machines(here: BucketPath, there: BucketPath) -> None:
    for name in ("a/1.x", "a/2.x", "a/2.y", "b/c/3.x"):
        write(here / "raw" / name, b"1")
    top = there / "raw"
    assert [path.name for path in top.iterdir()] == ["a", "b"]
    assert [path.relative_to(top).as_posix() for path in top.glob("*/*.x")] == ["a/1.x", "a/2.x"]
    assert [path.name for path in top.rglob("*.x")] == ["1.x", "2.x", "3.x"]
    assert [path.name for path in (top / "a").glob("2.*")] == ["2.x", "2.y"]
    assert all(isinstance(path, BucketPath) for path in top.rglob("*"))
    assert not (there / "ra").is_dir()  # no prefix of a name is a folder
    with pytest.raises(FileNotFoundError):
        list((top / "none").iterdir())
    with pytest.raises(FileNotFoundError, match="there is no such object"):
        (top / "a" / "none").read_bytes()
    with pytest.raises(FileNotFoundError):
        (top / "a" / "none").stat()


def test_what_belongs_to_a_machine_is_never_in_the_bucket(here: BucketPath, bucket_url: str) -> None:
    local = (
        layout.state(here),
        layout.tick_lock(here),
        layout.gateway_logs(here) / "0123456789ab" / "00000001.wal",
        layout.landing_notes(here) / "1.note",
        layout.staging(here / "raw" / "s") / "1" / "part.parquet",
        here / "raw" / ".part.tmp",
    )
    for path in local:
        assert path.is_local
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
        assert path.read_bytes() == on_disk(path).read_bytes() == b"1"
    assert list(Bucket(bucket_url).objects("")) == []
    assert not (here / "_damaged" / "wal" / "x.1").is_local  # what was set aside is kept


def test_replacing_makes_an_object_and_moves_one(here: BucketPath, there: BucketPath) -> None:
    draft = layout.staging(here / "raw") / "part"
    draft.parent.mkdir(parents=True)
    draft.write_bytes(b"rows")
    target = here / "raw" / "part"
    draft.replace(target)
    assert not draft.exists()
    assert on_disk(target).read_bytes() == b"rows"  # what was written here need not be fetched
    target.rename(here / "_damaged" / "part")
    assert not (there / "raw" / "part").exists()
    assert (there / "_damaged" / "part").read_bytes() == b"rows"


def test_a_name_is_given_once(here: BucketPath, there: BucketPath) -> None:
    for warehouse in (here, there):
        (warehouse / ".draft").write_bytes(warehouse.parent.name.encode())
    (here / "datasets" / "r1.arrow").hardlink_to(here / ".draft")
    with pytest.raises(FileExistsError):
        (there / "datasets" / "r1.arrow").hardlink_to(there / ".draft")
    assert (there / "datasets" / "r1.arrow").read_bytes() == b"here"


def test_a_put_whose_response_was_lost_is_recognised_by_its_content(bucket_url: str) -> None:
    bucket = Bucket(bucket_url)
    assert bucket.put_new("a", b"mine")
    assert bucket.put_new("a", b"mine")  # the client tries again, and finds its own object
    assert not bucket.put_new("a", b"othr")
    assert bucket.read("a") == b"mine"


@pytest.mark.parametrize("kind", FAULTS)
def test_every_act_is_done_once_on_a_bad_network(
    bucket_server: BucketServer, bucket_url: str, tmp_path: Path, kind: str
) -> None:
    """Of each two requests one is broken; what an act returns and what is there is as without."""
    network = BrokenNetwork(bucket_server, every=2, kinds=[kind], slow=0.01)
    with network.running():
        bucket = Bucket(bucket_url)
        for name in "abc":
            bucket.put(f"x/{name}", name.encode() * 1000)
        assert [bucket.put_new("y/new", b"mine"), bucket.put_new("y/new", b"othr")] == [True, False]
        bucket.copy("x/a", "x/d")
        bucket.delete("x/b", "x/c")
        for name in "ad":
            assert bucket.read(f"x/{name}") == b"a" * 1000
            bucket.download(f"x/{name}", tmp_path / "copy")
            assert (tmp_path / "copy").read_bytes() == b"a" * 1000
        assert bucket.find("x/b") is None
        assert [one.key for one in bucket.objects("x")] == ["x/a", "x/d"]
        assert bucket.children("x")[0] == []
    assert network.broken[kind] >= 3
    there = Bucket(bucket_url)
    assert {one.key: there.read(one.key) for one in there.objects("")} == {
        "x/a": b"a" * 1000,
        "x/d": b"a" * 1000,
        "y/new": b"mine",
    }


class Meeting(Network):
    """A network on which each put waits for another one."""

    def __init__(self, server: BucketServer) -> None:
        super().__init__(server)
        self._two = threading.Barrier(2)

    def passes(self, method: str, path: str) -> str | None:
        if method == "PUT":
            self._two.wait(PATIENCE)
        return super().passes(method, path)


def test_files_are_sent_side_by_side(bucket_server: BucketServer, here: BucketPath) -> None:
    files = []
    for name in ("a", "b", "c", "d"):
        written = here / f".{name}.tmp"
        written.write_bytes(name.encode())
        files.append((written, here / name))
    with Meeting(bucket_server).running():
        place(files)
    assert {one.key: here.bucket.read(one.key) for one in here.bucket.objects("")} == {
        "a": b"a", "b": b"b", "c": b"c", "d": b"d"
    }  # fmt: skip
    assert [written for written, _ in files if written.exists()] == []


def test_what_is_deleted_is_gone_and_what_is_not_there_is_passed_over(bucket_url: str) -> None:
    bucket = Bucket(bucket_url)
    bucket.put("a", b"1")
    bucket.delete("a", "not-there")
    bucket.delete("a")
    assert bucket.find("a") is None
    with pytest.raises(FileNotFoundError, match="there is no such object"):
        bucket.read("a")


def test_an_object_cannot_be_opened_for_writing(here: BucketPath) -> None:
    with pytest.raises(AssertionError, match="write a temporary file"):
        (here / "raw" / "part").open("wb")


def test_a_folder_is_removed_with_all_its_objects(here: BucketPath, there: BucketPath) -> None:
    for name in ("a/1", "a/b/2", "c/3"):
        write(here / "raw" / name, b"1")
    remove_tree(there / "raw" / "a")
    assert [path.name for path in (here / "raw").iterdir()] == ["c"]


# -- logs


def log_of(warehouse: BucketPath) -> BucketPath:
    found = layout.slice_log(warehouse, layout.LANDINGS)
    assert isinstance(found, BucketPath)
    assert found.is_log
    return found


def read(path: BucketPath) -> bytes:
    look_again(path)
    return path.read_bytes()


def test_a_log_is_a_folder_of_pieces_and_reads_as_one_file(
    here: BucketPath, there: BucketPath, bucket_url: str
) -> None:
    append(log_of(here), b"one\n", 0)
    append(log_of(there), b"two\n", 4)
    append(log_of(here), b"three\n", 8)
    keys = [found.key for found in Bucket(bucket_url).objects("slices")]
    assert keys == [f"slices/landings.ndjson/000000.{offset:020d}" for offset in (0, 4, 8)]
    for path in (log_of(here), log_of(there)):
        assert read(path) == b"one\ntwo\nthree\n"
        assert (path.exists(), path.is_file(), path.stat().st_size) == (True, True, 14)


def test_a_writer_that_was_overtaken_appends_nothing(here: BucketPath, there: BucketPath) -> None:
    append(log_of(here), b"one\n", 0)
    with pytest.raises(ConflictError, match="another writer has appended"):
        append(log_of(there), b"two\n", 0)
    assert read(log_of(there)) == b"one\n"
    append(log_of(there), b"two\n", 4)
    assert read(log_of(here)) == b"one\ntwo\n"


def test_a_log_that_is_not_there(here: BucketPath) -> None:
    assert not log_of(here).exists()
    with pytest.raises(FileNotFoundError):
        read(log_of(here))


def test_a_rewritten_log_replaces_the_old_one(here: BucketPath, there: BucketPath) -> None:
    append(log_of(here), b"one\ntwo\n", 0)
    assert read(log_of(there)) == b"one\ntwo\n"
    atomic_write(log_of(here), b"one\n")
    assert read(log_of(there)) == b"one\n"
    append(log_of(there), b"2\n", 4)
    assert read(log_of(here)) == b"one\n2\n"
    assert not rewrite_log(log_of(here), b"", at=4)  # it has changed since
    log_of(here).unlink()
    look_again(log_of(there))
    assert not log_of(there).exists()


class Interleaved(Bucket):
    """A bucket at which another machine acts just before, or just after, the put of an object."""

    def __init__(self, url: str, acts: dict[tuple[int, bool], Callable[[], object]]) -> None:
        super().__init__(url)
        self._acts = acts
        self._puts = 0

    def put_new(self, key: str, content: bytes | Path) -> bool:
        number, self._puts = self._puts, self._puts + 1
        self._act(number, after=False)
        done = super().put_new(key, content)
        self._act(number, after=True)
        return done

    def _act(self, number: int, *, after: bool) -> None:
        act = self._acts.pop((number, after), None)
        if act is not None:
            act()


def meeting(
    monkeypatch: pytest.MonkeyPatch, url: str, act: Callable[[], object], number: int, *, after: bool
) -> None:
    """Have another machine act before or after the put of an object that has a number."""
    bucket = Interleaved(url, {(number, after): act})
    monkeypatch.setattr(bucket_path, "_bucket", lambda _url: bucket)


NEW = b"another, longer line\n"


@pytest.mark.parametrize(
    ("number", "after", "holds"),
    [(0, False, "append"), (0, True, "rewriting"), (1, False, "rewriting"), (1, True, "rewriting")],
)
@pytest.mark.parametrize("content", [NEW, b"ONE\n", b""])
def test_of_an_append_and_a_rewriting_that_meet_one_holds(
    here: BucketPath,
    there: BucketPath,
    bucket_url: str,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    after: bool,
    holds: str,
    content: bytes,
) -> None:
    """Whichever put of the rewriting the other machine comes in between, and whatever the sizes are."""
    append(log_of(here), b"one\n", 0)
    appended: list[bool] = []
    meeting(
        monkeypatch,
        bucket_url,
        lambda: appended.append(append_to_log(log_of(there), b"two\n", 4)),
        number,
        after=after,
    )
    rewritten = rewrite_log(log_of(here), content)
    as_if_new = content == b"ONE\n" and holds == "rewriting"  # as long as the old log: the append follows it
    assert (rewritten, appended) == (holds == "rewriting", [holds == "append" or as_if_new])
    expected = b"one\ntwo\n" if holds == "append" else content + b"two\n" * as_if_new
    assert read(log_of(here)) == read(log_of(there)) == expected
    append(log_of(there), b"end\n", len(expected))
    assert read(log_of(here)) == expected + b"end\n"


@pytest.mark.parametrize("content", [NEW, b"ONE\n", b""])
@pytest.mark.parametrize("after", [False, True])
def test_of_an_append_during_which_the_log_is_rewritten_one_holds(
    here: BucketPath,
    there: BucketPath,
    bucket_url: str,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
    after: bool,
) -> None:
    append(log_of(here), b"one\n", 0)
    rewritten: list[bool] = []
    act = lambda: rewritten.append(rewrite_log(log_of(there), content, at=4))  # noqa: E731
    meeting(monkeypatch, bucket_url, act, 0, after=after)
    appended = append_to_log(log_of(here), b"two\n", 4)
    assert (appended, rewritten) == ((True, [False]) if after else (False, [True]))
    assert read(log_of(here)) == read(log_of(there)) == (b"one\ntwo\n" if after else content)


class _CrashError(Exception):
    pass


@pytest.mark.parametrize(
    ("number", "after", "expected"), [(0, False, b"one\n"), (0, True, NEW), (1, True, NEW)]
)
def test_a_rewriting_that_a_crash_interrupts_is_finished_by_whoever_comes_next(
    here: BucketPath,
    there: BucketPath,
    bucket_url: str,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    after: bool,
    expected: bytes,
) -> None:
    append(log_of(here), b"one\n", 0)

    def crash() -> None:
        raise _CrashError

    with monkeypatch.context() as patch:
        meeting(patch, bucket_url, crash, number, after=after)
        with pytest.raises(_CrashError):
            rewrite_log(log_of(here), NEW)
    assert read(log_of(there)) == expected
    append(log_of(there), b"end\n", len(expected))
    assert read(log_of(here)) == read(log_of(there)) == expected + b"end\n"


def test_a_log_that_begins_again_is_no_continuation_of_an_old_copy(
    here: BucketPath, there: BucketPath
) -> None:
    append(log_of(here), b"one\n", 0)
    assert read(log_of(there)) == b"one\n"
    log_of(here).unlink()
    append(log_of(here), b"ONE\n", 0)
    append(log_of(here), b"TWO\n", 4)
    assert read(log_of(there)) == b"ONE\nTWO\n"


class Contended(Bucket):
    """A bucket at which another machine appends to a log before each put."""

    def __init__(self, url: str, log: BucketPath) -> None:
        super().__init__(url)
        self._log = log
        self.most: int | None = None  # appends that are left, if they ever end
        self._there = False

    def put_new(self, key: str, content: bytes | Path) -> bool:
        if not self._there and self.most != 0:
            self.most = self.most - 1 if self.most is not None else None
            self._there = True
            append(self._log, b"more\n", len(read(self._log)))
            self._there = False
        return super().put_new(key, content)


def test_a_log_that_others_write_to_is_removed_or_the_removal_is_refused(
    here: BucketPath, there: BucketPath, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log_of(here), b"one\n", 0)
    bucket = Contended(bucket_url, log_of(there))
    monkeypatch.setattr(bucket_path, "_bucket", lambda _url: bucket)
    monkeypatch.setattr(bucket_path, "_TRIES", 3)
    with pytest.raises(ConflictError, match="other writers changed it 3 times in a row") as refused:
        log_of(here).unlink()
    assert (refused.value.retry.value, refused.value.where) == ("refresh", log_of(here).as_uri())
    assert read(log_of(here)) == b"one\n" + b"more\n" * 3
    bucket.most = 2
    log_of(here).unlink()
    look_again(log_of(there))
    assert not log_of(there).exists()


@pytest.mark.parametrize("left", [b"", b"one", b"one\ntw", b"one\ntwo\nthr"])
def test_a_copy_that_a_crash_left_torn_is_completed(here: BucketPath, left: bytes) -> None:
    append(log_of(here), b"one\n", 0)
    append(log_of(here), b"two\n", 4)
    current_log(log_of(here)).write_bytes(left)
    assert read(log_of(here)) == b"one\ntwo\n"


def test_a_piece_that_is_missing_is_an_error(here: BucketPath, bucket_url: str) -> None:
    for number, line in enumerate((b"one\n", b"two\n", b"six\n")):
        append(log_of(here), line, 4 * number)
    current_log(log_of(here)).unlink()
    Bucket(bucket_url).delete(f"slices/landings.ndjson/000000.{4:020d}")
    with pytest.raises(BucketError, match=r"a piece of .*landings\.ndjson is missing at 4"):
        read(log_of(here))


def test_a_reader_notices_what_another_process_appended_and_the_state_knows(
    here: BucketPath, there: BucketPath, tmp_path: Path
) -> None:
    state = open_state(tmp_path / "state.db")  # as on a server, that both share
    assert GatewayLog(here, state).running() == set()
    GatewayLog(there, state).begin("0123456789ab", now=1)
    assert GatewayLog(here, state).running() == {"0123456789ab"}
    state.close()


def test_a_machine_misses_only_the_logs_of_its_own_gateways(
    here: BucketPath, there: BucketPath, tmp_path: Path
) -> None:
    state = open_state(tmp_path / "state.db")
    GatewayLog(here, state).begin("0123456789ab", now=1)
    assert GatewayLog(there, state).lost() == []  # its log is on the other machine
    assert GatewayLog(here, state).lost() == ["0123456789ab"]
    GatewayLog(here, state).end("0123456789ab", now=2)
    assert GatewayLog(here, state).lost() == []
    state.close()


# -- copies


def test_copies_that_were_not_used_for_longest_go_first(here: BucketPath) -> None:
    now = 10 * HOUR
    for number, used in enumerate((9 * HOUR, 8 * HOUR, now)):
        path = write(here / "raw" / str(number), b"x" * 10)
        os.utime(on_disk(path), ns=(used * 1000, used * 1000))
    append(log_of(here), b"a log stays\n", 0)
    copies = LocalCopies(here, most=20)
    assert copies.trim(now) == 1
    assert [on_disk(here / "raw" / name).exists() for name in "012"] == [True, False, True]
    assert (here / "raw" / "1").read_bytes() == b"x" * 10
    assert copies.trim(now + MINUTE // 2) == 0  # it looks once a minute
    assert LocalCopies(here, most=0).trim(now) == 1  # and what was used lately stays
    assert on_disk(here / "raw" / "2").exists()
    assert LocalCopies(on_disk(here), most=0).trim(now) == 0  # a folder is not trimmed


def test_a_copy_that_is_used_again_and_again_keeps_its_times(here: BucketPath) -> None:
    path = write(here / "raw" / "part", b"rows")
    first = local_copy(path).stat()
    assert local_copy(path).stat().st_mtime_ns == first.st_mtime_ns  # else its checksum is read each time


def test_a_search_for_damage_reads_from_the_bucket(here: BucketPath, bucket_url: str) -> None:
    path = write(here / "raw" / "part", b"rows")
    Bucket(bucket_url).put("raw/part", b"ruin")
    assert path.read_bytes() == b"rows"
    forget_copy(path)
    assert path.read_bytes() == b"ruin"


def test_what_is_replaced_under_its_name_is_read_from_the_bucket(here: BucketPath, there: BucketPath) -> None:
    for number, warehouse in enumerate((here, there, here)):
        write(layout.tokens(warehouse), str(number).encode())
        for reader in (here, there):
            with layout.tokens(reader).open("rb") as file:
                assert file.read() == str(number).encode()


# -- errors


def test_a_server_that_cannot_be_reached_is_an_error_without_secrets(
    here: BucketPath, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(client, "_MOST_RETRIES", 0)
    unreached = Bucket(bucket_url)
    for act in (
        lambda: unreached.find("a"),
        lambda: unreached.read("a"),
        lambda: unreached.put("a", b""),
        lambda: unreached.put_new("a", b""),
        lambda: unreached.delete("a"),
        lambda: list(unreached.objects("a")),
        lambda: unreached.children("a"),
    ):
        with pytest.raises(BucketError, match="the server cannot be reached") as caught:
            act()
        assert f"{bucket_url}/a" in str(caught.value)
        assert SECRET not in str(caught.value)
    with pytest.raises(StorageError) as told, storage_errors("read", here / "a"):
        unreached.read("a")
    assert (told.value.code, told.value.retry.value) == ("storage", "later")
    assert "AWS_ACCESS_KEY_ID" in told.value.hint
    assert SECRET not in f"{told.value} {told.value.hint}"


def test_nothing_of_a_response_is_repeated(bucket_url: str) -> None:
    said = f"Generic S3 error: HTTP status client error (403 Forbidden): <Key>{SECRET}</Key>"
    assert str(Bucket(bucket_url).failure("read", "a", ValueError(said))) == (
        f"cannot read {bucket_url}/a: the server answered 403"
    )
    assert SECRET not in str(Bucket(bucket_url).failure("read", "a", ValueError(SECRET)))


# -- the project, and whose state it is


def settings(folder: Path, warehouse: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tidemill.yaml").write_text(
        f"version: 1\nwarehouse: {warehouse}\nstreams: {{s: {{schema: {{a: any}}, gate: none}}}}\n"
    )
    return folder


def test_an_address_becomes_a_folder_on_the_local_disk(tmp_path: Path) -> None:
    project = load_project(settings(tmp_path, "s3://shop-events/eu/prod/"), registered())
    found = warehouse_path(project.warehouse)
    assert found.parent == tmp_path / ".tidemill"
    assert found.as_uri() == "s3://shop-events/eu/prod"
    assert warehouse_path(tmp_path / "folder") == tmp_path / "folder"
    assert not isinstance(warehouse_path(tmp_path / "folder"), BucketPath)


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("s3://", "'s3://' is not the address of a bucket"),
        ("s3://host:80/x", "'s3://host:80/x' is not the address of a bucket"),
        (f"s3://me:{SECRET}@bucket/x", "the address of a bucket holds no credentials and no options"),
        (f"s3://bucket/x?key={SECRET}", "the address of a bucket holds no credentials and no options"),
        ("s3://bucket/../x", "'../x' cannot be the prefix of a warehouse"),
        ("s3://bucket/a b", "'a b' cannot be the prefix of a warehouse"),
        ("s3://bucket/" + "x" * 250, "the address is too long"),
        ("ftp://bucket/x", "'ftp://bucket/x' is not a folder or bucket"),
    ],
)
def test_what_is_not_an_address_is_refused_without_repeating_secrets(
    tmp_path: Path, address: str, what: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load_project(settings(tmp_path, address), registered())
    assert what in str(caught.value)
    assert SECRET not in f"{caught.value} {caught.value.hint}"


def test_all_machines_know_the_warehouse_by_one_name(here: BucketPath, there: BucketPath) -> None:
    store = StateStore.model_validate({"url": "postgresql://127.0.0.1:1/shop"})
    names = [opening.name_of(warehouse, store) for warehouse in (here, there)]
    assert names[0] == names[1]
    identity = layout.identity(there).read_text().strip()
    assert names[0].endswith(f"schema tidemill_{identity}")


def test_a_warehouse_has_one_state_and_recover_moves_it(here: BucketPath, there: BucketPath) -> None:
    opening.open_store(here).close()
    opening.open_store(here).close()  # again
    with pytest.raises(StorageError, match="this warehouse has its state elsewhere: a file on ") as refused:
        opening.open_store(there)
    assert "tidemill recover" in refused.value.hint
    opening.open_fresh(there).close()
    opening.replace_with_fresh(there)  # as `recover` does
    opening.open_store(there).close()
    with pytest.raises(StorageError, match="has its state elsewhere"):
        opening.open_store(here)


def test_a_recovery_claims_the_warehouse_until_it_has_ended(here: BucketPath, there: BucketPath) -> None:
    opening.open_store(here).close()
    state_owner.confirm(here)
    with opening.claimed(there) as is_taken_over:
        assert is_taken_over
        with pytest.raises(LeaseLostError, match=r"the `tidemill recover` on .* is making a new state"):
            state_owner.confirm(here)
        with pytest.raises(StorageError, match="is making a new state") as refused:
            opening.open_store(here)
        assert "if it was interrupted, run `tidemill recover`" in refused.value.hint
        opening.open_fresh(there).close()
        opening.replace_with_fresh(there)
    state_owner.confirm(there)
    with pytest.raises(LeaseLostError, match="this warehouse has its state elsewhere: a file on"):
        state_owner.confirm(here)


def test_a_recovery_that_fails_leaves_the_state_in_use(here: BucketPath, there: BucketPath) -> None:
    opening.open_store(here).close()
    with pytest.raises(_CrashError), opening.claimed(there):
        raise _CrashError
    state_owner.confirm(here)
    opening.open_store(here).close()
    with opening.claimed(here) as is_taken_over:
        assert not is_taken_over  # it is its own
        opening.open_fresh(here).close()
        opening.replace_with_fresh(here)
    state_owner.confirm(here)


def test_of_two_recoveries_the_later_one_holds(here: BucketPath, there: BucketPath) -> None:
    opening.open_fresh(here).close()
    opening.open_fresh(there).close()
    with opening.claimed(here), opening.claimed(there):
        with pytest.raises(LeaseLostError, match="is making a new state"):
            opening.replace_with_fresh(here)
        opening.replace_with_fresh(there)
    state_owner.confirm(there)
