#!/bin/sh
# A cap against the kernel's own count: nibble with --ram inside a memory cgroup that is a little larger. The page cache
# counts there, and a process that exceeds it is killed. Skipped where no cgroup can be made (it takes root and a memory
# controller). NIBBLE names the binary.
set -u
here=$(cd "$(dirname "$0")" && pwd)
nibble=${NIBBLE:-build/nibble}
# shellcheck source=tests/support/check.sh
. "$here/support/check.sh"
XDG_CACHE_HOME=$tmp/cache
export XDG_CACHE_HOME
if nm "$nibble" 2>/dev/null | grep -qE '__asan_init|__tsan_init'; then
    echo "skip cgroup: a sanitizer's own memory does not fit the caps here"
    exit 0
fi

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
    exit 0
fi
[ -e "$group/$swap" ] && echo $no_swap >"$group/$swap"
trap 'rmdir "$group"; rm -rf "$tmp"' EXIT

model=$tmp/model.gguf
"$nibble" synth smollm2-135m --layers 12 -o "$model" -q || exit 1
size=$(wc -c <"$model")

inside() { # a command in the cgroup, its stdout in $tmp/out
    code=0
    sh -c 'echo $$ >"$1/cgroup.procs" && shift && exec "$@"' sh "$group" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}

check "the model is larger than the cgroup" [ "$size" -gt $(((cap + beside) << 20)) ]
"$nibble" run "$model" --tokens 1,2,3,4,5 -n 12 --ignore-eos --temp 0 -t 2 >"$tmp/whole" 2>"$tmp/err"
for more in "" "-c 1500" "--packed-cache on" "--kv kv8"; do
    # shellcheck disable=SC2086 # several words
    inside "$nibble" run "$model" --tokens 1,2,3,4,5 -n 12 --ignore-eos --temp 0 -t 2 --ram ${cap}M $more
    check "runs within its cgroup${more:+ with $more}" [ $code = 0 ]
    case $more in *kv*) continue ;; esac
    check "the same answer${more:+ with $more}" cmp -s "$tmp/whole" "$tmp/out"
done
if [ -e "$group/$peak" ]; then
    check "the kernel counted no more than the limit" [ "$(cat "$group/$peak")" -le $(((cap + beside) << 20)) ]
fi
exit $failed
