#!/bin/sh
# Renews requirements.lock: resolves pyproject.toml (all extras) in a fresh environment and pins it all.
# Run it by `make lock` with the oldest supported Python, so that the pins exist for every newer one.
set -eu
cd "$(dirname "$0")/.."
python=$(scripts/doctor.sh)
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
"$python" -m venv "$fresh/venv"
# Spark stays at 4.2: the newest line that the official Delta connector supports too. The build backend is
# pinned as well: an editable install then needs nothing that is not in the lock.
"$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check \
    'pyspark==4.2.*' hatchling editables '.[dev,bench]'
"$fresh/venv/bin/python" -m pip freeze --disable-pip-version-check --exclude tidemill >"$fresh/pins"
{
    echo "# Everything that is installed by \`make setup\`, direct and transitive: runtime, dev and bench."
    echo "# Renew with \`make lock\`; do not edit by hand."
    # Bytewax, a peer of the benchmark, has wheels up to Python 3.12 only; a newer one does without.
    sed "s/^bytewax==.*/&; python_version < '3.13'/" "$fresh/pins"
} >"$fresh/lock"
mv "$fresh/lock" requirements.lock
chmod 644 requirements.lock
