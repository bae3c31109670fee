"""Where the warehouses of the stories are: in the folders of their projects, or in a bucket.

`make interop` names an address by TIDEMILL_TESTS_BUCKET: then each warehouse has a prefix of its own there,
and the same tests say the same about it. Credentials and endpoint are in the environment, for Spark's workers
too.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from pathlib import Path
from typing import Final

from tidemill.model.names import bucket_folder
from tidemill.storage.bucket import Bucket
from tidemill.storage.bucket_path import BucketPath, on_disk, warehouse_path

VARIABLE: Final = "TIDEMILL_TESTS_BUCKET"
_CONFIG: Final = "tidemill.yaml"
_ADDRESS: Final = re.compile(r'"?warehouse"?: "(s3://[^"]+)"')
_LOG_PIECE: Final = re.compile(r"/\d{6}\.\d{20}$")


def in_bucket() -> bool:
    return VARIABLE in os.environ


def write_config(root: Path, text: str) -> None:
    """The project file of `root`; its warehouse stays where it is."""
    address = _address(root)
    if address is None and in_bucket():
        address = _new_address()
    if address is not None and text.startswith("{"):
        text = text.replace("{", f'{{"warehouse": "{address}",', 1)
    elif address is not None:
        text = f'warehouse: "{address}"\n{text}'
    (root / _CONFIG).write_text(text)


def warehouse_of(root: Path) -> Path:
    address = _address(root)
    return root / "warehouse" if address is None else _local(root, address)


def copy_project(root: Path, to: Path) -> None:
    """Everything as it is at this moment. In a bucket, the objects first: the disk may then know less than
    the bucket has, which is what a process leaves that dies."""
    address = _address(root)
    if address is None:
        shutil.copytree(root, to)
        return
    copied = _new_address()
    source, target = Bucket(address), Bucket(copied)
    for one in source.objects(""):
        target.put(one.key, source.read(one.key))
    shutil.copytree(root, to)
    on_disk(_local(to, address)).rename(on_disk(_local(to, copied)))
    text = (to / _CONFIG).read_text()
    (to / _CONFIG).write_text(text.replace(address, copied, 1))


def all_files(warehouse: Path) -> list[Path]:
    """Every file of a warehouse: objects, and what is on the disk of this machine alone."""
    if not isinstance(warehouse, BucketPath):
        return [path for path in warehouse.rglob("*") if path.is_file()]
    local = (path for path in on_disk(warehouse).rglob("*") if path.is_file())
    found = (warehouse / path.relative_to(on_disk(warehouse)) for path in local)
    return [*warehouse.rglob("*"), *(path for path in found if path.is_local)]


def is_log_piece(path: Path) -> bool:
    return _LOG_PIECE.search(str(path)) is not None


def _local(root: Path, address: str) -> Path:
    return warehouse_path(root / ".tidemill" / bucket_folder(address))


def _address(root: Path) -> str | None:
    config = root / _CONFIG
    found = _ADDRESS.search(config.read_text()) if config.exists() else None
    return found[1] if found else None


def _new_address() -> str:
    return f"{os.environ[VARIABLE]}/{secrets.token_hex(6)}"
