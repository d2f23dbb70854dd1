#!/bin/sh
# The command line from outside: exit codes, stdout, closed pipes, full disks, interruption. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
model=$here/data/arch/llama
unset NO_COLOR 2>/dev/null

run() { # exit code in $code, stdout and stderr in files
    code=0
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
is_json() { python3 -S -c 'import json,sys; json.load(open(sys.argv[1]))' "$tmp/out"; }
json() { python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); print(eval(sys.argv[2], {"d": d}))' "$tmp/out" "$1"; }

run --help
check "overview exits 0" [ $code = 0 ]
check "overview names the commands" grep -q '^  run ' "$tmp/out"
run --version
check "version" grep -q '^nibble [0-9]' "$tmp/out"
run
check "no command exits 2" [ $code = 2 ]
run frobnicate
check "unknown command exits 2" [ $code = 2 ]
check "and names it" grep -q frobnicate "$tmp/err"
for command in run chat tokenize logits eval bench info hw synth models plan profile pull; do
    run $command --help
    check "$command --help" [ $code = 0 ]
    check "$command --help shows usage" grep -q "^usage: nibble $command" "$tmp/out"
done
run run "$model" --no-such-flag
check "unknown flag exits 2" [ $code = 2 ]
run run "$model" -n many
check "bad number exits 2" [ $code = 2 ]
run run "$model" --kv kv5
check "unknown cache exits 2" [ $code = 2 ]
check "and says which there are" grep -q "f16, f32, kv8, kv4, kv8h, kv4h or kv4s, found 'kv5'" "$tmp/err"
run run "$model" --tokens 1,2 -n 2 --temp 0 --kv kv4,0=f16 --json
check "a format for some layers" [ $code = 0 ]
check "is reported" [ "$(json '[p["format"] for p in d["memory"]["kv"]]')" = "['f16', 'kv4']" ]
for wrong in 'kv4,' kv4,99=f16 0=kv5 kv4,0=f16x kv4,f16; do
    run run "$model" --kv $wrong --tokens 1,2 -n 1
    check "$wrong exits 2" [ $code = 2 ]
done
ids=$(seq -s, 1 100)
for batch in 1 100; do
    run run "$model" --tokens "$ids" -n 10 --ignore-eos --temp 0 --kv kv4 -b $batch --json
    check "a cache in 4 bits" [ $code = 0 ]
    json 'd["tokens"]' >"$tmp/kv4.$batch"
done
check "and the same tokens for any batch" cmp -s "$tmp/kv4.1" "$tmp/kv4.100"
for batch in 1 100; do
    run run "$model" --tokens "$ids" -n 10 --ignore-eos --temp 0 --sparse-v 10 -b $batch --json
    check "values of the largest weights" [ $code = 0 ]
    json 'd["tokens"]' >"$tmp/sparse.$batch"
done
check "the same tokens for any batch" cmp -s "$tmp/sparse.1" "$tmp/sparse.100"
run run "$model" --tokens "$ids" -n 10 --ignore-eos --temp 0 --sparse-v 100 --json
json 'd["tokens"]' >"$tmp/sparse.all"
run run "$model" --tokens "$ids" -n 10 --ignore-eos --temp 0 --json
json 'd["tokens"]' >"$tmp/sparse.none"
check "all of them are attention without a choice" cmp -s "$tmp/sparse.all" "$tmp/sparse.none"
check "10 % are not" test "$(cat "$tmp/sparse.1")" != "$(cat "$tmp/sparse.none")"
run run "$model" --backend check --tokens 1,2 -n 1 --sparse-v 10
check "another back end has no sparse values" [ $code = 2 ]
run run "$model" --ram lots
check "bad size exits 2" [ $code = 2 ]
run run "$model" two --tokens 1 three
check "an argument too many exits 2" [ $code = 2 ]
check "and is named" grep -q "unexpected argument 'three'" "$tmp/err"
run run "$model" -p a -f b --tokens 1
check "a text and tokens exit 2" [ $code = 2 ]
run run "$model" --tokens ""
check "no tokens at all exit 2" [ $code = 2 ]
run run "$model" --tokens 1,2 -c 1
check "a prompt longer than the context exits 2" [ $code = 2 ]
check "and writes nothing to stdout" [ ! -s "$tmp/out" ]
run run "$model" --tokens 1 -n 0
check "no tokens to generate is fine" [ $code = 0 ]
run run "$model" -qvn1 --tokens 1
check "letters may stand together" [ $code = 0 -a "$(wc -w <"$tmp/out")" = 1 ]
NIBBLE_MODEL=/no/such/model run run "$model" --tokens 1 -n 1
check "the first argument beats NIBBLE_MODEL" [ $code = 0 ]
NIBBLE_MODEL=$model run run --tokens 1 -n 1
check "which stands in when there is none" [ $code = 0 ]
run run "$model" --tokens 1 -n 1 --log /no/such/folder/log
check "a log that cannot be written exits 2" [ $code = 2 ]
run --completion fish
check "an unknown shell is named" grep -q "found 'fish'" "$tmp/err"
run bench "$model" -p 0 -n 0
check "nothing to time exits 2" [ $code = 2 ]
code=0
"$nibble" --man >/dev/full 2>"$tmp/err" || code=$?
check "the man page on a full disk exits 1" [ $code = 1 ]
code=0
"$nibble" run "$model" --tokens 1 -n 1 >&- 2>"$tmp/err" || code=$?
check "a closed stdout exits 1" [ $code = 1 ]
run run /no/such/model -p x
check "missing model exits 4" [ $code = 4 ]
run run "$model" -p hello
check "text without a tokenizer exits 2" [ $code = 2 ]
run run "$model" --tokens 1,2,999999
check "an id outside the vocabulary exits 2" [ $code = 2 ]
run run "$model" --tokens 1 --backend abacus
check "an unknown back end exits 5" [ $code = 5 ]
check "and says which there are" grep -q "backend 'abacus' is not available; this build has: cpu, check, cuda" "$tmp/err"
export NIBBLE_CUDA=0
run run "$model" --tokens 1 --backend cuda
unset NIBBLE_CUDA
check "no such device exits 5" [ $code = 5 ]
check "and says why" grep -q "backend 'cuda': no GPU can be used: " "$tmp/err"

run run "$model" --tokens 1,2,3 -n 8 --temp 0 --ignore-eos
check "run exits 0" [ $code = 0 ]
check "ids alone on stdout" grep -Eq '^[0-9]+( [0-9]+){7}$' "$tmp/out"
check "nothing on stderr" [ ! -s "$tmp/err" ]
first=$(cat "$tmp/out")
run run "$model" --tokens 1,2,3 -n 8 --temp 0 --ignore-eos --backend check
check "the same on the check back end" [ "$first" = "$(cat "$tmp/out")" ]
run run "$model" --tokens 1,2,3 -n 8 --temp 0 --ignore-eos -t 1 -b 1
check "the same for one thread and one row at a time" [ "$first" = "$(cat "$tmp/out")" ]
run run "$model" --tokens 1,2,3 -n 8 --temp 0 --ignore-eos --json
check "run --json" is_json
check "and the same tokens" [ "$(json '" ".join(map(str, d["tokens"]))')" = "$first" ]
check "finish_reason" [ "$(json 'd["finish_reason"]')" = length ]
check "rss_peak is there" [ "$(json 'd["memory"]["rss_peak"] > 0')" = True ]
check "placement: every block" [ "$(json '[b["name"] for b in d["placement"]]')" = "['embed', 'layer.0', 'layer.1', 'layer.2', 'layer.3', 'head']" ]
check "placement: every weight byte, the ledger's pages aside" [ "$(json '0.9 < sum(s["bytes"] for b in d["placement"] for s in b["slices"]) / d["memory"]["owners"]["weights"] <= 1')" = True ]
run run "$model" --tokens 1,2,3 -n 2 --ignore-eos -v --log "$tmp/said"
check "-v says where the weights are" grep -Eq '^  layers 0-3 +bf16 +RAM +[0-9.]+ KiB' "$tmp/err"
check "and what was planned and measured" [ "$(grep -Ec '^  (planned|measured) peak +[0-9.]+ MiB' "$tmp/err")" = 2 ]
check "--log has the same" cmp -s "$tmp/err" "$tmp/said"
NIBBLE_PREDICT=3 run run "$model" --tokens 1,2,3 --temp 0 --ignore-eos
check "the environment sets an option" [ "$(wc -w <"$tmp/out")" = 3 ]
NIBBLE_PREDICT=3 run run "$model" --tokens 1,2,3 --temp 0 --ignore-eos -n 2
check "a flag beats it" [ "$(wc -w <"$tmp/out")" = 2 ]
run run "$model" --tokens 1,2,3 -n 4 --ram 1M
check "an impossible budget exits 3" [ $code = 3 ]
check "and says what would do" grep -Eq '[0-9] (KiB|MiB|GiB)' "$tmp/err"

run info "$model" --json
check "info --json" is_json
check "its keys" [ "$(json 'd["arch"], d["n_layer"], d["d_model"], d["n_kv_head"]')" = "('llama', 4, 64, 2)" ]
run logits "$model" --tokens 1,2,3 -o "$tmp/l.safetensors"
check "logits" [ $code = 0 ]
check "its size: header, 3 x 320 floats" [ "$(wc -c <"$tmp/l.safetensors")" -gt 3840 ]
run logits "$model" --tokens 1,2,3 -o /no/such/folder/l.safetensors
check "logits to nowhere fails" [ $code = 1 ]
run bench "$model" -p 16 -n 4 -r 1 --json
check "bench --json" is_json
check "bench: processor seconds of a token" [ "$(json '[0 < r["cpu_s"] < 1 for r in d["rows"]]')" = "[True, True]" ]
# Keys and values of an earlier prompt are reused, so repeats must not have the same prompt.
prompt_macs() {
    run bench "$model" -p "$1" -n 0 -r 2 --ram 1G --trace --json # with a cap memory is not measured
    json 'round(sum(t["macs"] for t in d["rows"][0]["trace"] if t["op"].startswith("linear gate")))'
}
check "every repeat computes its whole prompt" [ "$(prompt_macs 192)" -gt $(($(prompt_macs 64) * 2)) ]

run bench "$model" -p 8 -n 4 -d 70 -r 1 --ram 1G --json
check "bench at a depth names it" [ "$(json '[r["test"] for r in d["rows"]]')" = "['pp8 @ d70', 'tg4 @ d70']" ]
run bench "$model" -p 8 -n 4 -r 1 -np 1,2 --json
check "bench -np: the weight bytes of each row" [ "$(json '[(r["n_seq"], r["gb_s"] > 0, "peak_share" in r) for r in d["rows"]]')" = \
    "[(1, True, True), (2, True, True)]" ]
check "bench -np: processor seconds of a token" [ "$(json '[0 < r["cpu_s"] < 1 for r in d["rows"]]')" = "[True, True]" ]
run bench "$model" -p 8 -n 2 -r 1 -b 8 -np 6 --json
check "bench -np: more steps of prompts than tokens of an answer" [ "$(json '[(r["n_seq"], r["tok_s"] > 0) for r in d["rows"]]')" = "[(6, True)]" ]
run bench "$model" -p 8 -n 4 -d 70 -np 1,2
check "of several sequences it is refused" [ $code = 2 ]

mkdir "$tmp/broken"
cp "$model/config.json" "$tmp/broken"
head -c 100000 "$model/model.safetensors" >"$tmp/broken/model.safetensors"
run run "$tmp/broken" --tokens 1
check "a truncated file exits 4" [ $code = 4 ]
check "and is named" grep -q model.safetensors "$tmp/err"

code=0
"$nibble" run "$model" --tokens 1,2,3 -n 50 --ignore-eos >/dev/full 2>"$tmp/err" || code=$?
check "a full disk exits 1" [ $code = 1 ]
check "and says so" grep -q "No space left" "$tmp/err"
code=$( ("$nibble" run "$model" --tokens 1,2,3 -n 2000 -c 4096 --ignore-eos -q 2>"$tmp/err"; echo $? >"$tmp/code") | head -c 4 >/dev/null; cat "$tmp/code")
check "a closed pipe ends the run quietly" [ "$code" = 1 ]
check "without a message" [ ! -s "$tmp/err" ]
code=0
timeout -s INT --preserve-status 1 "$nibble" run "$model" --tokens 1 -n -1 -c 1000000 --ignore-eos >"$tmp/out" 2>"$tmp/err" || code=$?
check "interrupted: 130" [ $code = 130 ]
code=0
timeout -s TERM --preserve-status 1 "$nibble" run "$model" --tokens 1 -n -1 -c 1000000 --ignore-eos >"$tmp/out" 2>"$tmp/err" || code=$?
check "ended by SIGTERM: 143" [ $code = 143 ]

[ $failed = 0 ]
