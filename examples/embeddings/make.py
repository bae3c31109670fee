"""Writes the slices of this example into data/: embeddings of documents, and how they drift hour by hour.

Needs nothing but Python, and always gives the same bytes. In the first hour every document gets its vector;
in each hour after it, sparse deltas push documents towards the topic of that hour, in no order within it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path

DAY = "2024-01-15"
HOURS = 24
DIMENSION = 384
TOPIC = 24  # components that an hour moves
MOVED = 8  # of them by one delta
VALUES = [f"{number / 4096:.4f}" for number in range(-4096, 4097)]
STEPS = [f"{number / 1024:.4f}" for number in range(1, 65)]


def hours(vectors: int, deltas: int, seed: int = 7) -> Iterator[tuple[str, list[str]]]:
    """Name and lines of each slice; of all deltas the first `vectors` make the vectors."""
    chance = random.Random(seed)
    number, share, later = 0, deltas - vectors, HOURS - 1
    for hour in range(HOURS):
        drifting = share * hour // later - share * max(hour - 1, 0) // later
        topic = sorted(chance.sample(range(DIMENSION), TOPIC))
        documents = range(vectors) if hour == 0 else (chance.randrange(vectors) for _ in range(drifting))
        lines = []
        for document in documents:
            number += 1
            second = chance.randrange(3_600_000) / 1000
            at = f"{DAY}T{hour:02}:{int(second // 60):02}:{second % 60:06.3f}Z"
            change = _new(chance) if hour == 0 else _drift(chance, topic)
            lines.append(
                f'{{"delta_id":"d{number:07}","vector_id":"doc-{document:05}","at":"{at}",{change}}}\n'
            )
        yield f"hour-{hour:02}.ndjson", lines


def _new(chance: random.Random) -> str:
    return f'"op":"replace","values":[{",".join(chance.choices(VALUES, k=DIMENSION))}]'


def _drift(chance: random.Random, topic: list[int]) -> str:
    """Most are pushed; some fade, are corrected, are shifted, or are forgotten and begin again from zeros."""
    kind = chance.random()
    if kind < 0.04:
        return '"op":"scale","values":[0.9375]'
    if kind < 0.045:
        return '"op":"delete"'
    at = sorted(chance.sample(topic, MOVED))
    indices = f'"indices":[{",".join(map(str, at))}]'
    if kind < 0.06:
        return f'"op":"offset",{indices},"values":[0.0625]'
    if kind < 0.09:
        return f'"op":"set",{indices},"values":[{",".join(chance.choices(VALUES, k=MOVED))}]'
    return f'"op":"add",{indices},"values":[{",".join(chance.choices(STEPS, k=MOVED))}]'


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the slices of this example.")
    parser.add_argument("--vectors", type=int, default=20_000, metavar="N")
    parser.add_argument("--deltas", type=int, default=200_000, metavar="N")
    parser.add_argument("--to", type=Path, default=Path("data"), metavar="FOLDER")
    asked = parser.parse_args()
    if not 1 <= asked.vectors <= asked.deltas:
        parser.error("there is a delta at least for each vector")
    asked.to.mkdir(parents=True, exist_ok=True)
    for name, lines in hours(asked.vectors, asked.deltas):
        (asked.to / name).write_text("".join(lines))
    sys.stdout.write(f"wrote {asked.deltas} deltas of {asked.vectors} vectors to {asked.to}\n")


if __name__ == "__main__":
    main()
