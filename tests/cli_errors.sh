#!/bin/sh
# Errors name their true cause, and messages are true: files that cannot be written, missing plans, impossible contexts,
# numbers in the forms that people write. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
model=$tmp/model.gguf
sanitized=0
is_sanitized && sanitized=1

run() { # exit code in $code, stdout and stderr in files
    code=0
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
says() { grep -q -e "$1" "$tmp/err"; }
silent() { ! grep -q -e "$1" "$tmp/err" "$tmp/out"; }
json() { python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); print(eval(sys.argv[2], {"d": d}))' "$tmp/out" "$1"; }

run synth smollm2-135m --layers 2 -o "$model"
check "a model" [ $code = 0 ]
profiled=$tmp/profiled # the smallest there is: how long measuring takes proves nothing here
cp -r "$here/data/arch/llama" "$profiled"

# Folders that cannot be made: a part of the path is a file, which root cannot change either.
echo >"$tmp/file"
in_a_file="$tmp/file/[a-z]*: cannot make the folder: Not a directory"
XDG_CACHE_HOME=$tmp/file
run run "$model" --tokens 1,2 -n 1 -c 64 --packed-cache on
check "a run goes on without its packed file" [ $code = 0 ]
check "and says why it is not kept" says "$in_a_file"
run profile "$profiled"
check "profile goes on without its cache" [ $code = 0 ]
check "says so" says "not stored: $in_a_file"
check "and shows what was measured" grep -q 'layer   1' "$tmp/out"
check "also that it is not kept" grep -q ', not kept' "$tmp/out"
run profile "$profiled" --json
check "in JSON too" [ "$(json 'd["path"] is None and len(d["a16_layers"]) <= 2')" = True ]
run profile "$profiled" --channels --json
check "so do the statistics of channels" [ "$(json 'all(0 <= s["outliers"] <= s["channels"] for s in d["sites"]) and d["sites"][-1]["layer"] is None')" = True ]
run profile "$profiled" -o "$tmp/file/x.json"
check "a file that was asked for is an error" [ $code = 1 ]
run quantize "$model" -o "$tmp/nowhere/out.gguf"
check "quantize looks for the folder first" [ $code = 2 ]
check "and says that it is not there" says "cannot write .*nowhere/out.gguf: No such file or directory"
check "not that something was made" silent 'the finished part'
head -c 5000 "$model" >"$tmp/short.gguf"
run info "$tmp/short.gguf"
check "a file that was cut off is refused" [ $code = 4 ]
check "with that guess" says '(cut off?)'
if [ $sanitized = 1 ]; then
    echo "skip hw without a cache: rates are not measured under a sanitizer"
elif [ -n "${NIBBLE_QUICK:-}" ]; then
    echo "skip hw without a cache: measuring takes eight seconds"
else
    run hw
    check "hw goes on without its cache" [ $code = 0 ]
    check "says what it could not measure" says "the disk is not measured: $in_a_file"
    check "and shows the rest" grep -q '^memory, 1 .*GB/s' "$tmp/out"
fi
run profile --hardware --scratch "$tmp/file/scratch"
check "a disk that was asked for is an error" [ $code = 1 ]
check "with its folder" says "$in_a_file"
XDG_CACHE_HOME=$tmp/cache

# The same for a user who may not write there.
mkdir "$tmp/locked"
chmod 555 "$tmp/locked"
as_nobody=
if [ "$(id -u)" = 0 ]; then
    as_nobody="setpriv --reuid 65534 --regid 65534 --clear-groups"
    chmod 755 "$tmp"
    chmod 644 "$model" "$profiled"/*
fi
# shellcheck disable=SC2086 # words
if $as_nobody test -x "$nibble" -a -r "$model" -a ! -w "$tmp/locked" 2>/dev/null; then
    code=0
    XDG_CACHE_HOME=$tmp/locked/x $as_nobody "$nibble" run "$model" --tokens 1,2 -n 1 -c 64 --packed-cache on \
        >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    check "a locked cache folder stops no run" [ $code = 0 ]
    check "and is what is named" says 'locked/x: cannot make the folder: Permission denied'
    code=0
    $as_nobody "$nibble" profile "$profiled" -o "$tmp/locked/p.json" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
    check "nor can a file be made there" [ $code = 1 ]
    check "which is said" says 'Permission denied'
else
    echo "skip permissions: nobody may not read the binary or the model here"
fi

run run "$model" --tokens 1,2 -n 1 -c 64 --scratch "$tmp/scratch" --disk 1M
check "--disk that is too small stops no run" [ $code = 0 ]
check "and is what is named" says 'the cap of 1.0 MiB (--disk) is too small: the file takes [0-9.]* MiB'
run run "$model" --tokens 1,2 -n 1 -c 64 --scratch "$tmp/file/scratch"
check "so is --scratch" says "$in_a_file"

# Plans.
run plan "$model" -c 64 --json -o "$tmp/plan.json"
run run "$model" --plan "$tmp/none.json" --tokens 1 -n 1
check "a plan that is not there exits 2" [ $code = 2 ]
check "and is named" says "no such file: $tmp/none.json"
echo '{"model": ' >"$tmp/broken.json"
run run "$model" --plan "$tmp/broken.json" --tokens 1 -n 1
check "a broken plan exits 4" [ $code = 4 ]
check "with its file" says "nibble: $tmp/broken.json: .*line 2"
sed 's/"layer.1"/"layer.7"/' "$tmp/plan.json" >"$tmp/other.json"
run run "$model" --plan "$tmp/other.json" --tokens 1 -n 1
check "a wrong name in a plan is said with the file" says "nibble: $tmp/other.json: .*layer.7"
run synth smollm2-135m --layers 3 -o "$tmp/three.gguf"
run run "$tmp/three.gguf" --plan "$tmp/plan.json" --tokens 1 -n 1
check "so is another model's plan" says "nibble: $tmp/plan.json: "

# Contexts. This model was made for 8192 positions.
run run "$model" --tokens 1,2 -n 1 -c 8192
check "the whole context is nothing to speak of" silent 'trained with'
run run "$model" --tokens 1,2 -n 1 -c 8193
check "one more is computed" [ $code = 0 ]
check "and said" says 'the context of 8193 positions is longer than the 8192 that the model was trained with'
run plan "$model" -c 0 --json
check "-c 0 is the whole context" [ "$(json 'd["schedule"]["n_ctx"]')" = 8192 ]
check "of which nothing is said" silent 'context'
run run "$model" --tokens 1,2 -n 2 -c 0 --ram 20M --temp 0 --ignore-eos --json
if [ $sanitized = 1 ]; then
    echo "skip caps: a sanitizer's own memory does not fit them"
else
    check "-c 0 under a cap is what it holds" [ $code = 0 ]
    check "and says what that is" says 'the context has [0-9]* of the model.s 8192 positions, as many as fit the cap'
    check "within the cap" [ "$(json 'd["memory"]["rss_peak"] <= 20 << 20')" = True ]
fi
run run tests/data/arch-gguf/gpt2-q8_0.gguf --tokens 1,2 -n 1 -c 1000000
check "positions that a model does not have exit 2" [ $code = 2 ]
check "with how many it has" says 'context: the model has [0-9]* learned positions, 1000000 were requested'
run run "$model" --tokens 1,2 -n 1 -c 16777216 --kv f32
if [ $code = 3 ]; then
    check "a context beyond the machine's memory is refused" says 'positions need .* the machine has .* at most [0-9]* fit'
else
    echo "skip a context beyond the machine's memory: it can hold it"
fi
run run "$model" --tokens 1,2,3 -n 3 --temp 0 --ignore-eos -c 64
check "a text ends where -n says" silent 'is cut'
run run "$model" --tokens 1,2,3 -n 100 --temp 0 --ignore-eos -c 64
check "or is cut by the context, which is said" says 'the answer is cut: .*the context of 64 is full; -c'

run run "$model" --tokens 1,2 -n 1 -c 64 --vram 2G
check "--vram on the processor stops no run" [ $code = 0 ]
check "and says that it has no effect" says '^nibble: --vram has no effect.*--backend cuda'
export NIBBLE_CUDA=0
run plan "$model" --backend cuda
check "a plan for a GPU that is not there exits 5" [ $code = 5 ]
check "and says why" says "backend 'cuda': no GPU can be used"
unset NIBBLE_CUDA

# Numbers.
run run "$model" --seed 99999999999999999999
check "a bound that nobody would write is left out" says 'expected a whole number of at least -1, found'
run run "$model" -c 99999999999
check "one that people write is there" says 'from 0 to 16777216, found'
run plan "$model" -c 64 --speed 1e9
check "no exponents in a refusal" says 'no plan makes 1000000000 tokens a second'
run plan "$model" -c 64
check "nor in a plan" silent '[0-9]e[+-][0-9]'
check "the disk is not spoken of when nothing is read from it" silent 'from disk'
if [ $sanitized = 0 ]; then
    run profile "$model" --costs --formats u4g64
    check "nor among costs" silent '[0-9]e[+-][0-9]'
fi

# Exact results are not described as lossy, and no message is untrue.
run synth smollm2-135m --layers 2 --type q8_0 -o "$tmp/q8.gguf"
run run "$tmp/q8.gguf" --tokens 1,2 -n 2 -c 64 --temp 0 --shortlist on -v
check "the head's first step is no loss" says 'the answers are the same'
check "nor the share of it" silent 'estimated'
run plan "$model" -c 64 --quality lossless
check "lossless is a quality" [ $code = 0 ]
if [ $sanitized = 0 ]; then
    for cap in 40M 41M 42M 43M 44M 46M 48M 52M 56M 60M 64M; do
        run run "$model" --tokens 1,2 -n 1 -c 64 --temp 0 --ram $cap
        cat "$tmp/err"
    done >"$tmp/all"
    check "no pages are never streamed" sh -c "! grep -q '^nibble: 0 of' '$tmp/all'"
fi
exit $failed
