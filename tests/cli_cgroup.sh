#!/bin/sh
# The limits of control groups: as the cap, in a made-up tree, and against the kernel's own count, with --ram and without.
# The page cache counts there, and a process that exceeds the limit is killed. The second part is skipped where no cgroup
# can be made (it takes root and a memory controller). NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
if is_sanitized; then
    echo "skip cgroup: a sanitizer's own memory does not fit the caps here"
    exit 0
fi

model=$tmp/model.gguf
"$nibble" synth smollm2-135m --layers 12 -o "$model" -q || exit 1
size=$(wc -c <"$model")
tokens="--tokens 1,2,3,4,5 -n 12 --ignore-eos --temp 0"
# shellcheck disable=SC2086 # several words
"$nibble" run "$model" $tokens -t 2 >"$tmp/whole" 2>"$tmp/err"

fake=$tmp/fake
mkdir -p "$fake/proc/self" "$fake/sys/fs/cgroup/pod/box"
echo '0::/pod/box' >"$fake/proc/self/cgroup"
echo '31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw' >"$fake/proc/self/mountinfo"
echo 100000 100000 >"$fake/sys/fs/cgroup/pod/box/cpu.max"
limited() { # limited BYTES ARGUMENT...: in a group of BYTES
    echo "$1" >"$fake/sys/fs/cgroup/pod/memory.max"
    shift
    code=0
    NIBBLE_CGROUPS=$fake "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
for auto in "" "--ram auto"; do
    # shellcheck disable=SC2086
    limited $((38 << 20)) run "$model" $tokens $auto
    check "the limit is the cap: weights are streamed${auto:+ with $auto}" grep -q 'are streamed from disk' "$tmp/err"
    check "with the same answer" sh -c "[ $code = 0 ] && cmp -s '$tmp/whole' '$tmp/out'"
    check "one line names it" [ "$(grep -c 'ram 34.0 MiB: /sys/fs/cgroup/pod/memory.max is 38.0 MiB' "$tmp/err")" = 1 ]
done
# shellcheck disable=SC2086
limited $((38 << 20)) run "$model" $tokens --ram 1G
check "a cap that is asked for applies" sh -c "[ $code = 0 ] && ! grep -q memory.max '$tmp/err'"
# shellcheck disable=SC2086
limited $((12 << 20)) run "$model" $tokens
check "a limit below the minimum exits 3" sh -c "[ $code = 3 ] && grep -q 'is the smallest that works' '$tmp/err'"
limited max plan "$model" -c 128
check "no limit is no cap" sh -c "[ $code = 0 ] && grep -q 'no cap' '$tmp/out' && ! grep -q memory.max '$tmp/err'"
check "threads follow the quota" grep -q ', 1 thread$' "$tmp/out"

cap=32
beside=3 # page tables, the kernel's stacks, and the shell that starts it
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    group=/sys/fs/cgroup/nibble-test-$$
    limit=memory.max peak=memory.peak swap=memory.swap.max no_swap=0
    echo +memory >/sys/fs/cgroup/cgroup.subtree_control 2>/dev/null
else
    group=/sys/fs/cgroup/memory/nibble-test-$$
    limit=memory.limit_in_bytes peak=memory.max_usage_in_bytes swap=memory.memsw.limit_in_bytes
    no_swap=$(((cap + beside) << 20))
fi
if ! mkdir "$group" 2>/dev/null || ! echo $(((cap + beside) << 20)) 2>/dev/null >"$group/$limit"; then
    rmdir "$group" 2>/dev/null
    echo "skip cgroup: no memory cgroup can be made here"
    exit $failed
fi
[ -e "$group/$swap" ] && echo $no_swap >"$group/$swap"
trap 'rmdir "$group"; rm -rf "$tmp"' EXIT

inside() { # a command in the cgroup, its stdout in $tmp/out
    code=0
    sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$group" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}

check "the model is larger than the cgroup" [ "$size" -gt $(((cap + beside) << 20)) ]
for more in "" "-c 1500" "--packed-cache on" "--kv kv8"; do
    # shellcheck disable=SC2086
    inside "$nibble" run "$model" $tokens -t 2 --ram ${cap}M $more
    check "runs within its cgroup${more:+ with $more}" [ $code = 0 ]
    case $more in *kv*) continue ;; esac
    check "the same answer${more:+ with $more}" cmp -s "$tmp/whole" "$tmp/out"
done
for auto in "" "--ram auto"; do
    # shellcheck disable=SC2086
    inside "$nibble" run "$model" $tokens -t 2 $auto
    check "${auto:-no option}: an answer within the cgroup" sh -c "[ $code = 0 ] && cmp -s '$tmp/whole' '$tmp/out'"
done
if [ -e "$group/$peak" ]; then
    check "the kernel counted no more than the limit" [ "$(cat "$group/$peak")" -le $(((cap + beside) << 20)) ]
fi
exit $failed
