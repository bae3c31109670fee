"""Small parts into one for each day in plain pyarrow, as anybody would write it; run as `… JOB OUT`.

It is a yardstick: it reads, sorts and writes, keeps no log and no provenance, and syncs nothing.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ORDER = [(name, "ascending") for name in ("tenant", "event_time", "arrival", "line")]
FEW_VALUES = ["tenant", "event_type", "arrival", "watermark", "slice"]


def run(parts: dict[str, list[str]], out: Path) -> None:
    for day, files in parts.items():
        rows = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
        pq.write_table(
            rows.sort_by(ORDER),
            out / f"{day}.parquet",
            compression="zstd",
            compression_level=1,
            use_dictionary=FEW_VALUES,
            write_statistics=["tenant", "event_time", "watermark", "slice"],
        )


def main() -> None:
    job, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    started = time.perf_counter()
    run(job, out)
    print(json.dumps({"seconds": time.perf_counter() - started}))


if __name__ == "__main__":
    main()
