# shellcheck shell=sh disable=SC2034 # failed is read by who reads this
# check.sh - for the scripts tests/cli_*.sh, which read it with `.` and end with `exit $failed`: the folder of the
# script $here, the program $nibble, a folder $tmp that is removed when the script ends, and checks in the form that
# run-tests.sh counts.
here=$(cd "$(dirname "$0")" && pwd)
nibble=${NIBBLE:-build/nibble}
case $nibble in /*) ;; *) nibble=$PWD/$nibble ;; esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
# the user's measurements must not change test runs, nor their times the user's predictions
export XDG_CACHE_HOME="$tmp/cache" NIBBLE_NO_LEARN=1 NO_COLOR=1

# Whether a sanitizer watches the program.
is_sanitized() {
    nm "$nibble" 2>/dev/null | grep -qE '__asan_init|__tsan_init'
}
# need_python NAME: ends the script without python3, which else finds the modules of support/.
need_python() {
    command -v python3 >/dev/null || { echo "skip $1: no python3"; exit 0; }
    export PYTHONPATH="$here/support" PYTHONDONTWRITEBYTECODE=1
}

# Whether the kernels of that name can run here. Those that cannot are refused.
has_kernels() {
    NIBBLE_ISA=$1 "$nibble" info tests/data/arch-gguf/gpt2-q8_0.gguf >/dev/null 2>&1
}
# check NAME COMMAND...: on failure the command's output follows, or else the contents of $tmp/err.
check() {
    name=$1
    shift
    if "$@" >"$tmp/log" 2>&1; then
        echo "ok $name"
        return
    fi
    failed=1
    echo "not ok $name"
    [ -s "$tmp/log" ] || cp "$tmp/err" "$tmp/log" 2>/dev/null
    sed 's/^/    /' "$tmp/log" | tail -20
}
