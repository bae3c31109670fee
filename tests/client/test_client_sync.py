"""The blocking client is made from the asyncio one; nobody edited the result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_blocking_client_is_what_the_script_makes():
    command = [sys.executable, "scripts/sync_client.py", "--check"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert made.returncode == 0, made.stdout + made.stderr
