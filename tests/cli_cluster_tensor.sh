#!/bin/sh
# Ranks that share every layer (--split-mode tensor): the answers of one process within the order of their sums, what
# they refuse, and ranks that die. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python cluster_tensor

tokens=5,9,5,23,7,5,41,12,5,30,8,19,27,5,11,6,5,7,9,40,3,21,5,17,2,33

# Logits of every position within BOUND of the largest one, and the same tokens. alone: the options of one process.
alone=
alike() { # BOUND MODEL DEVICES OPTIONS...
    bound=$1
    model=$2
    devices=$3
    shift 3
    # shellcheck disable=SC2086 # several words
    "$nibble" logits "$model" --tokens "$tokens" -o "$tmp/one" -q "$@" $alone 2>"$tmp/err" &&
        "$nibble" logits "$model" --tokens "$tokens" -o "$tmp/ranks" -q "$@" --devices "$devices" --split-mode tensor \
            2>"$tmp/err" && python3 "$here/support/logits-near.py" "$tmp/one" "$tmp/ranks" "$bound" || return 1
    # shellcheck disable=SC2086
    one=$("$nibble" run "$model" --tokens 5,6,7 -n 12 --temp 0 --ignore-eos -q "$@" $alone 2>"$tmp/err")
    ranks=$("$nibble" run "$model" --tokens 5,6,7 -n 12 --temp 0 --ignore-eos -q "$@" --devices "$devices" \
        --split-mode tensor 2>"$tmp/err")
    [ -n "$one" ] && [ "$one" = "$ranks" ]
}

data=$here/data/arch
check "grouped heads in 2 ranks" alike 2e-6 "$data/llama" cpu,cpu
check "in any number of threads" alike 2e-6 "$data/llama" cpu,cpu -t 3
check "with keys and values of 8 bits" alike 1e-3 "$data/llama" cpu,cpu --kv kv8
check "one head of keys and values, which both ranks have" alike 2e-6 "$data/gemma" cpu,cpu
check "a part of a group of heads in each of 4 ranks" alike 2e-6 "$data/llama" cpu,cpu,cpu,cpu
check "fused projections in 4 ranks" alike 2e-6 "$data/gpt_neox" cpu,cpu,cpu,cpu
check "transposed matrices and biases in 3 ranks" alike 2e-6 "$data/gpt2" cpu,cpu,cpu
check "norms of heads, and windows" alike 2e-6 "$data/gemma3" cpu,cpu
check "both sub-layers of one input" alike 2e-6 "$data/phi" cpu,cpu
check "a part of every expert" alike 2e-6 "$data/mixtral" cpu,cpu
check "with a shared expert" alike 2e-6 "$data/qwen2_moe" cpu,cpu
check "with biases, and rows of gate and up in turn" alike 2e-6 "$data/gpt_oss" cpu,cpu
check "beside a dense layer" alike 4e-6 "$data/gemma4_moe" cpu,cpu
check "heads of latent attention" alike 2e-6 "$data/deepseek_v2" cpu,cpu
check "with queries of low rank, in 4 ranks" alike 2e-6 "$data/deepseek_v3" cpu,cpu,cpu,cpu
check "channels of a short convolution" alike 2e-6 "$data/lfm2" cpu,cpu
check "heads of a delta net, beside experts" alike 6e-6 "$data/qwen3_next" cpu,cpu
check "with a decay of each channel" alike 2e-6 "$data/kimi_linear" cpu,cpu
check "a state space beside attention" alike 2e-6 "$data/falcon_h1" cpu,cpu
check "with norms of groups" alike 2e-6 "$data/nemotron_h" cpu,cpu
"$nibble" quantize "$data/qwen3_5" -o "$tmp/tiled.gguf" --type f32 >"$tmp/out" 2>&1
check "a delta net whose heads take the groups in turn" alike 4e-6 "$tmp/tiled.gguf" cpu,cpu
check "and a part of them in each of 4 ranks" alike 4e-6 "$tmp/tiled.gguf" cpu,cpu,cpu,cpu
check "on the check back end" alike 2e-6 "$data/llama" check,check

# fails CODE WORDS ARGS...: the exit code, and what stderr says
fails() {
    want=$1
    words=$2
    shift 2
    code=0
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" || code=$?
    [ $code = "$want" ] && grep -q -- "$words" "$tmp/err"
}
refused() { # WORDS MODEL DEVICES
    fails 2 "$1" run "$data/$2" --tokens 1 -n 1 --devices "$3" --split-mode tensor
}
drafts() { # a draft model is whole, in rank 0
    "$nibble" run "$data/llama" --tokens 5,6,7 -n 4 --ignore-eos --draft "$data/llama" --devices cpu,cpu \
        --split-mode tensor >"$tmp/out" 2>"$tmp/err" && [ -s "$tmp/out" ] && ! grep -q "no effect" "$tmp/err"
}
check "a draft model" drafts
check "a selective scan is refused by name" refused "selective scan" jamba cpu,cpu
check "a norm of all heads of a state is" refused "norm of all heads" mamba2 cpu,cpu
check "more ranks than heads of a state" refused "2 parts" qwen3_next cpu,cpu,cpu
check "compressed attention is" refused "compressed attention" deepseek_v4 cpu,cpu
check "a norm of all heads is" refused "norm of all heads" olmo3 cpu,cpu
check "and more ranks than heads" refused "2 parts" llama cpu,cpu,cpu
check "a mode that is none" fails 2 "expected layer or tensor" run "$data/llama" --tokens 1 -n 1 --devices cpu,cpu \
    --split-mode diagonal

if is_sanitized; then
    echo "skip streamed shares: a sanitizer's own memory does not fit the caps"
else
    "$nibble" synth opt-125m -o "$tmp/large.gguf" -s 1 >"$tmp/out" 2>&1
    large() { # OPTIONS...
        "$nibble" run "$tmp/large.gguf" --tokens 5,6,7 -n 6 -c 64 --temp 0 --ignore-eos -q --activation a16 "$@" 2>"$tmp/err"
    }
    same() { # OPTIONS...
        one=$(large)
        [ -n "$one" ] && [ "$one" = "$(large "$@" --split-mode tensor)" ]
    }
    check "blocks of a file, with activations of 16 bits" alike 2e-3 "$tmp/large.gguf" cpu,cpu --activation a16
    check "a model larger than a rank's cap" same --devices cpu,cpu --no-stream --ram 130M
    check "one rank streams, the other does not" same --devices cpu:70M,cpu
fi

mkdir "$tmp/chat" "$tmp/recurrent" "$tmp/batches"
python3 "$here/support/chat-model.py" "$here" "$tmp/chat" || exit 1
python3 "$here/support/chat-model.py" "$here" "$tmp/recurrent" qwen3_5 || exit 1

# The same on fake GPUs (tests/support/fakecuda.c), whose memory the processes share.
library=$(cd "$(dirname "$nibble")" && pwd)/tests/libfakecuda.so
if [ -f "$library" ]; then
    alone="--backend cuda"
    export NIBBLE_CUDA="$library"
    check "on 2 GPUs" alike 1e-3 "$data/llama" 0,0 --kv f16
    check "on 3, with unequal shares of the head" alike 1e-3 "$data/gpt2" 0,0,0 --kv f16
    check "on 4, with biases" alike 1e-3 "$data/gpt_neox" 0,0,0,0 --kv f16
    check "on 2, with a part of every expert" alike 1e-3 "$data/qwen3_moe" 0,0 --kv f16
    check "on 2, with latent attention" alike 1e-3 "$data/deepseek_v3" 0,0 --kv f16
    check "on 2, with channels of a convolution" alike 1e-3 "$data/lfm2" 0,0 --kv f16
    check "on 2, with heads of a delta net" alike 1e-3 "$tmp/tiled.gguf" 0,0 --kv f16
    check "on 2, with norms after the sums" alike 1e-3 "$data/gemma3" 0,0 --kv f16
    is_sanitized || check "sums in products, and the head in shares" alike 2e-2 "$tmp/large.gguf" 0,0 --kv f16 -c 64
    check "embeddings between answers" python3 "$here/support/cluster-embeds.py" "$nibble" "$tmp/chat" 0,0 --kv f16
    check "a GPU without memory for its share" fails 3 "memory for the whole share" \
        run "$data/llama" --tokens 5,6,7 -n 1 --kv f16 -ngl 1 --devices 0,0 --split-mode tensor
    unset NIBBLE_CUDA
    alone=
else
    echo "skip shares on GPUs: $library is not there"
fi

# Both kinds of layers, so that beginnings are shared by pages and by checkpoints of states.
python3 "$here/support/cluster-checks.py" "$nibble" "$tmp/recurrent" "$tmp/batches" cpu,cpu --split-mode tensor || failed=1
exit $failed
