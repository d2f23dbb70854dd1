#!/bin/sh
# Runs the tests of a build folder: BUILD/tests/test_*, the corpus replays BUILD/tests/fuzz_* and the scripts
# tests/cli_*.sh. One line for each with its time and its processor time, then the totals over all of them; exit 0 only
# when something ran and nothing failed.
#   run-tests.sh BUILD [PATTERN]     PATTERN: an extended regular expression for the names
# A test gets an empty TMPDIR and cache folder of its own, and TEST_TIMEOUT seconds (120). JOBS tests run at a time: one
# more than there are processors unless it is set, because some wait for a signal, a socket or a disk.
# CPUS: processors to act as, values of NIBBLE_CPU (src/base/cpu.h) separated by spaces; "native", the default, is the
# processor itself. Every test runs once for each value whose features the processor has; each other value counts as one
# skip. The totals are cmocka's; for scripts the lines "ok NAME", "not ok NAME" and "skip NAME", or without such lines
# the exit code (0 passed, 77 skipped). A crash or a timeout is one failure. Reasons for skips are the lines "skipped:
# REASON" (tests/support/skip.h) and "skip NAME: REASON".
set -u
LC_ALL=C
export LC_ALL

# Passed, failed and skipped of a cmocka log; "none" when it has no summary (crashed).
count_cmocka() {
    awk '
        /^\[==========\] [0-9]+ test\(s\) run\.|^\[==========\] .*: [0-9]+ test\(s\) run\./ { seen = 1 }
        /^\[  PASSED  \] [0-9]+ test/ { passed += $4 }
        /^\[  FAILED  \] [0-9]+ test/ { failed += $4 }
        /^\[  FAILED  \] .*: [0-9]+ test/ { failed += $(NF - 3) }
        /^\[  SKIPPED \] [0-9]+ test/ { skipped += $4 }
        END { if (seen) print passed + 0, failed + 0, skipped + 0; else print "none" }' "$1"
}

count_script() {
    awk '
        /^ok / { passed++ } /^not ok / { failed++ } /^skip / { skipped++ }
        END { if (passed + failed + skipped) print passed + 0, failed + 0, skipped + 0; else print "none" }' "$1"
}

reasons() {
    sed -n 's/^skipped: //p; s/^skip [^:]*: //p' "$1" | sort -u | paste -sd ';' | sed 's/;/; /g'
}

# one CPU/TEST OUT
one() {
    cpu=${1%%/*} test=${1#*/} out=$2/${1%%/*}
    name=${test##*/} name=${name%.sh}
    unset NIBBLE_CPU CPUS
    [ "$cpu" = native ] || export NIBBLE_CPU="$cpu"
    TMPDIR=$out/$name.tmp
    XDG_CACHE_HOME=$TMPDIR/cache # a stored profile of this machine would change plans
    export TMPDIR XDG_CACHE_HOME
    mkdir -p "$TMPDIR"
    log=$out/$name.log
    start=$(date +%s%N)
    case $name in
    fuzz_*)
        mkdir -p "$TMPDIR/empty"
        corpus=tests/data/fuzz/${name#fuzz_}
        [ -d "$corpus" ] || corpus=$TMPDIR/empty
        timeout -k 5 "$TEST_TIMEOUT" "$test" "$corpus" >"$log" 2>&1 </dev/null
        ;;
    cli_*) timeout -k 5 "$TEST_TIMEOUT" sh "$test" >"$log" 2>&1 </dev/null ;;
    *) timeout -k 5 "$TEST_TIMEOUT" "$test" >"$log" 2>&1 </dev/null ;;
    esac
    code=$?
    ms=$((($(date +%s%N) - start) / 1000000))
    times >"$out/$name.times" # times of the children of this shell: not in a pipe, whose shell has no children
    cpu_s=$(awk 'END { for (i = 1; i <= 2; i++) { split($i, t, "m"); s += t[1] * 60 + t[2] } printf "%.2f", s }' \
        "$out/$name.times")
    rm -rf "$TMPDIR"
    case $name in
    test_*) counts=$(count_cmocka "$log") ;;
    *) counts=$(count_script "$log") ;;
    esac
    if [ "$counts" = none ]; then
        case $code in
        0) counts="1 0 0" ;;
        77) counts="0 0 1" ;;
        *) counts="0 1 0" ;;
        esac
    fi
    # shellcheck disable=SC2086 # three numbers
    set -- $counts
    passed=$1 failed=$2 skipped=$3
    # A sanitizer may report after the last test has passed.
    [ "$code" -ne 0 ] && [ "$code" -ne 77 ] && [ "$failed" -eq 0 ] && failed=1
    word=ok
    [ "$passed" -eq 0 ] && [ "$skipped" -gt 0 ] && word=skipped
    [ "$failed" -gt 0 ] && word=FAILED
    [ "$code" -eq 124 ] && word="FAILED (over $TEST_TIMEOUT s)"
    echo "$passed $failed $skipped $cpu_s" >"$out/$name.count"
    text=$(printf '%-36s %3d.%03d s %6s s cpu  %4d passed' "$name" $((ms / 1000)) $((ms % 1000)) "$cpu_s" "$passed")
    [ "$failed" -gt 0 ] && text="$text, $failed failed"
    [ "$skipped" -gt 0 ] && text="$text, $skipped skipped ($(reasons "$log"))"
    [ "$cpu" = native ] || text="$text  $cpu"
    printf '%s  %s\n' "$text" "$word"
    if [ "$failed" -gt 0 ]; then
        echo "--- $name on $cpu, exit code $code: what it printed, without the tests that passed"
        grep -v -e '^\[ RUN      \]' -e '^\[       OK \]' -e '^ok ' "$log" | tail -60
        echo "---"
    fi
    return 0
}

if [ "${1:-}" = --one ]; then
    one "$2" "$3"
    exit 0
fi

build=${1:-build}
pattern=${2:-.}
TEST_TIMEOUT=${TEST_TIMEOUT:-120}
BUILD=$(cd "$build" && pwd) || exit 2
NIBBLE=$BUILD/nibble
# As in the system's malloc, a huge size from a damaged file gives NULL, which the code must handle.
ASAN_OPTIONS=${ASAN_OPTIONS:-allocator_may_return_null=1:detect_stack_use_after_return=1}
UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
export TEST_TIMEOUT BUILD NIBBLE ASAN_OPTIONS UBSAN_OPTIONS
# Scripts start python3 some hundred times: the program itself, not a version manager's script, which takes three times
# as long.
python=$(python3 -c 'import sys; print(sys.executable)' 2>/dev/null) && [ -x "$python" ] &&
    PATH=$(dirname "$python"):$PATH
out=$BUILD/test-logs
rm -rf "$out"
mkdir -p "$out"
list=$out/list
# Whether this processor has the features that NIBBLE_CPU leaves. tests/test_base_cpu.c lists what it finds.
can_act_as() {
    case $1 in native | x86-64) return 0 ;; esac
    [ -x "$BUILD/tests/test_base_cpu" ] || return 0
    NIBBLE_CPU=$1 "$BUILD/tests/test_base_cpu" list | grep -qw "${1##*,}"
}
cpus=
for cpu in ${CPUS:-${NIBBLE_CPU:-native}}; do
    if can_act_as "$cpu"; then
        cpus="$cpus $cpu"
    else
        echo "everything as on $cpu: skipped, this processor is less"
        mkdir -p "$out/$cpu"
        echo "0 0 1" >"$out/$cpu/all.count"
    fi
done
for test in "$BUILD"/tests/test_* "$BUILD"/tests/fuzz_* tests/cli_*.sh; do
    [ -f "$test" ] || continue
    case $test in
    *.o | *.d) continue ;;
    *.sh) [ -x "$NIBBLE" ] || continue ;; # a build of the tests alone has no command to test
    esac
    name=${test##*/} name=${name%.sh}
    # Left over from a source file that was removed.
    case $name in
    test_*) [ -f "tests/$name.c" ] || continue ;;
    fuzz_*) [ -f "tests/fuzz/$name.c" ] || continue ;;
    esac
    for cpu in $cpus; do
        echo "$name $cpu/$test"
    done
done | PATTERN=$pattern awk '$1 ~ ENVIRON["PATTERN"] { sub(/^[^ ]* /, ""); print }' >"$list.all"
# The longest tests first, so that no processor waits for the last one; and not several beside each other that mostly
# wait (cli_signals, cli_completion, cli_hub).
long='cli_signals cli_real_models test_session_batch cli_plan test_engine_caps test_engine_shortlist cli_completion
    test_session_prefix
    test_exec_cuda_reference test_formats_worst test_engine_stream test_quantize_resume test_quantize_methods cli_hub test_engine_residual_disk
    cli_quantize test_session_bits test_weights_packed cli_serve cli_errors test_session_batch_random test_engine_residual
    test_arch_fixtures test_exec_cuda_demote test_engine_cancel test_exec_check test_plan_best
    cli_batch cli_kernels test_exec_cuda_roles test_exec_cuda_caps test_exec_cuda_in_place test_session_kv cli_trace
    test_session_draft test_exec_visits test_session_fair test_weights_device_blocks test_tokenizer_work test_kernels_linear
    test_kernels_amx_rows test_exec_cuda_shortlist cli_compat cli_basic test_engine_stack test_jinja_template
    cli_install'
for name in $long; do
    grep -E "/$name(\.sh)?\$" "$list.all"
done >"$list"
grep -vxFf "$list" "$list.all" >>"$list"

if [ -z "$cpus" ]; then # none of CPUS, which is no failure
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
xargs -P "${JOBS:-$(($(nproc) + 1))}" -I '{}' sh "$0" --one '{}' "$out" <"$list"

counts() {
    for file in "$out"/*/*.count; do
        [ -f "$file" ] && cat "$file"
    done
}
missing=$(($(wc -l <"$list") - $(find "$out" -name '*.count' ! -name all.count | wc -l)))
# shellcheck disable=SC2046
set -- $(counts | awk '{ p += $1; f += $2; s += $3; c += $4 } END { print p + 0, f + 0, s + 0, int(c) }')
failed=$(($2 + missing))
echo "$4 s of processor time"
echo "$1 passed, $failed failed, $3 skipped"
[ "$failed" -eq 0 ] && [ "$1" -gt 0 ]
