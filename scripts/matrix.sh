#!/bin/sh
# Runs `make demo` and `make test` in an empty clone of what is committed, once for each Python and each Java of
# this machine, and prints a table. Arguments are handed to pytest. Exits 1 when one of them failed.
#   PYTHONS='python3.12 /opt/python3.13/bin/python'   instead of python3.11 to python3.14 on the path
#   JAVAS='/usr/lib/jvm/a /usr/lib/jvm/b'             instead of JAVA_HOME and those in /usr/lib/jvm
#   TARGETS='demo'                                    instead of 'demo test'
set -u
cd "$(dirname "$0")/.."
source=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

python_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
java_of() { "$1/bin/java" -version 2>&1 | sed -n 's/.*version "\([0-9._]*\).*/\1/p' | head -n 1; }

# Each version once: the same one is often there under several names.
pythons="" seen=" "
for python in ${PYTHONS:-python3.11 python3.12 python3.13 python3.14 python3}; do
    version=$(python_of "$python") || continue
    minor=${version#3.} minor=${minor%%.*}
    case $seen in *" $minor "*) continue ;; esac
    PYTHON=$python scripts/doctor.sh >"$work/doctor" 2>&1 || grep -q Java "$work/doctor" || continue
    pythons="$pythons $python" seen="$seen$minor "
done
javas="" seen=" "
for java in ${JAVAS:-${JAVA_HOME:-} /usr/lib/jvm/*}; do
    version=$(java_of "$java") && [ -n "$version" ] || continue
    case $seen in *" $version "*) continue ;; esac
    [ "${version%%.*}" -ge 17 ] || continue
    javas="$javas $java" seen="$seen$version "
done
[ -n "$pythons" ] || { echo "matrix: no Python from 3.11 to 3.14 that can make virtual environments" >&2; exit 1; }
[ -n "$javas" ] || { echo "matrix: no Java from 17 on (looked at JAVA_HOME and /usr/lib/jvm)" >&2; exit 1; }
[ -z "$(git status --porcelain)" ] || echo "matrix: what is not committed is not in the clones" >&2

table=$work/table failed=0
printf '%-10s %-10s %-6s %-8s %8s  %s\n' python java target result seconds said >"$table"
for python in $pythons; do
    for java in $javas; do
        clone=$work/clone
        rm -rf "$clone"
        git clone --quiet "$source" "$clone" || exit 1
        for target in ${TARGETS:-demo test}; do
            started=$(date +%s) result=passed
            echo "matrix: make $target with Python $(python_of "$python") and Java $(java_of "$java")" >&2
            [ "$target" = test ] && args=$* || args=""
            (cd "$clone" && PYTHON=$python JAVA_HOME=$java make "$target" ARGS="$args") >"$work/said" 2>&1 || {
                result=FAILED failed=1
                tail -n 40 "$work/said" >&2
            }
            printf '%-10s %-10s %-6s %-8s %8s  %s\n' "$(python_of "$python")" "$(java_of "$java")" \
                "$target" $result $(($(date +%s) - started)) "$(grep . "$work/said" | tail -n 1)" >>"$table"
        done
    done
done
cat "$table"
exit $failed
