#!/bin/sh
# Checks the types of the console's scripts (JSDoc) where a TypeScript compiler is installed; fetches none.
set -eu
cd "$(dirname "$0")/.."
tsc=${TSC:-$(command -v tsc || true)}
if [ -z "$tsc" ]; then
    echo "console: types not checked, there is no tsc here (npm install --global typescript)"
    exit 0
fi
"$tsc" --project scripts/console.tsconfig.json
echo "console: types checked"
