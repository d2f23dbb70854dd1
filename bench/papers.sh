#!/bin/sh
# The figures that docs/paper-mcap.md and docs/paper-adangel.md quote, measured again: importance, what each layer's
# precision costs, perplexity with layers changed, and the kernels' table. Five minutes a model on two cores.
#   papers.sh [MODEL...]     MODEL: smollm2 and gemma3-270m unless told
# TEXT is what perplexity is of (default: ../shared/data/wikitext2-valid.txt), CHUNKS of 512 tokens of it (2), OUT where
# the tables go (default: build/papers). Measured afresh: nothing of the user's cache is read or written.
set -eu
cd "$(dirname "$0")/.."
TEXT=${TEXT:-../shared/data/wikitext2-valid.txt}
CHUNKS=${CHUNKS:-2}
OUT=${OUT:-build/papers}
[ $# -gt 0 ] || set -- smollm2 gemma3-270m
[ -s "$TEXT" ] || { echo "papers.sh: no text at $TEXT (TEXT=FILE)" >&2; exit 2; }

make -s all build/bench/bench_layers
mkdir -p "$OUT"
for model in "$@"; do
    name=$(basename "$model" .gguf)
    cache=$OUT/$name
    rm -rf "$cache"
    mkdir -p "$cache"
    echo "== $model: importance and costs" >&2
    XDG_CACHE_HOME=$cache build/nibble profile "$model" --costs >"$OUT/$name-costs.txt"
    costs=$(find "$cache" -name '*-quality.json')
    profile=$(find "$cache/nibble/importance" -name '*.json' ! -name '*-quality.json')
    python3 bench/importance_report.py "$profile" "$costs" >"$OUT/$name-correlations.txt"
    echo "== $model: perplexity with layers changed" >&2
    XDG_CACHE_HOME=$cache build/bench/bench_layers "$model" "$TEXT" "$CHUNKS" "$profile" "$costs" >"$OUT/$name-layers.txt"
    for bits in a16 a8 a4; do
        XDG_CACHE_HOME=$cache build/nibble eval "$model" --ppl "$TEXT" --chunks 6 --activation $bits -q |
            sed "s/^/$bits everywhere: /"
    done >"$OUT/$name-activations.txt"
done
echo "== kernels" >&2
python3 bench/paper_table.py >"$OUT/kernels.txt"
ls "$OUT"/*.txt
