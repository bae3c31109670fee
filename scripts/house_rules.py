"""The house rules that no linter knows: module length, clocks, fail points, paths, files, leftovers, registry
hosts.

Reads the source as text and syntax trees only; it imports nothing of the project and changes nothing.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 900
MAX_FUNCTION = 60
LONG_FUNCTIONS = {  # and why they are not split
    "src/tidemill/formats/scan.py:_walk": "a compiled state machine; its parts share twenty local variables",
    "src/tidemill/formats/locate.py:_locate": "a compiled state machine; its parts share ten local variables",
}
LAZY = "# Imports inside functions keep start-up short:"
SETTINGS = "tests/support/hypothesis_settings.py"
# Spelt in pieces, so that this file passes its own rules.
LEFTOVER = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" * 3)) + r")\b")
WORDS = re.compile(  # that must not come back
    r"\b(" + "|".join(("can" + " not", "[Ww]ho" + " calls holds", "There is no such" + " thing")) + r")\b"
)
PROSE = re.compile(  # that must not come back to the pages: evaluate, decide; again; reported; anyone
    r"\b(judg(?:e|es|ed|ing)|anew|unlaid|spokesman|whoever|(?:is|are|was|were|be) told|nobody was told)\b",
    re.IGNORECASE,
)
SAID_ODDLY = re.compile(  # in the source: again, publish, repair; evaluate (a window), decide (a record)
    r"\b(an" + r"ew|spokes" + r"man|men" + r"d(?:s|ed|ing)?|whoe" + r"ver|somebody else opened)\b"
    r"|\w*(?:judg|verdict)\w*",
    re.IGNORECASE,
)
# No name of a variable, function or class: say what it is (fields, request, tenant, own, repair).
ODD_NAMES = {"said", "told", "asked", "whose", "mine", "theirs", "mend", "retold", "strangers"}
# No name of a module: a noun says what is inside (windows_sql, segment_list, part_names).
ODD_MODULES = re.compile(
    r"(\w+_)?(acts|playing|standing)|glances|newer|phases|witness|taking_up|gathering|holdings|standins|send_back"
    r"|remaking|choosing|loads|spellings|texts|unpacked|adopt|flight|placing|scratch|helpers?|utils?|misc|common"
)
USERS_WRITE = {"asked": ("src/tidemill/mill.py", "src/tidemill/client/")}  # arguments of public methods
KEPT_NAMES = {  # as strings: files and other programs know them
    "judgement": "a field of the footers of raw parts and a column of state.db",
    "judgements": "a field of retractions.ndjson",
    "judge_again": "a step in the JSON of `tidemill retract`",
}
UNSWEPT = "src/tidemill/storage/state/"  # its SQL has `judgement` in many forms
CLASSES = re.compile(r"^class _?(\w*Desk|\w*Yard|Workshop|Keeper|Bell|Voice|Chronicle|Roster)\b")
REGISTRY = re.compile(
    r"(pypi|pythonhosted|repo1?\.maven|maven\.apache|npmjs|yarnpkg|conda\.anaconda|docker|ghcr|quay|crates)"
    r"\.(org|io|com)\b",
    re.IGNORECASE,
)
CLOCKS = {
    ("time", "time"),
    ("time", "time_ns"),
    ("time", "sleep"),
    ("datetime", "now"),
    ("datetime", "utcnow"),
    ("datetime", "today"),
    ("date", "today"),
}
# Where the wall clock may be read: the object that wires the packages, and what stands on it.
ABOVE = ("src/tidemill/mill.py", "src/tidemill/cli/")
FAIL_POINTS = "src/tidemill/model/failpoints.py"
# Names on disk are said once; addresses of the API may look like folders.
LAYOUT = "src/tidemill/storage/layout.py"
FOLDERS = {
    "slices",
    "raw",
    "quarantine",
    "rollups",
    "index",
    "chains",
    "datasets",
    "windows",
    "gate",
    "sealed",
    "trails",
    "wal",
    "access",
    "aggregation",
}
ON_DISK = re.compile(
    r"(^|/)(_staging|_packing|_open|_empty|_orphans|\.inflight|\.tick\.lock|state\.db|tokens\.json|status\.json"
    r"|trails\.log|windows\.ndjson|(landings|retractions|expiries|declarations)\.ndjson)(/|$)"
)
IN_FOLDER = re.compile(rf"^({'|'.join(sorted(FOLDERS))})/")
# Files of a warehouse may be objects of a bucket. Outside of storage/ they are opened through their Path, or
# as the local copy that storage/ makes; these calls would look at the local disk, past both.
AROUND = {  # whole names, whatever a module imports them as
    *(f"os.{name}" for name in ("open", "link", "symlink", "stat", "lstat", "scandir", "listdir", "walk")),
    *(f"os.{name}" for name in ("replace", "rename", "unlink", "remove", "mkdir", "makedirs", "truncate")),
    *(f"os.{name}" for name in ("rmdir", "access", "chmod", "utime")),
    *(f"os.path.{name}" for name in ("exists", "isfile", "isdir", "islink", "getsize", "getmtime")),
    *(f"shutil.{name}" for name in ("rmtree", "move", "copy", "copy2", "copyfile", "copytree")),
    *(f"pyarrow.{name}" for name in ("OSFile", "memory_map", "input_stream", "output_stream")),
    *(
        f"pyarrow.parquet.{name}"
        for name in ("ParquetFile", "ParquetDataset", "ParquetWriter", "write_table")
    ),
    *(f"pyarrow.parquet.{name}" for name in ("read_table", "read_metadata", "read_schema")),
    *(f"pyarrow.ipc.{name}" for name in ("open_file", "open_stream", "new_file", "new_stream")),
    *(f"pyarrow.{name}" for name in ("dataset.dataset", "csv.read_csv", "csv.open_csv", "csv.write_csv")),
    *(f"pyarrow.{name}" for name in ("json.read_json", "feather.read_table", "feather.write_feather")),
    *(f"pyarrow.fs.{name}" for name in ("LocalFileSystem", "FileSystem.from_uri")),
    *(f"numpy.{name}" for name in ("memmap", "fromfile", "load", "save", "loadtxt", "savetxt")),
    *(f"{name}.open" for name in ("builtins", "io", "gzip", "bz2", "lzma", "codecs", "tarfile")),
    *(["glob.glob", "glob.iglob", "mmap.mmap", "sqlite3.connect", "zipfile.ZipFile", "tarfile.TarFile"]),
    *(["deltalake.DeltaTable", "deltalake.write_deltalake", "duckdb.read_parquet", "duckdb.read_csv"]),
    *(f"tempfile.{name}" for name in ("TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile")),
    *(f"tempfile.{name}" for name in ("SpooledTemporaryFile", "mkdtemp", "mkstemp")),
}
# In what such a call is given: copies, files that are being written, and what is open already.
LOCAL = {"local_copy", "on_disk", "temporary", "sink", "_sink", "source", "PythonFile", "py_buffer"}
LOCAL_FILES = {  # and why these may do so all the same
    "src/tidemill/storage/": "it knows what is where",
    "src/tidemill/cli/": "files of users, and terminals",
    "src/tidemill/testing/": "files of users",
    "src/tidemill/formats/": "what it is given is on the local disk: copies, files of users, buffers",
    "src/tidemill/ingest/gateway/": "the log of a gateway is on its own disk",
    "src/tidemill/ingest/landing_notes.py": "notes of landings, with locks, are of one machine",
    "src/tidemill/ingest/sniff.py": "files of users, before they are landed",
    "src/tidemill/ingest/file_patterns.py": "files of users, before they are landed",
    "src/tidemill/ingest/feeds.py": "folders that the project names",
    "src/tidemill/config/loading.py": "the file of the project",
    "src/tidemill/engine/bundle.py": "an archive that a user names",
    "src/tidemill/engine/executors.py": "asks whether an executor sees a folder of a disk",
    "src/tidemill/query/plain_sql/file_scan.py": "what it is given are local copies",
    "src/tidemill/pipeline/events/file_sink.py": "a file that the project names",
    "src/tidemill/raw/compaction/packing_folders.py": "folders of one machine, in which parts are prepared",
    "src/tidemill/server/access/token_file.py": "a lock of one machine",
    "src/tidemill/server/object_routes.py": "files of users, in folders that the project names",
}
ADDRESSES = ("src/tidemill/client/", "src/tidemill/server/")
MADE = ("build/", "dist/", "demo/", "bench/work/")  # by running things, not by people
# What the rules for modules outside of src/ look for: those that have none of these words are not parsed.
RULED = re.compile(r"sleep|utcnow|today|datetime\.now|hypothesis")
TEXT = {".py", ".toml", ".lock", ".md", ".yaml", ".yml", ".sh", ".cfg", ".txt", ".html", ".js", ""}


@lru_cache(maxsize=1)
def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """All nodes of a syntax tree. Many rules look at each module in turn."""
    return list(ast.walk(tree))


def files() -> Iterator[tuple[str, str]]:
    """(path from the root, text) of every file that belongs to the project."""
    for path in sorted(ROOT.rglob("*")):
        name = path.relative_to(ROOT).as_posix()
        hidden = any(part.startswith(".") and part not in {".ci", ".gitignore"} for part in name.split("/"))
        if path.is_file() and path.suffix in TEXT and not hidden and not name.startswith(MADE):
            yield name, path.read_text(encoding="utf-8")


def clock_reads(tree: ast.AST) -> Iterator[tuple[int, str, bool]]:
    """(line, call, whether it was given an argument) of each read of the wall clock, and each sleep."""
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in nodes_of(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call):
            continue
        called: tuple[str, str] | None = None
        if isinstance(node.func, ast.Attribute):
            owner = node.func.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            called = (name, node.func.attr)
        elif isinstance(node.func, ast.Name):
            called = imported.get(node.func.id)
        if called in CLOCKS:
            yield node.lineno, ".".join(called or ()), bool(node.args or node.keywords)


def file_faults(path: str, tree: ast.AST) -> Iterator[str]:
    """Outside of storage/, files of a warehouse are opened through their Path, or as local copies."""
    if not path.startswith("src/") or path.startswith(tuple(LOCAL_FILES)):
        return
    imported = imported_names(tree)
    for node in nodes_of(tree):
        if not isinstance(node, ast.Call):
            continue
        called = whole_name(node.func, imported)
        if called not in AROUND:
            continue
        elsewhere = called.startswith("tempfile.")  # unless a folder is named
        given = [one.value for one in node.keywords if one.arg == "dir"] if elsewhere else node.args[:1]
        if (given or not elsewhere) and not words_of(given) & LOCAL:
            yield f"{path}:{node.lineno}: {called}() of what may be in a bucket; open its Path or local_copy"


def words_of(nodes: Iterable[ast.AST]) -> set[str]:
    """All names and attributes in some expressions."""
    inner = [one for node in nodes for one in ast.walk(node)]
    names = {one.id for one in inner if isinstance(one, ast.Name)}
    return names | {one.attr for one in inner if isinstance(one, ast.Attribute)}


def imported_names(tree: ast.AST) -> dict[str, str]:
    """What each name of a module stands for that it imports."""
    found = {"open": "builtins.open"}
    for node in nodes_of(tree):
        if isinstance(node, ast.Import):
            found |= {
                one.asname or one.name.split(".")[0]: one.name if one.asname else one.name.split(".")[0]
                for one in node.names
            }
        elif isinstance(node, ast.ImportFrom):
            found |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return found


def whole_name(node: ast.AST, imported: dict[str, str]) -> str:
    """The dotted name of what is called, from the package on; empty: it is not of one that is imported."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    first = imported.get(node.id, "") if isinstance(node, ast.Name) else ""
    return ".".join([first, *reversed(parts)]) if first else ""


def unused_exceptions(names: set[str]) -> Iterator[str]:
    for name in LOCAL_FILES:
        if not any(one.startswith(name) for one in names):
            yield f"scripts/house_rules.py: there is no {name}"


def size_faults(path: str, text: str) -> Iterator[str]:
    lines = text.count("\n")
    if lines > MAX_LINES:
        yield f"{path}: {lines} lines; a module has at most {MAX_LINES}"


def clock_faults(path: str, tree: ast.AST) -> Iterator[str]:
    below = path.startswith("src/") and not path.startswith(ABOVE)
    for line, call, given in clock_reads(tree):
        if below:
            yield f"{path}:{line}: {call}() below mill.py; time is a parameter"
        elif call == "time.sleep" and path.startswith("tests/"):
            yield f"{path}:{line}: a test does not sleep; pass the time in"
        elif call in {"datetime.utcnow", "datetime.today"} or (call == "datetime.now" and not given):
            yield f"{path}:{line}: {call}() is naive; use datetime.now(UTC)"


def name_faults(path: str, tree: ast.AST) -> Iterator[str]:
    """A name says what something is; arguments of public methods stay as they are."""
    if not path.startswith("src/"):
        return
    for node in nodes_of(tree):
        name = ""
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            name = node.id
        elif isinstance(node, ast.arg) and not path.startswith(USERS_WRITE.get(node.arg, ())):
            name = node.arg
        if name.strip("_") in ODD_NAMES:
            yield f"{path}:{getattr(node, 'lineno', 0)}: the name {name!r} does not say what it is"


def module_faults(path: str) -> Iterator[str]:
    """A module is called what a reader looks for."""
    if path.startswith(("src/", "tests/")) and ODD_MODULES.fullmatch(Path(path).stem):
        yield f"{path}: the name of the module does not say what is inside"


def length_faults(path: str, tree: ast.AST) -> Iterator[str]:
    """Functions of the source fit on a screen, with their signature and docstring."""
    if not path.startswith("src/"):
        return
    for node in nodes_of(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION and f"{path}:{node.name}" not in LONG_FUNCTIONS:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines; split it, at most {MAX_FUNCTION}"


def hypothesis_faults(path: str, tree: ast.AST) -> Iterator[str]:
    """One profile draws the examples of all tests: none has settings of its own."""
    if not path.startswith("tests/") or path == SETTINGS:
        return
    for node in nodes_of(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        names = {alias.name for alias in node.names}
        module = node.module if isinstance(node, ast.ImportFrom) else None
        if (module == "hypothesis" and "settings" in names) or (module is None and "hypothesis" in names):
            yield f"{path}:{node.lineno}: settings of hypothesis are made in {SETTINGS}"


def path_faults(path: str, tree: ast.AST) -> Iterator[str]:
    """Only the layout knows what the folders and files of a warehouse are called."""
    if not path.startswith("src/") or path == LAYOUT:
        return
    for node in nodes_of(tree):
        name = named_path(node, addresses=path.startswith(ADDRESSES))
        if name and "\n" not in name:  # else it is prose
            line = getattr(node, "lineno", 0)
            yield f"{path}:{line}: names {name!r} of a warehouse; paths are in {LAYOUT}"


def named_path(node: ast.AST, *, addresses: bool) -> str | None:
    """The part of a path of a warehouse that an expression spells out."""
    spelled: ast.AST | None = None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        spelled = node.right
    elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"Path", "PurePath"} and node.args:
        spelled = node.args[0]
    if isinstance(spelled, ast.Constant) and spelled.value in FOLDERS:
        return str(spelled.value)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        in_folder = IN_FOLDER.match(node.value) and not addresses
        return node.value if in_folder or ON_DISK.search(node.value) else None
    return None


def import_faults(path: str, text: str, tree: ast.AST) -> Iterator[str]:
    """A module whose functions import modules of ours says in one comment why."""
    if not path.startswith("src/") or LAZY in text:
        return
    functions = (n for n in nodes_of(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidemill."):
            yield f"{path}:{node.lineno}: import it at the top, or say why: `{LAZY} …`"


def failpoint_calls(path: str, tree: ast.AST) -> Iterator[tuple[str, str | None]]:
    """(place, the point's name, None unless it is a literal) of each `failpoint(...)` call."""
    for node in nodes_of(tree):
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if name == "failpoint":
                first = node.args[0] if node.args else None
                literal = first.value if isinstance(first, ast.Constant) else None
                yield f"{path}:{node.lineno}", literal if isinstance(literal, str) else None


def declared_points(tree: ast.AST) -> set[str]:
    for node in nodes_of(tree):
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "POINTS":
            points: dict[str, str] = ast.literal_eval(node.value) if node.value else {}
            return set(points)
    return set()


def failpoint_faults(declared: set[str], passed: Iterable[tuple[str, str | None]]) -> Iterator[str]:
    used: set[str] = set()
    for place, name in passed:
        if name is None:
            yield f"{place}: name the fail point with a literal, so that it can be found"
        elif name not in declared:
            yield f"{place}: fail point {name!r} is not in model/failpoints.POINTS"
        else:
            used.add(name)
    for name in sorted(declared - used):
        yield f"{FAIL_POINTS}: fail point {name!r} is declared but never passed"


def odd_word(path: str, line: str, *, prose: bool) -> str | None:
    """A word of this line that must not come back, unless it is a name that stays."""
    if prose:
        found = PROSE.search(line)
        return found.group(0) if found else None
    if not (path.startswith("src/") and path.endswith(".py")) or path.startswith(UNSWEPT):
        return None
    words = (match.group(0) for match in SAID_ODDLY.finditer(line))
    return next((word for word in words if word not in KEPT_NAMES or f'"{word}"' not in line), None)


def text_faults(path: str, text: str) -> Iterator[str]:
    """What the lines of any file must not say."""
    prose = path.endswith(".md") and not path.startswith(("docs/decisions/", "CHANGELOG"))
    for number, line in enumerate(text.splitlines(), start=1):
        if leftover := LEFTOVER.search(line):
            yield f"{path}:{number}: {leftover.group(0)}; do it or delete it"
        if not path.startswith("docs/decisions/") and (word := WORDS.search(line) or CLASSES.search(line)):
            yield f"{path}:{number}: {word.group(0)!r}: say it in the words of CONTRIBUTING.md"
        if odd := odd_word(path, line, prose=prose):
            yield f"{path}:{number}: {odd!r}: say it in the words of CONTRIBUTING.md"
        if path != "scripts/house_rules.py" and (host := REGISTRY.search(line)):
            yield f"{path}:{number}: names the registry host {host.group(0)}"


def tree_faults(path: str, text: str, tree: ast.AST) -> Iterator[str]:
    yield from clock_faults(path, tree)
    yield from name_faults(path, tree)
    yield from length_faults(path, tree)
    yield from hypothesis_faults(path, tree)
    yield from path_faults(path, tree)
    yield from file_faults(path, tree)
    yield from import_faults(path, text, tree)


def faults() -> Iterator[str]:
    modules: set[str] = set()
    declared: set[str] = set()
    passed: list[tuple[str, str | None]] = []
    for path, text in files():
        yield from text_faults(path, text)
        if not path.endswith(".py"):
            continue
        modules.add(path)
        yield from module_faults(path)
        yield from size_faults(path, text)
        of_source = path.startswith("src/")
        if of_source or RULED.search(text):
            tree = ast.parse(text, filename=path)
            yield from tree_faults(path, text, tree)
            passed += failpoint_calls(path, tree) if of_source else ()
            declared |= declared_points(tree) if path == FAIL_POINTS else set()
    yield from failpoint_faults(declared, passed)
    yield from unused_exceptions(modules)


def main() -> int:
    gc.disable()  # trees have no cycles; looking for some in millions of nodes took half of the time
    found = list(faults())
    for fault in found:
        print(fault)
    print(f"house rules: {len(found)} broken" if found else "house rules: kept")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
