#!/bin/sh
# The cost of number formats and methods: perplexity, KL divergence from the model's own answers, how often the
# likeliest token stays the same. One thread, nice; a table row for each file that is made.
#   quant_table.sh MODEL EVAL_TEXT CALIB_TEXT [TYPE...]      default types: q4_0 n3g64
# CHUNKS (5) of EVAL_TEXT are scored, which should share nothing with CALIB_TEXT. METHODS: "none rtn awq gptq"
# (none: rtn with all columns alike); "llama" and "llama-imatrix" are llama.cpp's own quantizer, by the program
# LLAMA_QUANTIZE (llama_quantize.c), the latter with nibble's importance matrix. The files stay in FOLDER, so that a
# second run continues.
set -eu
model=$1 text=$2 calib=$3
shift 3
[ $# -gt 0 ] || set -- q4_0 n3g64
nibble=${NIBBLE:-build/nibble}
folder=${FOLDER:-$(mktemp -d)}
score() { # score FILE
    nice "$nibble" eval "$1" -t 1 --ppl "$text" --chunks "${CHUNKS:-5}" --activation a16 -q --json \
        --kld-base "$folder/base.kld"
}
[ -s "$folder/base.json" ] || score "$model" >"$folder/base.json"
make_file() { # make_file TYPE METHOD OUT
    start=$(date +%s)
    case $2 in
    none) how="--imatrix none" ;;
    *) how="--method $2 --calib $calib" ;;
    esac
    case $2 in
    llama) nice "$LLAMA_QUANTIZE" "$model" "$3.gguf" "$1" >"$3.log" 2>&1 ;;
    llama-imatrix)
        [ -s "$folder/imatrix.gguf" ] || nice "$nibble" quantize "$model" -t 1 -o "$folder/imatrix-q8.gguf" \
            --type q8_0 --calib "$calib" --keep-imatrix "$folder/imatrix.gguf" -q >/dev/null
        nice "$LLAMA_QUANTIZE" "$model" "$3.gguf" "$1" "$folder/imatrix.gguf" >"$3.log" 2>&1
        ;;
    *) # shellcheck disable=SC2086 # words
        nice "$nibble" quantize "$model" -t 1 -o "$3.gguf" --type "$1" $how -q >"$3.log" ;;
    esac
    echo $(($(date +%s) - start)) >"$3.seconds"
}
echo "| format | method | bytes | perplexity | KL | same top | seconds |"
echo "|---|---|---|---|---|---|---|"
for type in "$@"; do
    for method in ${METHODS:-none rtn awq gptq}; do
        out=$folder/$type-$method
        [ -s "$out.json" ] || {
            make_file "$type" "$method" "$out"
            score "$out.gguf" >"$out.json"
        }
        python3 - "$type" "$method" "$out" <<'END'
import json, os, sys
kind, method, out = sys.argv[1:]
scored, seconds = json.load(open(out + ".json")), open(out + ".seconds").read().strip()
kld = scored["kld"]
print(f"| {kind} | {method} | {os.path.getsize(out + '.gguf'):,} | {scored['ppl']:.2f} | {kld['kld']:.4f} "
      f"| {100 * kld['same_top']:.1f} % | {seconds} |")
END
    done
done
