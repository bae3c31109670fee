"""The targets of `fuzzing` under atheris, which follows the branches that inputs take in our own code.

`python -m tests.support.fuzzing_atheris TARGET --seconds 60`. `make soak` installs atheris by
requirements-soak.lock, where there is a wheel: on Linux with x86-64, with Python 3.11 to 3.13.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

import atheris

import tidemill

SOURCE: Final = Path(tidemill.__file__).parent
COMPILED: Final = re.compile(r"^from (numba|tidemill\.formats\.compiled) import", re.MULTILINE)


def compiled_modules() -> list[str]:
    """Modules with kernels: Numba cannot compile a function that atheris has changed."""
    return [
        ".".join(("tidemill", *file.relative_to(SOURCE).with_suffix("").parts))
        for file in SOURCE.rglob("*.py")
        if COMPILED.search(file.read_text(encoding="utf-8"))
    ]


with atheris.instrument_imports(include=["tidemill"], exclude=compiled_modules()):
    from tests.support.fuzzing import TARGETS, arguments
    from tests.support.soak_counts import record

STEP: Final = 100


def main() -> None:
    """Ends with the process: libFuzzer exits. It keeps an input that fails in a file, and names it."""
    chosen = arguments()
    target = TARGETS[chosen.target]()
    corpus = Path(tempfile.mkdtemp(prefix="corpus-"))
    for number, sample in enumerate(target.samples):
        (corpus / str(number)).write_bytes(sample)
    read = 0

    def one(content: bytes) -> None:
        nonlocal read
        read += 1
        if read % STEP == 0:  # nothing is called at the end
            record(fuzzed=STEP)
        target(content)

    limits = [f"-max_total_time={chosen.seconds}", f"-seed={chosen.seed}", "-timeout=20"]
    atheris.Setup([sys.argv[0], *limits, str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
