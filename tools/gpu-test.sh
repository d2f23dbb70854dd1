#!/bin/sh
# Runs on a machine with a GPU and without network: the CUDA kernels' tests; the engine on the GPU, with all weights
# there and with a part of them; tests under compute-sanitizer (small cases); benchmarks of kernels and residuals; then
# the processor's side: every test of the kernels on every instruction set, the kernels' speed with one thread and with
# all, and a synthetic 8B model. Takes under 10 minutes.
#   gpu-test.sh [--results DIR] [--commit NAME] [FOLDER]     FOLDER: what pack-for-gpu.sh made (default: build/travel)
# PARTS="gpu cpu" chooses (default: both); "engine" is the part of "gpu" that uses the whole engine; "models" is
# perplexity and tokens of the real models in the folder MODELS (smollm2.gguf, gemma3-270m.gguf: gpu-models.sh) on the
# GPU and on the processor; NAMES chooses among them. Nothing new starts on the GPU after GPU_SECONDS (default: 400),
# and no benchmark of the processor after CPU_SECONDS (default: 450). The whole log goes to stdout and, when $OUT is
# set, to $OUT/gpu-test.log; the last lines are a short table. The table is also DIR/results.json (default: $OUT):
# {"commit": NAME, "machine": ..., "rows": [{"what", "value", "unit"}]}. LAYERS=N makes a smaller model; SCRATCH is
# where it is written (default: /tmp, 5 GB).
set -u
cd "$(dirname "$0")/.." || exit 2
results=${OUT:-} commit=
while [ $# -gt 0 ]; do
    case $1 in
    --results) results=${2:?a folder} && shift ;;
    --commit) commit=${2:?a name} && shift ;;
    *) break ;;
    esac
    shift
done
from=${1:-build/travel}
from=$(cd "$from" && pwd) || exit 2
scratch=$(mktemp -d "${SCRATCH:-/tmp}/nibble-XXXXXX") || exit 2
log=${OUT:-$scratch}/gpu-test.log
table=$scratch/table
failed=0
threads=$(nproc)
trap 'rm -rf "$scratch"' EXIT
LD_LIBRARY_PATH=$from/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
: >"$table"
: >"$table.rows"

say() {
    echo "== $* ($(($(date +%s) - started)) s)"
}
row() {
    printf '%-60s %s\n' "$1" "$2" >>"$table"
    printf '%s\t%s\n' "$1" "$2" >>"$table.rows"
}

# The rows as JSON: a value that begins with a number is that number and a unit, any other is a text.
write_results() {
    [ -n "$results" ] || return 0
    mkdir -p "$results"
    gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -1)
    awk -F '\t' -v commit="$commit" -v gpu="$gpu" -v threads="$threads" \
        -v processor="$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)" '
        function text(s) { gsub(/[\\"]/, "\\\\&", s); gsub(/[[:cntrl:]]/, " ", s); return "\"" s "\"" }
        BEGIN {
            printf "{\"commit\": %s, \"machine\": {\"gpu\": %s, \"processor\": %s, \"processors\": %d},\n \"rows\": [", \
                text(commit), text(gpu), text(processor), threads
        }
        {
            value = text($2); unit = ""
            if (match($2, /^-?[0-9][0-9,]*(\.[0-9]+)?/)) {
                value = substr($2, 1, RLENGTH); gsub(/,/, "", value)
                unit = substr($2, RLENGTH + 1); sub(/^ */, "", unit)
            }
            printf "%s\n  {\"what\": %s, \"value\": %s, \"unit\": %s}", (NR > 1 ? "," : ""), text($1), value, text(unit)
        }
        END { print "\n]}" }' "$table.rows" >"$results/results.json"
}

machine() {
    say "machine"
    grep -m1 'model name' /proc/cpuinfo
    grep MemTotal /proc/meminfo
    "$from/nibble" hw
    isas=$("$from/nibble" hw | sed -n 's/^kernels *//p' | sed 's/(used)//')
}

# One test on one instruction set, beside others; its result in a file.
one_test() {
    NIBBLE_ISA=$2 timeout 200 "$from/$1" >"$scratch/$1.$2.out" 2>&1
    echo "$? $(grep -c '^\[       OK' "$scratch/$1.$2.out")" >"$scratch/$1.$2.code"
}

tests() {
    say "tests on:$isas"
    for isa in $isas; do
        for test in "$from"/test_*; do
            case $test in */test_exec_cuda | */test_kernels_cuda*) continue ;; esac # not on a processor
            one_test "$(basename "$test")" "$isa" &
        done
        wait
        passed=0
        for code in "$scratch"/test_*."$isa".code; do
            read -r status ok <"$code"
            passed=$((passed + ok))
            [ "$status" -eq 0 ] && continue
            failed=$((failed + 1))
            echo "FAILED: $(basename "$code" .code)"
            grep -v -e '^\[ RUN' -e '^\[       OK' "${code%.code}.out" | tail -30
        done
        echo "$isa: $passed tests passed"
        row "tests, $isa" "$passed passed"
    done
    row "test programs that failed" "$failed"
}

in_time() {
    [ $(($(date +%s) - started)) -lt "${GPU_SECONDS:-400}" ]
}

# sanitize TOOL PROGRAM TEST...: runs these tests of a program under compute-sanitizer.
sanitize() {
    tool=$1 program=$2
    shift 2
    for name in "$@"; do
        if ! in_time; then
            row "$tool, $name" "(no time left)"
        elif timeout 120 compute-sanitizer --tool "$tool" --error-exitcode 9 "$from/$program" "$name" \
            >"$scratch/sanitizer.out" 2>&1; then
            row "$tool, $name" "clean"
        else
            failed=$((failed + 1))
            row "$tool, $name" "FAILED"
            tail -40 "$scratch/sanitizer.out"
        fi
    done
}

cuda() {
    say "CUDA"
    : >"$scratch/cuda.out"
    for test in "$from"/test_kernels_cuda*; do
        timeout 120 "$test" >>"$scratch/cuda.out" 2>&1 || failed=$((failed + 1))
    done
    cat "$scratch/cuda.out"
    row "CUDA tests" "$(grep -c '^\[       OK' "$scratch/cuda.out") passed, $(grep -c '^\[  FAILED  \] test' "$scratch/cuda.out") failed"
}

sanitized() {
    say "compute-sanitizer"
    sanitize memcheck test_exec_cuda plans greedy_tokens in_place
    sanitize memcheck test_kernels_cuda_wide sizes batch_sizes prompts
    sanitize memcheck test_kernels_cuda_mixed special around
    sanitize memcheck test_kernels_cuda test_gtile test_poison test_together
    sanitize memcheck test_kernels_cuda_strategies test_refused test_poison test_all_else
    sanitize racecheck test_kernels_cuda_strategies test_poison
    sanitize memcheck test_kernels_cuda_rows test_norm test_embed test_sample test_each
    sanitize memcheck test_kernels_cuda_shortlist codes refused
    sanitize memcheck test_kernels_cuda_attend test_attend test_store test_move
    sanitize memcheck test_kernels_cuda_codes test_attend_left
    sanitize racecheck test_kernels_cuda test_together test_poison
    sanitize racecheck test_kernels_cuda_mixed special
    sanitize racecheck test_kernels_cuda_shortlist codes
    sanitize racecheck test_kernels_cuda_rows test_sample
    sanitize racecheck test_kernels_cuda_codes test_attend_left
    sanitize memcheck test_kernels_cuda_wide every_format sums many_outputs
    sanitize racecheck test_kernels_cuda_wide sizes prompts sums batch_sizes
}

# The sanitizer's cases on the GPU, and beside them the processor's tests, when they are asked for: neither is timed.
sanitized_beside_tests() {
    case " ${PARTS:-gpu cpu} " in
    *" cpu "*)
        (
            failed=0 table=$scratch/beside
            : >"$table.rows"
            tests
            exit "$failed"
        ) >"$scratch/beside.out" 2>&1 &
        beside=$!
        sanitized
        wait "$beside" || failed=$((failed + $?))
        cat "$scratch/beside.out"
        cat "$scratch/beside" >>"$table"
        cat "$scratch/beside.rows" >>"$table.rows"
        ;;
    *) sanitized ;;
    esac
}

kernel_speed() {
    in_time || return 0
    say "bench_cuda"
    timeout 200 "$from/bench_cuda" >"$scratch/bench_cuda.out" || failed=$((failed + 1))
    cat "$scratch/bench_cuda.out"
    sed -n -e 's/^\(reading[^:]*\): \(.*\)/\1|\2/p' \
        -e 's/^\(llama.*token.*+\): *\(.*\)/\1|\2/p' -e 's/^\(u.*rows\(, batch\)*\): *\(.*\)/\1|\3/p' "$scratch/bench_cuda.out" |
        while IFS='|' read -r what value; do
            row "$(echo "$what" | tr -s ' ')" "$value"
        done
}

# ADAngel's strategies on a layer of an 8B model (docs/paper-adangel.md): a map is measured, then the loss of the map,
# the rules and each family against the fastest, and answers with and without the map.
strategies() {
    in_time || return 0
    say "strategies of a llama-3-8b layer, q4_0"
    path=$scratch/layer.gguf map=$scratch/map.json
    "$from/nibble" synth llama-3-8b --type q4_0 --layers 1 --seed 1 -q -o "$path" || return
    timeout 60 "$from/nibble" profile "$path" --kernels --backend cuda --seconds 15 -o "$map" >"$scratch/map.out" ||
        failed=$((failed + 1))
    cat "$scratch/map.out" "$map"
    row "kernel map of the GPU" "$(sed -n 's/.* choices in \([0-9.]* s\).*in \([0-9]*\) of.*/\1, \2 other than the rule/p' "$scratch/map.out")"
    for on in "$path" ""; do # the model's; a layer in every width, 8- and 4-bit activations
        # shellcheck disable=SC2086 # none, or a path without spaces
        timeout 60 "$from/nibble" bench --kernels $on --backend cuda --kernel-map "$map" --seconds 15 >"$scratch/grid.out" ||
            failed=$((failed + 1))
        cat "$scratch/grid.out"
        sed -n '/^choosing/,$p' "$scratch/grid.out" | grep ' ms ' | cut -c1-79 | while read -r line; do
            row "${on:+model, }$(echo "$line" | sed 's/   .*//')" "$(echo "$line" | sed 's/.*  *\([0-9.]* ms\) *\(.*\)/\1, regret \2/' | tr -s ' ')"
        done
    done
    for with in none "$map"; do
        timeout 60 "$from/nibble" run "$path" --tokens 1,2,3,4,5,6,7 -n 32 --temp 0 --ignore-eos -c 128 --backend cuda \
            --kernel-map "$with" >"$scratch/$(basename "$with").tokens" || failed=$((failed + 1))
    done
    if cmp -s "$scratch/none.tokens" "$scratch/map.json.tokens"; then
        row "greedy tokens with and without the map" "equal"
    else
        failed=$((failed + 1))
        row "greedy tokens with and without the map" "DIFFERENT"
    fi
    rm "$path"
}

residuals() {
    in_time || return 0
    say "bench_residual"
    timeout 100 "$from/bench_residual" || failed=$((failed + 1))
}

# The back end: logits compared with the processor's, and the command on both.
backend() {
    say "test_exec_cuda"
    timeout 200 "$from/test_exec_cuda" >"$scratch/exec.out" 2>&1 || failed=$((failed + 1))
    cat "$scratch/exec.out"
    row "back end tests" "$(grep -c '^\[       OK' "$scratch/exec.out") passed, $(grep -c '^\[  FAILED  \] [a-z]' "$scratch/exec.out") failed"
    say "nibble run, cpu and cuda"
    "$from/nibble" synth llama-3.2-1b --type q4_0 --layers 4 --seed 2 -o "$scratch/small.gguf" || return
    for on in cpu cuda; do
        timeout 60 "$from/nibble" run "$scratch/small.gguf" --tokens 1,2,3,4,5,6,7 -n 48 --temp 0 --ignore-eos -c 128 \
            --kv f16 --activation a16 --backend $on >"$scratch/$on.tokens" || failed=$((failed + 1))
        cat "$scratch/$on.tokens"
    done
    if cmp -s "$scratch/cpu.tokens" "$scratch/cuda.tokens"; then
        row "greedy tokens of both" "equal"
    else
        failed=$((failed + 1))
        row "greedy tokens of both" "DIFFERENT"
    fi
}

# on_gpu WHAT MODEL OPTION...: a row for each of a benchmark's lines.
on_gpu() {
    what=$1 path=$2
    shift 2
    in_time || { row "$what" "(no time left)"; return 0; }
    timeout 100 "$from/nibble" bench "$path" "$@" --backend cuda >"$scratch/bench.out" 2>"$scratch/bench.err" ||
        failed=$((failed + 1))
    cat "$scratch/bench.err" "$scratch/bench.out"
    places=$(sed -n 's/^nibble: .* resident on the GPU; //p' "$scratch/bench.err" | head -1) # with -v
    [ -z "$places" ] || row "$what" "$places"
    grep -E '^ *([0-9]+|pp[0-9]+|tg[0-9]+) +[0-9.]+' "$scratch/bench.out" | while read -r name rate rest; do
        case $name in [0-9]*) name="$name sequences" ;; esac
        row "$what, $name" "$rate tok/s"
    done
}

# A model in floats: a prompt, and one sequence.
floats() {
    in_time || { row "$1 $2" "(no time left)"; return 0; }
    say "$1 $2, --backend cuda"
    "$from/nibble" synth "$1" --type "$2" --seed 1 -q -o "$scratch/floats.gguf" || return
    on_gpu "$1 $2" "$scratch/floats.gguf" -p 512 -n 64 -r 3 -c 1024
    rm "$scratch/floats.gguf"
}

# held MIB MODEL OPTION...: the GPU's memory while a benchmark runs under that cap, by the driver's figure.
held() {
    cap=$1 path=$2
    shift 2
    in_time || { row "memory under a cap of $cap MiB" "(no time left)"; return 0; }
    query="nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits"
    before=$($query | head -1)
    $query -lms 100 >"$scratch/used" &
    watcher=$!
    timeout 100 "$from/nibble" bench "$path" "$@" --backend cuda --vram "${cap}M" >"$scratch/bench.out" 2>&1 ||
        failed=$((failed + 1))
    kill "$watcher"
    max_used=$(($(sort -n "$scratch/used" | tail -1) - before))
    row "memory under a cap of $cap MiB" "$max_used MiB"
    [ "$max_used" -le "$cap" ] || failed=$((failed + 1))
}

# Prompts whose KV pages have left the GPU. prefixes NAME PATH
prefixes() {
    say "$1, prompts that come back"
    if ! timeout 120 "$from/bench_prefix" "$2" cuda 2048 4 "$scratch/prefixes" >"$scratch/prefix.tsv"; then
        failed=$((failed + 1))
        row "$1, prompts of 2,048 tokens that come back" "FAILED"
    fi
    cat "$scratch/prefix.tsv"
    rm -rf "$scratch/prefixes"
    while IFS="$(printf '\t')" read -r way time rest; do
        [ -z "$time" ] || row "$1, a prompt of 2,048 tokens and 4 more, $way" "$time"
    done <"$scratch/prefix.tsv"
}

# A synthetic model on the GPU: prompts, generation, many sequences; then under caps. engine MODEL TYPE CAP...
engine() {
    say "$1 $2, --backend cuda"
    name="$1 $2" path=$scratch/gpu.gguf
    "$from/nibble" synth "$1" --type "$2" --seed 1 -o "$path" || return
    shift 2
    on_gpu "$name" "$path" -p 512 -n 128 -r 3 -c 1024
    on_gpu "$name" "$path" -p 2048 -n 0 -r 3 -c 2560
    on_gpu "$name" "$path" -np 1,8,16,32,64 -p 32 -n 64 -r 3
    prefixes "$name" "$path"
    for cap in "$@"; do
        on_gpu "$name, --vram $cap" "$path" -p 512 -n 16 -r 2 -c 1024 --vram "$cap" -v
    done
    held 3072 "$path" -p 512 -n 32 -r 2 -c 1024
    rm "$path"
}

# ---- the real models ----

# perplexity MODEL ON ACTIVATIONS: of the first chunks of the text; nothing when it fails.
perplexity() {
    timeout 120 "$from/nibble" eval "$MODELS/$1.gguf" --ppl tests/data/text/wikitext2-valid.txt --chunks "${CHUNKS:-20}" \
        -c 512 --kv f16 --activation "$3" --backend "$2" --json 2>"$scratch/eval.err" >"$scratch/eval.json"
    sed -n 's/.*"ppl": *\([0-9.]*\).*/\1/p' "$scratch/eval.json"
}

# compare MODEL ACTIVATIONS: both perplexities; a difference of more than half a percent is a failure.
compare() {
    in_time || { row "$1, perplexity, $2" "(no time left)"; return 0; }
    gpu=$(perplexity "$1" cuda "$2")
    cat "$scratch/eval.err"
    cpu=$(perplexity "$1" cpu "$2")
    if [ -z "$gpu" ] || [ -z "$cpu" ]; then
        failed=$((failed + 1))
        row "$1, perplexity, $2" "FAILED"
        cat "$scratch/eval.err"
        return 0
    fi
    percent=$(awk -v a="$gpu" -v b="$cpu" 'BEGIN { printf "%.3f", 100 * (a - b) / b }')
    row "$1, perplexity, $2, GPU" "$gpu"
    row "$1, perplexity, $2, processor" "$cpu"
    row "$1, perplexity, $2, difference" "$percent %"
    awk -v p="$percent" 'BEGIN { exit !(p <= 0.5 && p >= -0.5) }' || failed=$((failed + 1))
}

# Greedy tokens after a question, on both. They may differ where two tokens are about as likely, so a difference is no
# failure.
tokens_of() {
    in_time || { row "$1, 60 greedy tokens" "(no time left)"; return 0; }
    for on in cpu cuda; do
        timeout 100 "$from/nibble" run "$MODELS/$1.gguf" "Why is the sky blue?" -n 60 --temp 0 --ignore-eos -c 512 \
            --kv f16 --activation a16 --backend $on >"$scratch/$on.text" || failed=$((failed + 1))
        cat "$scratch/$on.text"
    done
    if cmp -s "$scratch/cpu.text" "$scratch/cuda.text"; then
        row "$1, 60 greedy tokens of both" "equal"
    else
        row "$1, 60 greedy tokens of both" "equal up to byte $(cmp "$scratch/cpu.text" "$scratch/cuda.text" | sed -n 's/.*\(byte\|char\) \([0-9]*\).*/\2/p')"
    fi
}

models() {
    for name in ${NAMES:-smollm2 gemma3-270m}; do
        say "$name"
        if [ ! -f "${MODELS:-}/$name.gguf" ]; then
            row "$name" "(not in the folder MODELS)"
            failed=$((failed + 1))
            continue
        fi
        compare "$name" a16
        compare "$name" a8
        tokens_of "$name"
        on_gpu "$name" "$MODELS/$name.gguf" -p 512 -n 128 -r 3 -c 1024
    done
}

# speed PROGRAM ARGUMENTS...: runs a benchmark for at most 60 s; skipped when time is short.
speed() {
    say "$*"
    if [ $(($(date +%s) - started)) -gt "${CPU_SECONDS:-450}" ]; then
        echo "(no time left)"
        return
    fi
    program=$1
    shift
    timeout 60 "$from/$program" "$@" || echo "(stopped: $?)"
}

kernels() {
    speed bench_amx 1 quick
    for variant in "$from"/bench_amx_try*; do # experiments, if the folder has some
        [ -x "$variant" ] && speed "$(basename "$variant")" 1 quick
    done
    speed bench_amx "$threads"
    speed bench_kernels amx 1
    speed bench_kernels amx "$threads"
    speed bench_kernels avx512 1
}

# tokens per second of one row of `nibble bench --json`
rate() {
    tr ',{' '\n\n' <"$1" | sed -n 's/.*"tok_s": *\([0-9.]*\).*/\1/p' | head -1
}

# llama.cpp on the same model, if the folder has it (pack-for-gpu.sh).
beside_llama() {
    [ -x "$from/llama_worker" ] || return 0
    for what in "tg -n 64" "pp -n 256"; do
        say "llama.cpp $what"
        # shellcheck disable=SC2086 # words
        LD_LIBRARY_PATH=$from/llama:$LD_LIBRARY_PATH timeout 100 "$from/llama_worker" "$scratch/model.gguf" $what -r 3 \
            -c 512 -t "$threads" >"$scratch/llama.json" || { echo "(stopped)"; continue; }
        cat "$scratch/llama.json"
        row "llama.cpp, the same, $what, $threads threads" "$(rate "$scratch/llama.json") tok/s"
    done
}

model() {
    say "llama-3-8b, Q4_0, random weights"
    "$from/nibble" synth llama-3-8b --type q4_0 --layers "${LAYERS:-0}" --seed 1 -o "$scratch/model.gguf" || return
    ls -l "$scratch/model.gguf"
    for isa in $isas; do
        case $isa in ref | avxvnni | avx512pop) continue ;; esac # a folder beside another: one of the two
        for what in "-n 64 -p 0" "-p 256 -n 0"; do
            say "bench $what, $isa"
            # shellcheck disable=SC2086 # words
            NIBBLE_ISA=$isa timeout 60 "$from/nibble" bench "$scratch/model.gguf" $what -r 3 -c 512 -t "$threads" --json \
                >"$scratch/bench.json" || { failed=$((failed + 1)); continue; }
            cat "$scratch/bench.json"
            row "llama-3-8b Q4_0 $what, $isa, $threads threads" "$(rate "$scratch/bench.json") tok/s"
        done
    done
    beside_llama
    say "where the time goes"
    for what in "-n 64 -p 0" "-p 256 -n 0"; do
        # shellcheck disable=SC2086
        timeout 60 "$from/nibble" bench "$scratch/model.gguf" $what -r 1 -c 512 -t "$threads" --trace
    done
}

everything() {
    started=$(date +%s)
    machine
    case " ${PARTS:-gpu cpu} " in *" gpu "*) cuda ;; esac
    case " ${PARTS:-gpu cpu} " in *" gpu "* | *" engine "*)
        backend
        engine llama-3.2-1b q4_0
        engine llama-3-8b q4_0 3G
        floats llama-3.2-1b f16
        ;;
    esac
    case " ${PARTS:-gpu cpu} " in *" models "*) models ;; esac
    case " ${PARTS:-gpu cpu} " in *" gpu "*)
        strategies
        sanitized_beside_tests
        kernel_speed
        residuals
        ;;
    *" cpu "*) tests ;;
    esac
    case " ${PARTS:-gpu cpu} " in *" cpu "*) model; kernels ;; esac
    say "done"
    write_results
    cat "$table"
    [ "$failed" -eq 0 ]
}

if [ -n "${OUT:-}" ]; then
    { everything; echo $? >"$scratch/result"; } 2>&1 | tee "$log"
    exit "$(cat "$scratch/result")"
fi
everything 2>&1
