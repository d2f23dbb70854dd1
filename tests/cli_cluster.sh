#!/bin/sh
# A pipeline of ranks (--devices): the answers of one process, for several kinds of layers and any number of ranks; a
# model larger than a rank's cap; a rank that dies, and a batch that continues. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python cluster

tokens=5
for i in 9 23 7 41 12 30 8 19 27; do tokens=$tokens,$i,$tokens; tokens=$(echo "$tokens" | cut -c1-180); done
tokens=${tokens%,}

# Logits of every position, bit by bit, and the tokens of an answer.
alike() { # MODEL DEVICES OPTIONS...
    model=$1
    devices=$2
    shift 2
    "$nibble" logits "$model" --tokens "$tokens" -o "$tmp/one" -q "$@" 2>"$tmp/err" &&
        "$nibble" logits "$model" --tokens "$tokens" -o "$tmp/ranks" -q "$@" --devices "$devices" 2>"$tmp/err" &&
        cmp "$tmp/one" "$tmp/ranks" || return 1
    one=$("$nibble" run "$model" --tokens 5,6,7 -n 12 --temp 0 --ignore-eos -q "$@" 2>"$tmp/err")
    ranks=$("$nibble" run "$model" --tokens 5,6,7 -n 12 --temp 0 --ignore-eos -q "$@" --devices "$devices" 2>"$tmp/err")
    [ "$one" = "$ranks" ]
}

alike_by_default() { # MODEL: without -c
    one=$("$nibble" run "$1" --tokens 5,6,7 -n 12 --temp 0 --ignore-eos -q 2>"$tmp/err")
    ranks=$("$nibble" run "$1" --tokens 5,6,7 -n 12 --temp 0 --ignore-eos -q --devices cpu,cpu 2>"$tmp/err")
    [ -n "$one" ] && [ "$one" = "$ranks" ]
}

data=$here/data/arch
check "dense layers in 2 ranks" alike "$data/llama" cpu,cpu
check "in 3 ranks, with keys and values of 8 bits" alike "$data/llama" cpu,cpu,cpu --kv kv8
check "one rank" alike "$data/llama" cpu
check "a mixture in 2 ranks" alike "$data/mixtral" cpu,cpu
check "recurrent layers in 3 ranks" alike "$data/lfm2" cpu,cpu,cpu
check "windows in 2 ranks" alike "$data/gemma3" cpu,cpu
check "a context that is the model's default" alike_by_default "$data/qwen4_exp"
check "several streams in 2 ranks, on the check back end" alike "$data/deepseek_v4" check,check

# fails CODE WORDS ARGS...: the exit code, and what stderr says
fails() {
    want=$1
    words=$2
    shift 2
    code=0
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" || code=$?
    [ $code = "$want" ] && { [ -z "$words" ] || grep -q -- "$words" "$tmp/err"; }
}
long=$tokens,$tokens,$tokens
check "which is no longer than the model supports" fails 2 "at most 67 tokens" run "$data/qwen4_exp" --tokens "$long" -n 1
check "more ranks than places to cut" fails 2 "can be cut into at most" \
    run "$data/llama" --tokens 1 -n 1 --devices cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu
check "devices of two kinds are refused" fails 2 "GPUs alone or processors alone" \
    run "$data/llama" --tokens 1 -n 1 --devices cpu,check
check "a place that is none" fails 2 "numbers of GPUs or cpu" run "$data/llama" --tokens 1 -n 1 --devices cpu,
check "a cap that is none" fails 2 "a cap as in" run "$data/llama" --tokens 1 -n 1 --devices cpu:,cpu
check "a plan is refused by name" fails 2 "expected no targets of a plan" \
    run "$data/llama" --tokens 1 -n 1 --devices cpu,cpu --mode a

if is_sanitized; then
    echo "skip ranks' caps: a sanitizer's own memory does not fit them"
else
    "$nibble" synth opt-125m -o "$tmp/large.gguf" -s 1 >"$tmp/out" 2>&1
    check "one process has no memory for the model" fails 3 "RAM" \
        run "$tmp/large.gguf" --tokens 5,6,7 -n 4 -c 64 --no-stream --ram 74M
    check "two with the same cap have" fails 0 "" \
        run "$tmp/large.gguf" --tokens 5,6,7 -n 4 -c 64 --no-stream --ram 74M --devices cpu,cpu
    check "caps of their own: the larger one takes what the smaller one cannot" fails 0 "" \
        run "$tmp/large.gguf" --tokens 5,6,7 -n 4 -c 64 --no-stream --ram 50M --devices cpu:104M,cpu
    check "in either order" fails 0 "" \
        run "$tmp/large.gguf" --tokens 5,6,7 -n 4 -c 64 --no-stream --devices cpu:50M,cpu:104M
    check "a rank's cap that is too small" fails 3 "" \
        run "$tmp/large.gguf" --tokens 5,6,7 -n 4 -c 64 --no-stream --ram 30M --devices cpu,cpu
fi

mkdir "$tmp/chat"
python3 "$here/support/chat-model.py" "$here" "$tmp/chat" || exit 1
python3 "$here/support/cluster-checks.py" "$nibble" "$tmp/chat" "$tmp" cpu,cpu,cpu || failed=1
exit $failed
