"""Computes the tables of the query grammar: run it when grammar.lark or the version of Lark has changed."""

from __future__ import annotations

import io
import pickle

from tidemill.query.language.tables import GRAMMAR, TABLES, build, made_of


def main() -> None:
    grammar, saved = GRAMMAR.read_text("utf-8"), io.BytesIO()
    build(grammar).save(saved)
    tables = {"made_of": made_of(grammar), **pickle.loads(saved.getvalue())}  # noqa: S301 - made here
    TABLES.write_bytes(pickle.dumps(tables, protocol=4))
    print(f"grammar: wrote {TABLES}")


if __name__ == "__main__":
    main()
