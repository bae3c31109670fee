"""An archive of this package and its dependencies, for the executors of a cluster that lack them.

Executors use their own Python, of the same version; Spark itself is left out, since they run it.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from tidemill.model.errors import MachineError

_PROVIDED: Final = frozenset({"pyspark", "py4j"})
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")
# The folder that Spark unpacks the archive to, in the working folder of an executor.
FOLDER: Final = "tidemill_bundle"


@dataclass(frozen=True, slots=True)
class Bundle:
    """What was packed."""

    packages: tuple[str, ...]  # with their versions
    size: int

    @staticmethod
    def conf_at(path: Path) -> dict[str, str]:
        """The settings of Spark that give the archive at `path` to executors."""
        return {
            "spark.archives": f"{path.absolute()}#{FOLDER}",
            "spark.executorEnv.PYTHONPATH": f"./{FOLDER}",
        }


def bundle_files() -> tuple[tuple[str, ...], list[tuple[Path, str]]]:
    """The packages with their versions, and each file with its name in the archive."""
    found = _installed("tidemill")
    packages = tuple(sorted(f"{name}=={each.version}" for name, each in found.items()))
    return packages, [*_own_files(), *(file for each in found.values() for file in _files(each))]


def write_bundle(target: Path) -> Bundle:
    """Pack the package and what it depends on, as they are installed here."""
    packages, files = bundle_files()
    # Times are kept exactly: Numba uses its compiled kernels only for sources of the same time.
    with tarfile.open(target, "w:gz", compresslevel=1, format=tarfile.PAX_FORMAT) as archive:
        for source, name in files:
            archive.add(source, name)
    return Bundle(packages, target.stat().st_size)


def _installed(name: str) -> dict[str, metadata.Distribution]:
    """A distribution and all that it requires here, by normalised name; Spark is left out."""
    found: dict[str, metadata.Distribution] = {}
    waiting = [name]
    while waiting:
        each = _normal(waiting.pop())
        if each in found or each in _PROVIDED:
            continue
        try:
            found[each] = metadata.distribution(each)
        except metadata.PackageNotFoundError:
            raise MachineError(
                f"{each} is needed and not installed here",
                hint="run this where tidemill was installed by pip",
            ) from None
        waiting.extend(_required(found[each]))
    return found


def _required(distribution: metadata.Distribution) -> Iterator[str]:
    """What it needs on this machine. Whether a marker applies is inferred from what is installed."""
    for text in distribution.requires or ():
        requirement, _, marker = text.partition(";")
        name = _NAME.match(requirement.strip())
        if name is None or "extra ==" in marker.replace("'", '"'):
            continue
        if not marker or _is_installed(name.group()):
            yield name.group()


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _own_files() -> Iterator[tuple[Path, str]]:
    """The files of this package, from wherever it is loaded: an editable install lists none of them. Kernels
    that were compiled here are included, so that executors of the same kind need not compile them."""
    root = Path(__file__).parents[1]
    for path in sorted(root.rglob("*")):
        if path.is_file() and path.suffix != ".pyc":
            yield path, f"tidemill/{path.relative_to(root).as_posix()}"


def _files(distribution: metadata.Distribution) -> Iterator[tuple[Path, str]]:
    for file in distribution.files or ():
        name = file.as_posix()
        if name.startswith(("..", "tidemill/")) or "__pycache__" in name or name.endswith(".pth"):
            continue
        source = Path(str(distribution.locate_file(file)))
        if source.is_file():
            yield source, name
