#!/bin/sh
# Says what this machine lacks for Tidemill, before anything is installed; prints the Python to use.
# It must run on a bare machine, so it needs nothing but a POSIX shell and never installs anything.
set -u

need_python="3.11" newest_python=14 # the wheels of the locks exist from 3.11 to 3.14
need_java=17
faults=0

complain() {
    faults=1
    printf 'tidemill: %s\n' "$1" >&2
    printf '          %s\n' "$2" >&2
}

python_version() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
}

# --- Python: the first of the candidates that is new enough, and not too new ------------------------
found="" others=""
if [ -n "${PYTHON:-}" ]; then candidates=$PYTHON; else candidates="python3 python3.14 python3.13 python3.12 python3.11"; fi
for candidate in $candidates; do
    version=$(python_version "$candidate") || continue
    major=${version%%.*} minor=${version#*.}
    if [ "$major" -eq 3 ] && [ "$minor" -ge 11 ] && [ "$minor" -le $newest_python ]; then
        found=$candidate
        break
    fi
    others="$others $candidate is $version;"
done
if [ -z "$found" ]; then
    complain "Python $need_python to 3.$newest_python is needed, and none was found (tried: $candidates;${others:- none of them runs})" \
        "install one (Debian/Ubuntu: python3.13 python3.13-venv; macOS: python@3.13), or: make PYTHON=/path/to/python3.13 setup"
elif ! "$found" -c 'import ensurepip, venv' 2>/dev/null; then
    complain "$found cannot make virtual environments (its modules venv and ensurepip are missing)" \
        "install them (Debian/Ubuntu: python$version-venv), or: make PYTHON=/path/to/another/python setup"
fi

# --- Java: JAVA_HOME when it is set, as Spark does, else the one on the path ------------------------
java_hint="install a Java runtime, version $need_java or newer (Debian/Ubuntu: openjdk-17-jre-headless; macOS: openjdk@17), or set JAVA_HOME to one"
if [ -n "${JAVA_HOME:-}" ]; then java=$JAVA_HOME/bin/java where="JAVA_HOME=$JAVA_HOME"; else java=java where="the java on the path"; fi
if ! report=$("$java" -version 2>&1); then
    if [ -n "${JAVA_HOME:-}" ]; then
        complain "Java >= $need_java is needed, and $where has no bin/java that runs" "$java_hint"
    else
        complain "Java >= $need_java is needed, and no java was found on the path" "$java_hint"
    fi
else
    # 'version "17.0.15"', 'version "21"', and the old spelling 'version "1.8.0_392"'
    version=$(printf '%s\n' "$report" | sed -n 's/.*version "\([0-9._]*\).*/\1/p' | head -n 1)
    major=${version%%[._]*}
    [ "$major" != 1 ] || { rest=${version#1.}; major=${rest%%[._]*}; }
    case $major in
        "" | *[!0-9]*) complain "the version of $where cannot be read" "$java_hint" ;;
        *) [ "$major" -ge $need_java ] || complain "Java >= $need_java is needed, and $where is $version" "$java_hint" ;;
    esac
fi

[ $faults -eq 0 ] || exit 1
printf '%s\n' "$found"
