#!/bin/sh
# A pipeline of ranks on several hosts (--hosts): namespaces of the network stand for hosts. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python hosts

# fails CODE WORDS ARGS...: the exit code, and what stderr says
fails() {
    want=$1
    words=$2
    shift 2
    code=0
    "$nibble" run "$here/data/arch/llama" --tokens 1 -n 1 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    [ $code = "$want" ] && { [ -z "$words" ] || grep -q -- "$words" "$tmp/err"; }
}
# file LINES...: is $tmp/hosts
file() {
    printf '%s\n' "$@" >"$tmp/hosts"
}
check "a file of hosts that is not there" fails 2 "no such file of hosts" --hosts "$tmp/none"
file "127.0.0.1" "" "gpu1 cpu turbo=1"
check "a word that a line does not have" fails 2 "line 3: expected ram=, vram=" --hosts "$tmp/hosts"
file "127.0.0.1 cpu,cpu"
check "hosts and devices together" fails 2 "found both" --hosts "$tmp/hosts" --devices cpu
check "ranks of one host over TCP" fails 0 "" --hosts "$tmp/hosts"
file "127.0.0.1" "gpu1"
check "shares of every layer on several hosts" fails 2 "devices of one host" --hosts "$tmp/hosts" --split-mode tensor
check "a first host that others do not reach" fails 2 "as the others reach it" --hosts "$tmp/hosts"
code=0
echo secret | "$nibble" --rank tcp:1,1,127.0.0.1 2>"$tmp/err" || code=$?
check "a rank without a secret" test $code = 2

file "127.0.0.1 cpu,cpu rates=$tmp/slow.json"
python3 "$here/support/plan-ranks-checks.py" "$nibble" "$tmp" || failed=1
check "rates of files are for plans" fails 2 "for 'nibble plan'" --hosts "$tmp/hosts"

prefix=nib$$
if ! ip netns add "${prefix}m" 2>/dev/null || ! ip -n "${prefix}m" link add v1 type veth peer name v2 2>/dev/null; then
    ip netns delete "${prefix}m" 2>/dev/null
    echo "skip several hosts: no network namespaces here"
    exit $failed
fi
ip netns delete "${prefix}m"
mkdir "$tmp/chat"
python3 "$here/support/chat-model.py" "$here" "$tmp/chat" || exit 1
python3 "$here/support/hosts-checks.py" "$nibble" "$here" "$tmp" "$prefix" || failed=1
exit $failed
