#!/bin/sh
# Measures the processor's figures in docs/paper-mcap.md and docs/paper-adangel.md (the GPU's: tools/gpu-test.sh).
#   papers.sh [MODEL...]     MODEL: smollm2 and gemma3-270m by default
# PARTS says which (default: all). Figures of costs, layers and precision are the same on any machine, at any load:
#   costs        importance, the cost of each layer's precision, how well signals predict it      5 minutes a model
#   layers       perplexity with layers changed or left out                                      3
#   precision    perplexity, KL and HellaSwag for weights of 8 to 2 bits and activations          20
#   pager        LRU beside the clairvoyant pager at the same cap: bytes, and tokens a second     1
#   strategies   Padding, Split, Bitwise and the map, as products and from end to end;
#                the latter also of the model in 8 bits with AVX2, where Split has a unit        8 without that
#                then kernels alone, once for all models: more than 10 minutes
# The tokens a second of the last two need a quiet machine, or STRATEGIES="--processor -n 16 -p 256" with THREADS=1
# (more options of strategies.py). TEXT is the text for perplexity, TASKS is HellaSwag's file (none: no HellaSwag; the
# pages have 400 of its validation set, six lines each), CHUNKS of 512 tokens of the text (6; layers: 2), THREADS (2),
# OUT where the tables go (default: build/papers). Everything is measured anew: the user's cache is neither read nor
# written.
set -eu
cd "$(dirname "$0")/.."
TEXT=${TEXT:-tests/data/text/wikitext2-valid.txt}
TASKS=${TASKS:-}
CHUNKS=${CHUNKS:-6}
THREADS=${THREADS:-2}
OUT=${OUT:-build/papers}
STRATEGIES=${STRATEGIES:-}
PARTS=${PARTS:-costs layers precision pager strategies}
[ $# -gt 0 ] || set -- smollm2 gemma3-270m
for file in "$TEXT" ${TASKS:+"$TASKS"}; do
    [ -s "$file" ] || { echo "papers.sh: no text at $file (TEXT=FILE, TASKS=FILE)" >&2; exit 2; }
done

wanted() {
    case " $PARTS " in *" $1 "*) echo "== $model: $1" >&2 ;; *) return 1 ;; esac
}

make -s all build/bench/bench_layers build/bench/bench_pager build/bench/bench_dpr
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd) # a relative XDG_CACHE_HOME counts as not set
for model in "$@"; do
    name=$(basename "$model" .gguf)
    cache=$OUT/$name
    export XDG_CACHE_HOME="$cache"
    mkdir -p "$cache"
    # Strategies alone need no costs, which take minutes.
    if wanted costs || { [ "$PARTS" != strategies ] && [ ! -d "$cache/nibble/importance" ]; }; then
        rm -rf "$cache"
        mkdir -p "$cache"
        build/nibble profile "$model" --costs -t "$THREADS" >"$OUT/$name-costs.txt"
    fi
    costs=$(find "$cache" -name '*-quality.json')
    profile=$(find "$cache" -path '*/importance/*' -name '*.json' ! -name '*-quality.json')
    ! wanted costs || python3 bench/importance_report.py "$profile" "$costs" >"$OUT/$name-correlations.txt"
    ! wanted layers || build/bench/bench_layers "$model" "$TEXT" 2 "$profile" "$costs" >"$OUT/$name-layers.txt"
    ! wanted precision || python3 bench/precision.py "$model" --text "$TEXT" ${TASKS:+--hellaswag "$TASKS"} --chunks "$CHUNKS" \
        --profile "$profile" -t "$THREADS" >"$OUT/$name-precision.txt"
    ! wanted pager || build/bench/bench_pager "$model" "$profile" >"$OUT/$name-pager.txt"
    wanted strategies || continue
    # shellcheck disable=SC2086 # several options
    python3 bench/strategies.py "$model" -t "$THREADS" $STRATEGIES >"$OUT/$name-strategies.txt"
    grep -qw avx2 /proc/cpuinfo || continue
    build/nibble quantize "$model" -o "$cache/q8_0.gguf" --type q8_0 -q
    # shellcheck disable=SC2086
    python3 bench/strategies.py "$cache/q8_0.gguf" --isa avx2 -t "$THREADS" $STRATEGIES >"$OUT/$name-strategies-avx2.txt"
done
model=kernels
if wanted strategies; then
    python3 bench/paper_table.py -t "$THREADS" >"$OUT/kernels.txt"
    build/bench/bench_dpr >"$OUT/dpr.txt"
    NIBBLE_ISA=avx2 build/bench/bench_dpr 88 >"$OUT/dpr-avx2.txt"
fi
ls "$OUT"/*.txt
