# shellcheck shell=sh disable=SC2034 # failed is read by who reads this
# check.sh - for the scripts tests/cli_*.sh, which read it with `.` and end with `exit $failed`: a folder $tmp that is
# removed when the script ends, and checks in the form that run-tests.sh counts.
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
# times of test runs must not change the user's predictions
NIBBLE_NO_LEARN=1
export NIBBLE_NO_LEARN

# Whether the kernels of that name can run here. Those that cannot are refused.
has_kernels() {
    NIBBLE_ISA=$1 "${NIBBLE:-build/nibble}" info tests/data/arch-gguf/gpt2-q8_0.gguf >/dev/null 2>&1
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
