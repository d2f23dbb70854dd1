#!/bin/sh
# The gain of residuals (docs/paper-qdec.md): perplexity and KL divergence to the original for each base and
# k_chunk. One thread, nice; one table row for each base. The figures are the same on any machine, at any load.
#   residual_table.sh MODEL EVAL_TEXT CALIB_TEXT [BASE...]
# BASE is METHOD-BITS (default: awq-3 awq-3.5 awq-4 squeezellm-3 squeezellm-3.5 squeezellm-4 gptq-3). AWQ and GPTQ
# round to n3g64 and q4_0, SqueezeLLM to c3 and c4; 3.5 bits are half of the weights in each, chosen by KL.
# K_CHUNKS (0 8 32 128), CHUNKS (5) of 512 tokens, OPTIONS of `nibble quantize` (e.g. --head-type q8_0). Files and
# scores stay in FOLDER, so that a second run continues.
set -eu
model=$1 text=$2 calib=$3
shift 3
[ $# -gt 0 ] || set -- awq-3 awq-3.5 awq-4 squeezellm-3 squeezellm-3.5 squeezellm-4 gptq-3
nibble=${NIBBLE:-build/nibble}
folder=${FOLDER:-$(mktemp -d)}
k_chunks=${K_CHUNKS:-0 8 32 128}
mkdir -p "$folder"

score() { # score FILE OUT [OPTION...]
    file=$1 to=$2
    shift 2
    [ -s "$to" ] && return
    nice "$nibble" eval "$file" -t 1 --ppl "$text" --chunks "${CHUNKS:-5}" --activation a16 -q --json \
        --kld-base "$folder/base.kld" "$@" >"$to.part"
    mv "$to.part" "$to"
}

make_base() { # make_base METHOD BITS OUT
    [ -s "$3" ] && return
    case $1 in squeezellm) low=c3 high=c4 ;; *) low=n3g64 high=q4_0 ;; esac
    case $2 in
    3) type="--type $low" ;;
    4) type="--type $high" ;;
    *) type="--bits $2 --type $low,$high" ;;
    esac
    # shellcheck disable=SC2086 # words
    nice "$nibble" quantize "$model" -t 1 -o "$3" --method "$1" $type ${OPTIONS:-} --calib "$calib" -q >"$3.log"
}

score "$model" "$folder/base.json"
printf '| base |'
for k in $k_chunks; do printf ' %s |' "$k"; done
printf '\n'
for base in "$@"; do
    method=${base%-*} bits=${base#*-}
    make_base "$method" "$bits" "$folder/$base.gguf"
    printf '| %s, %s bits |' "$method" "$bits"
    for k in $k_chunks; do
        out=$folder/$base-$k.json
        if [ "$k" -gt 0 ]; then
            score "$folder/$base.gguf" "$out" --residual "$model" --k-chunk "$k"
        else
            score "$folder/$base.gguf" "$out"
        fi
        python3 -c 'import json, sys
s = json.load(open(sys.argv[1]))
print(" %.2f; %.3f |" % (s["ppl"], s["kld"]["kld"]), end="", flush=True)' "$out"
    done
    printf '\n'
done
