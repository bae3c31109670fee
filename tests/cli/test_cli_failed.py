"""Slices that cannot be read, by the command line: listed with error and next try, tried by hand."""

from __future__ import annotations


def lost(weather):
    """A slice whose file is not there; where it is, and where it belongs."""
    weather.land("13:00", "14:00", "13:20")
    (entry,) = weather.json("ledger")["slices"]
    path = weather.folder / "warehouse" / entry["path"]
    hidden = path.with_name("hidden")
    path.rename(hidden)
    return path, hidden


def test_ledger_slice_and_status_say_why_it_failed_and_when_it_is_tried_next(weather):
    lost(weather)
    assert "1 slice (1 failed)" in weather.run()
    (entry,) = weather.json("ledger", "--status", "failed")["slices"]
    assert entry["error"] == "cannot be read: No such file or directory"
    assert (entry["failures"], entry["retried"]) == (1, 0)
    assert entry["retry_at"] == "2024-01-15T13:30:05Z"
    assert weather.json("status")["streams"][0]["retry_at"] == "2024-01-15T13:30:05Z"
    output = " ".join(weather.cli("ledger", "--status", "failed").out.split())
    assert "failed 1 time, tried again at" in output
    assert "of a failed slice at 2024-01-15T13:30:05Z" in weather.cli("status").out
    shown = weather.cli("slice", entry["id"][:12]).out
    assert "2024-01-15T13:30:05Z" in shown
    assert "retried" not in shown
    assert 'tidemill_failed_slices{stream="weather"} 1.0' in weather.cli("metrics").out
    weather.set("2024-01-15T13:30:05Z")
    weather.run()
    (later,) = weather.json("ledger")["slices"]
    assert (later["failures"], later["retry_at"]) == (2, "2024-01-15T13:30:15Z")


def test_retry_has_the_next_round_try_failed_slices(weather):
    path, hidden = lost(weather)
    weather.run()
    hidden.rename(path)
    assert weather.json("retry", "weather", "--slices") == {"stream": "weather", "slices": 1}
    assert weather.cli("retry", "weather", "--slices").out == "1 slice of weather to be tried again\n"
    weather.run()
    (entry,) = weather.json("ledger")["slices"]
    assert (entry["status"], entry["seq"], entry["retried"], entry["error"]) == ("accepted", 2, 1, None)
    assert weather.json("status")["streams"][0]["retry_at"] is None
    assert weather.cli("retry", "weather", "--slices").out == "weather has no failed slices\n"


def test_slices_or_a_window_not_both(weather):
    refused = weather.cli("retry", "weather", "--slices", "--window", "2024-01-15T13:00:00Z")
    assert refused.code == 2
    assert "--slices and --window cannot be combined" in refused.err
