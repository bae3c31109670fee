#!/bin/sh
# Checks the types of the console's scripts (JSDoc) where a TypeScript compiler is installed; fetches none.
# It is $TSC, a tsc on the path, or that of a node_modules folder here or above.
set -eu
cd "$(dirname "$0")/.."
project=scripts/console.tsconfig.json
npm_tsc() { npm exec --offline --no --package=typescript -- tsc "$@"; }
tsc=${TSC:-$(command -v tsc || true)}
if [ -n "$tsc" ]; then
    "$tsc" --project "$project"
elif command -v npm >/dev/null && npm_tsc --version >/dev/null 2>&1 </dev/null; then
    npm_tsc --project "$project"
else
    echo "console: types not checked, there is no tsc here (npm install --global typescript)"
    exit 0
fi
echo "console: types checked"
