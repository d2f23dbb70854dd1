#!/bin/sh
# Fuzzes each target for some seconds, beginning with its corpus in the tree. New inputs that reach new code stay in
# BUILD/corpus. A crash is written to BUILD/crashes: fix it, then add the file to tests/data/fuzz/NAME/. A target whose
# inputs are better short says so in tests/fuzz/TARGET.options: "max_len = N".
#   run-fuzz.sh BUILD SECONDS TARGET...
set -eu
build=$1 seconds=$2
shift 2
[ $# -gt 0 ] || { echo "no fuzz target: tests/fuzz/fuzz_*.c" >&2; exit 1; }
mkdir -p "$build/crashes"
bad=0
for target in "$@"; do
    name=${target#fuzz_}
    mkdir -p "$build/corpus/$name"
    seeds=tests/data/fuzz/$name
    [ -d "$seeds" ] || seeds=
    longest=65536
    [ -f "tests/fuzz/$target.options" ] &&
        longest=$(sed -n 's/^max_len *= *//p' "tests/fuzz/$target.options")
    echo "$target: $seconds s"
    # shellcheck disable=SC2086 # no seeds: no argument
    "$build/fuzz/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len="$longest" \
        -artifact_prefix="$build/crashes/$name-" "$build/corpus/$name" $seeds >"$build/$target.log" 2>&1 || {
        echo "$target: FAILED"
        tail -40 "$build/$target.log"
        bad=1
    }
    tail -1 "$build/$target.log"
done
exit $bad
