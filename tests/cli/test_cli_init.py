"""`init`: the template as it is, sample data that fits it, nothing overwritten by accident."""

from __future__ import annotations

import json

from tidemill.cli.sample import sample_files
from tidemill.config import read_template
from tidemill.model.time import HOUR, MINUTE, parse_instant

NOW = parse_instant("2024-01-15T14:23:45Z")


def lines_of(now):
    return {file.name: file.content.splitlines() for file in sample_files(now)}


def test_init_writes_the_template_and_three_files(cli, tmp_path):
    done = cli("init", tmp_path / "shop", "--output", "json")
    files = ["tidemill.yaml", "data/requests-1.ndjson", "data/requests-2.ndjson", "data/requests-late.ndjson"]
    assert done.json["files"] == files
    assert (tmp_path / "shop" / "tidemill.yaml").read_text("utf-8") == read_template("requests")
    assert done.json["next"][0] == f"cd {tmp_path / 'shop'}"
    assert done.json["next"][-1] == "tidemill verify"


def test_init_tells_the_next_steps_unless_it_is_to_be_quiet(cli, tmp_path):
    assert "tidemill run --once" in cli("init", tmp_path / "a").out
    assert "tidemill run --once" not in cli("init", tmp_path / "b", "--quiet").out


def test_init_refuses_to_overwrite_unless_forced(cli, tmp_path):
    (tmp_path / "tidemill.yaml").write_text("mine")
    refused = cli("init", tmp_path)
    assert refused.code == 2
    assert "error[input]" in refused.err
    assert "--force" in refused.err
    assert (tmp_path / "tidemill.yaml").read_text() == "mine"
    assert not (tmp_path / "data").exists()
    assert cli("init", tmp_path, "--force").code == 0
    assert (tmp_path / "tidemill.yaml").read_text("utf-8") == read_template("requests")


def test_init_where_no_folder_can_be_made_is_a_storage_error(cli, tmp_path):
    (tmp_path / "file").write_text("")
    done = cli("init", tmp_path / "file" / "shop")
    assert done.code == 3
    assert done.err.startswith(f"error[storage]: {tmp_path}")


def test_the_sample_is_the_same_apart_from_the_time():
    one, two = lines_of(NOW), lines_of(NOW + HOUR)
    assert {name: len(lines) for name, lines in one.items()} == {
        "requests-1.ndjson": 200,
        "requests-2.ndjson": 187,
        "requests-late.ndjson": 40,
    }
    assert lines_of(NOW) == one
    first, second = (json.loads(lines["requests-1.ndjson"][0]) for lines in (one, two))
    assert second.pop("ts") - first.pop("ts") == HOUR // 1000
    assert first == second


def test_the_sample_lies_in_the_hour_before_now():
    times = [json.loads(line)["ts"] * 1000 for line in lines_of(NOW)["requests-1.ndjson"]]
    assert min(times) >= NOW - HOUR - MINUTE
    assert max(times) < NOW
