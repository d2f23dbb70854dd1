#!/bin/sh
# What number formats and methods cost: perplexity, KL divergence from the model's own answers, how often the
# likeliest token stays. One thread, nice; a table row for each file that is made.
#   quant_table.sh MODEL EVAL_TEXT CALIB_TEXT [TYPE...]      default types: q4_0 n3g64
# CHUNKS (5) of EVAL_TEXT are scored, which should share nothing with CALIB_TEXT. METHODS: "none rtn awq gptq"
# (none: rtn with all columns alike). FOLDER keeps the files, so that a second run goes on.
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
echo "| format | method | bits | perplexity | KL | same top | seconds |"
echo "|---|---|---|---|---|---|---|"
for type in "$@"; do
    for method in ${METHODS:-none rtn awq gptq}; do
        out=$folder/$type-$method
        how="--method $method --calib $calib"
        [ "$method" = none ] && how="--imatrix none"
        # shellcheck disable=SC2086
        [ -s "$out.json" ] || {
            nice "$nibble" quantize "$model" -t 1 -o "$out.gguf" --type "$type" $how --json -q >"$out.made"
            score "$out.gguf" >"$out.json"
        }
        python3 - "$type" "$method" "$out" <<'END'
import json, sys
kind, method, out = sys.argv[1:]
made, scored = json.load(open(out + ".made")), json.load(open(out + ".json"))
kld = scored["kld"]
print(f"| {kind} | {method} | {made['bits']:.2f} | {scored['ppl']:.2f} | {kld['kld']:.3f} "
      f"| {100 * kld['same_top']:.1f} % | {made['seconds']:.0f} |")
END
    done
done
