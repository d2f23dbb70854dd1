#!/bin/sh
# Installs what is missing, builds with gcc, runs every test, and tests that use kernels also as on lesser processors;
# builds with clang and the sanitizers, and runs every test again; lints. Tests often wait for a disk, a socket or a
# signal, and a list of them ends with one that runs alone: lint and the builds for the sanitizers run at the same time,
# with lower priority, and nothing waits for lint until the end. The last line counts all of it (a lint or a build that
# fails is one failure). The longest tests and the analyzer are shorter than those of `make test` and `make lint`.
# Exit 0: nothing failed.
set -eu
cd "$(dirname "$0")/.."
started=$(date +%s)
jobs=$(nproc)
logs=build/logs
mkdir -p $logs
rm -f $logs/*
passed=0 failed=0 skipped=0
# Names of tests that depend on the processor: not those that compute with the scalar reference anyway, and not
# cli_processor, which tries all processors itself.
reaches_kernels='^test_(base_cpu|kernels|numbers_|arch_fixtures|engine_workspace|session_bits)|^cli_kernels$'

step() {
    echo "== $* ($(($(date +%s) - started)) s)"
}
fail() {
    failed=$((failed + 1))
    echo "FAILED: $1"
}
# finish NAME CODE: shows a run's log without the compiler's lines, adds its totals.
finish() {
    grep -v -e '^cc ' -e '^gcc ' -e '^clang ' -e '^ar ' -e '^ld ' "$logs/$1" || true
    totals=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$' "$logs/$1" | tail -1)
    if [ -n "$totals" ]; then
        # shellcheck disable=SC2086 # words
        set -- "$1" "$2" $totals
        passed=$((passed + $3)) failed=$((failed + $5)) skipped=$((skipped + $7))
        [ "$2" -eq 0 ] || [ "$5" -gt 0 ] || fail "$1"
    else
        [ "$2" -eq 0 ] || fail "$1"
    fi
}
# The packers have a folder for AVX-512 alone; the kernels of AVX-512 want VNNI too, and are AVX2's without it.
reaches_packers='^test_(base_cpu|numbers_|kernels_map|weights_packed)'
# Batches whose head is estimated from half of each code, which only AVX2's kernels do.
reaches_estimates='^test_engine_shortlist$'
# run NAME COMMAND...
run() {
    name=$1
    shift
    code=0
    "$@" >"$logs/$name" 2>&1 </dev/null || code=$?
    finish "$name" "$code"
}

# beside NAME COMMAND...: like run, in the background; join NAME PROCESS waits for its end and shows its output.
beside() {
    name=$1
    shift
    code=0
    nice -n 15 "$@" >"$logs/$name" 2>&1 </dev/null || code=$?
    echo "$code" >"$logs/$name.new"
    mv "$logs/$name.new" "$logs/$name.code"
}
join() {
    while [ ! -f "$logs/$1.code" ] && kill -0 "$2" 2>/dev/null; do
        sleep 0.2
    done
    finish "$1" "$(cat "$logs/$1.code" 2>/dev/null || echo 1)"
}

trap 'exit 130' INT TERM
# shellcheck disable=SC2086 # processes
trap 'kill $linting $building 2>/dev/null || true' EXIT
linting='' building=''

step "packages to build"
# Without apt it names everything at once, and stops.
command -v apt-get >/dev/null || sh tools/install-deps.sh all
sh tools/install-deps.sh tests
step "gcc, no warnings allowed; meanwhile the other packages and real models (without them their tests are skipped)"
sh tools/install-deps.sh all >"$logs/packages" 2>&1 &
packages=$!
for model in smollm2 gemma3-270m; do
    sh tools/fetch-model.sh $model 2>$logs/fetch-$model || tail -1 $logs/fetch-$model
done &
models=$!
# nvcc takes minutes for three architectures, and for every format of the largest kernels; `make` has them all. Without a
# GPU nothing runs them; with one `make` compiles them for it.
if [ ! -e /dev/nvidiactl ]; then
    export CUDA_FEW=1
    [ "$jobs" -gt 4 ] || export CUDA_ARCH=90
fi
run gcc make -j"$jobs" CC=gcc DEBUG=-g1 TEST_STRIP=1 WERROR=-Werror all tests benches
wait $packages || { cat "$logs/packages" && exit 1; }
wait $models || true
beside lint make -s lint TIDY_STATES=3000 &
linting=$!
{
    beside clang make -j"$jobs" CC=clang WERROR=-Werror asan-build
    beside gcc-tsan make -j"$jobs" tsan-build
} &
building=$!
step "tests; beside them lint and builds for the sanitizers"
run tests env NIBBLE_QUICK=1 sh tools/run-tests.sh build
step "tests as on lesser processors"
# The native run above has already covered a value with all features of this processor.
lesser=
for cpu in x86-64 avx2; do
    [ "$(NIBBLE_CPU=$cpu build/tests/test_base_cpu list)" = "$(build/tests/test_base_cpu list)" ] ||
        lesser="$lesser $cpu"
done
[ -z "$lesser" ] || run lesser env CPUS="$lesser" sh tools/run-tests.sh build "$reaches_kernels"
case $lesser in *avx2*) run estimates env CPUS=avx2 sh tools/run-tests.sh build "$reaches_estimates" ;; esac
# The last one was used above.
for isa in $(build/tests/test_base_cpu list | cut -d/ -f2 | awk '{ NF--; print }'); do
    run "batch-$isa" env NIBBLE_ISA="$isa" sh tools/run-tests.sh build '^test_session_batch$'
done
run packers env CPUS=avx512 sh tools/run-tests.sh build "$reaches_packers"
step "clang, no warnings allowed"
join clang $building
step "tests under the address and undefined-behaviour sanitizers"
run asan env NIBBLE_OFFLINE=1 NIBBLE_MODELS="$PWD/$logs" make -j"$jobs" CC=clang WERROR=-Werror asan
step "threads under the thread sanitizer"
join gcc-tsan $building
run tsan make -j"$jobs" tsan
step "lint"
join lint $linting
linting='' building=''
step "done"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
