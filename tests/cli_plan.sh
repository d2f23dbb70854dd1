#!/bin/sh
# nibble plan from outside: the table, its JSON, a hand edit and its mistakes, budgets that do not fit, and planned
# against measured values. The model is a synthetic one of 25 MB. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
model=$tmp/model.gguf
if is_sanitized; then
    echo "skip plan: a sanitizer's own memory does not fit the caps here"
    exit 0
fi

run() { # exit code in $code, stdout and stderr in files
    code=0
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
json() { python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); print(eval(sys.argv[2], {"d": d, "sum": sum}))' "$tmp/out" "$1"; }
true_that() { [ "$(json "$1")" = True ]; }
edit() { python3 -S -c 'import sys; t=open(sys.argv[1]).read(); assert sys.argv[2] in t; open(sys.argv[3],"w").write(t.replace(sys.argv[2],sys.argv[4],1))' "$tmp/plan.json" "$1" "$tmp/edited.json" "$2"; }

run synth smollm2-135m --layers 8 -o "$model"
check "a model" [ $code = 0 ]

run plan "$model" -c 128
check "plan exits 0" [ $code = 0 ]
check "the table has a bar for RAM" grep -q '^  RAM ' "$tmp/out"
check "neighbours are one row" grep -q 'layer.0-7' "$tmp/out"
check "guessed rates are said to be" grep -q 'guesses' "$tmp/out"
check "no colours" sh -c "! grep -q \"\$(printf '\\033')\" '$tmp/out'"

run plan "$model" -c 128 --ram 28M --json -o "$tmp/plan.json"
check "plan --json -o exits 0" [ $code = 0 ]
check "the file is what was printed" cmp -s "$tmp/out" "$tmp/plan.json"
check "keys of the surface" true_that 'all(k in d for k in ("model","budget","blocks","kv","schedule","predicted","binds","one_more_gb"))'
check "all blocks" true_that '[b["name"] for b in d["blocks"]] == ["embed"] + ["layer.%d" % i for i in range(8)] + ["head"]'
check "something is streamed" true_that 'd["predicted"]["bytes_per_token"]["disk"] > 0'
check "within the cap" true_that 'd["predicted"]["ram_peak"] <= 28 << 20'
check "owners add up" true_that 'sum(d["predicted"]["owners"].values()) == d["predicted"]["ram_peak"]'

run plan "$model" --json
check "one format of all layers" true_that 'd["kv"] == [{"layers": "all", "format": "f16", "shares": {"vram": 0, "ram": 1, "disk": 0}}]'
check "a schedule" true_that 'd["schedule"]["kind"] == "row" and d["schedule"]["attend"] == "processor"'
run plan "$model" --kv kv4h --json # listed beside four others
check "rotated values" true_that '[k["format"] for k in d["kv"]] == ["kv4h"] and sum(a["what"].startswith("--kv") for a in d["alternatives"]) == 4'
run plan "$model" -c 512 --ram 200M --parallel 4 --json
check "sequences by format of keys and values" true_that 'any("about so many sequences of 512 positions beside all weights, by --kv: f16 " in n and "kv4 " in n for n in d["notes"])'
edit_kv() { python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); d["kv"]=[{"layers": l, "format": f} for l, f in zip(sys.argv[3::2], sys.argv[4::2])]; json.dump(d, open(sys.argv[2],"w"))' "$tmp/plan.json" "$tmp/edited.json" "$@"; }
edit_kv 0-2 f16 3-6 kv4 7 kv8
run run "$model" --plan "$tmp/edited.json" --tokens 1,2,3 -n 2 --ignore-eos --temp 0
check "formats of keys and values by layer" [ $code = 0 ]
edit_kv 0-2 f16 9 kv4
run run "$model" --plan "$tmp/edited.json" --tokens 1,2,3 -n 2
check "of a layer that does not exist" sh -c "[ $code = 2 ] && grep -q '9=kv4' '$tmp/err'"
edit_kv all f16 7 kv4
run run "$model" --plan "$tmp/edited.json" --tokens 1,2,3 -n 2
check "all layers, and one" sh -c "[ $code = 4 ] && grep -q 'alone' '$tmp/err'"

run plan "$model" --json
check "a usual context without a cap" true_that 'd["schedule"]["n_ctx"] == 4096'
run plan "$model" --ram 28M --json
check "a shorter one under a cap" true_that '256 <= d["schedule"]["n_ctx"] < 4096'
check "said aloud" grep -q 'the context has .* positions' "$tmp/err"
run plan "$model" --ram 28M -c 300 --json
check "not where one was asked for" true_that 'd["schedule"]["n_ctx"] == 300'
run run "$model" --ram 20M --tokens 1,2,3 -n 2 --ignore-eos --temp 0
check "a run takes what it needs" sh -c "[ $code = 0 ] && ! grep -q 'the context has' '$tmp/err'"

run plan "$model" -c 128 --ram 9M
check "what does not fit exits 3" [ $code = 3 ]
check "and says what would" grep -q 'is the smallest that works' "$tmp/err"
min_kib=$(sed -n 's/.*; \([0-9.]*\) MiB is the smallest.*/\1/p' "$tmp/err" | python3 -S -c 'import math; print(math.ceil(float(input())*1024)+512)')
run plan "$model" -c 128 --ram "${min_kib}K"
check "which does" [ $code = 0 ]
run run "$model" -c 128 --ram "${min_kib}K" --tokens 1,2,3 -n 2 --ignore-eos --temp 0 --json
check "also for a run" [ $code = 0 ]
# A little more holds the shortest usual context, and a prompt that nearly fills it is quick.
run run "$model" --ram "$((min_kib + 1024))K" --tokens "$(seq -s, 1 240)" -n 2000 --ignore-eos --temp 0 --json
check "which ends where its context does" true_that '10 < len(d["tokens"]) < 500'

run run "$model" --tokens 1,2,3 -n 8 --ignore-eos --temp 0 -c 128 --json
whole=$(json 'd["tokens"]')
run run "$model" --plan "$tmp/plan.json" --tokens 1,2,3 -n 8 --ignore-eos --temp 0 --json
check "run --plan exits 0" [ $code = 0 ]
check "with the same tokens as without a cap" [ "$(json 'd["tokens"]')" = "$whole" ]
check "and keeps what the plan keeps" python3 - "$tmp/plan.json" "$tmp/out" <<'PY'
import json, sys
def kept(blocks):
    return sum(s["bytes"] for b in blocks for s in b["slices"] if s["tier"] == "ram")
plan, ran = json.load(open(sys.argv[1])), json.load(open(sys.argv[2]))
a, b = kept(plan["blocks"]), kept(ran["placement"])
assert abs(a - b) <= 0.03 * a + 65536, (a, b)
PY
check "expected beside measured" true_that 'd["predicted"]["tok_s"] > 0 and d["predicted"]["guessed"]'
check "the peak stays under the cap" true_that 'd["memory"]["rss_peak"] <= 28 << 20'
check "the expected peak is near the measured one" true_that 'abs(d["predicted"]["ram_peak"] - d["memory"]["rss_peak"]) < 0.05 * d["memory"]["rss_peak"]'

unset NIBBLE_NO_LEARN
run run "$model" --ram 28M --tokens 1,2,3 -n 40 --ignore-eos --temp 0 -c 128 --draft-max 0 --json
check "nothing was learned before" true_that 'd["predicted"]["from"] == "guess" and d["predicted"]["runs"] == 0'
check "all but the first token are timed" true_that 'd["timings"]["token_n"] == 39 and d["timings"]["token_s"] <= d["timings"]["predicted_s"]'
measured=$(json 'd["timings"]["token_n"] / d["timings"]["token_s"]')
formula() { sed -n 's/.*"formula_s":\([^,]*\),.*/\1/p' "$tmp"/cache/nibble/learned/*.jsonl | tail -1; }
formulas=$(formula)
first=$(json 'd["tokens"]')
run run "$model" --ram 28M --tokens 1,2,3 -n 40 --ignore-eos --temp 0 -c 128 --draft-max 0 --json
# The second run may keep a little more or less of the model: its formula says what that changes.
formulas=$formulas/$(formula)
check "the next prediction is what was measured" true_that "d['predicted']['from'] == 'runs' and abs(d['predicted']['tok_s'] / ($measured * $formulas) - 1) < 0.001"
check "and changes no token" [ "$(json 'd["tokens"]')" = "$first" ]
run plan "$model" --ram 28M -c 128 -p 3 -n 40 --json
check "so is the plan's" true_that "d['predicted']['from'] == 'runs' and abs(d['predicted']['tok_s'] / $measured - 1) < 0.5"
run plan "$model" --ram 28M -c 128 --no-learn --json
check "unless it is told not to" true_that 'd["predicted"]["from"] == "guess"'
run plan "$model" --ram 28M -c 128 --no-learn
check "a guess is called one wherever a rate is printed" \
    sh -c 'grep -q "tok/s (a guess)" "$1" && ! grep "tok/s" "$1" | grep -qv "a guess"' - "$tmp/out"
run run "$model" --ram 28M --tokens 1,2,3 -n 2 --ignore-eos -c 128 --no-learn -v
check "before a run, too" grep -q '^expected .*tok/s (a guess' "$tmp/err"
find "$tmp/cache/nibble/learned" -name '*.jsonl' -exec sh -c 'echo "{" > "$1"' sh {} \;
run run "$model" --ram 28M --tokens 1,2,3 -n 8 --ignore-eos --temp 0 -c 128 --json
check "a damaged file is said and left aside" sh -c "[ $code = 0 ] && grep -q 'earlier runs' '$tmp/err'"
NIBBLE_NO_LEARN=1
export NIBBLE_NO_LEARN

edit '"tier": "ram"' '"teir": "ram"'
run run "$model" --plan "$tmp/edited.json" --tokens 1,2,3 -n 1
check "a misspelt key is refused" [ $code = 4 ]
check "and named" grep -q teir "$tmp/err"
python3 - "$tmp/plan.json" "$tmp/edited.json" <<'PY'
import json, sys
d = json.load(open(sys.argv[1]))
b = d["blocks"][3]
total = sum(s["bytes"] for s in b["slices"])
b["slices"] = [{"format": "file", "bytes": total, "tier": "disk"}]
json.dump(d, open(sys.argv[2], "w"))
PY
run run "$model" --plan "$tmp/edited.json" --tokens 1,2,3 -n 8 --ignore-eos --temp 0 --json
check "a hand edit counts" true_that 'sum(s["bytes"] for s in d["placement"][3]["slices"] if s["tier"] == "ram" and s["format"] != "f32") == 0'
check "and changes no token" [ "$(json 'd["tokens"]')" = "$whole" ]
run run "$model" --plan "$tmp/plan.json" --quality high --tokens 1 -n 1
check "a plan and a request exit 2" [ $code = 2 ]

run plan "$model" --quality best
check "an unknown quality exits 2" [ $code = 2 ]
run plan "$model" --quality balanced -c 128
check "without measured costs only the file's formats" grep -q 'not measured' "$tmp/out"
run run "$model" --quality balanced -c 128 --tokens 1 -n 1 --ignore-eos --temp 0
check "a run says so too" sh -c "[ $code = 0 ] && grep -q 'costs of lower formats are not measured' '$tmp/err'"
run plan "$model" --mode b -c 128
check "mode b without measured costs exits 2" [ $code = 2 ]

# residuals: the cost and gain of each step, and a plan that is followed
run synth smollm2-135m --layers 2 --type f16 -o "$tmp/f16.gguf"
run quantize "$tmp/f16.gguf" -o "$tmp/coarse.gguf" --type n3g64 --imatrix none
check "a coarse model" [ $code = 0 ]
run plan "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --slowdown 900%
check "plan --slowdown with a percent sign" [ $code = 0 ]
check "says what a token reads" grep -q '^residuals .* % slower, measured; .* of RAM, of which a token reads' "$tmp/out"
check "and what its steps cost" grep -q '^its steps .*slower, % .*read .*perplexity' "$tmp/out"
run plan "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --slowdown 900 --json -o "$tmp/plan.json"
check "at most what was asked for" true_that '0 <= d["residuals"]["slowdown"] <= 9'
check "steps with their bytes" true_that 'all(0 < s["read"] <= d["residuals"]["ram"] and len(s["kinds"]) == 4 for s in d["residuals"]["steps"])'
check "no perplexity without a tokenizer" true_that '"perplexity" not in d["residuals"]'
run run "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --plan "$tmp/plan.json" --tokens 1,2,3 -n 4 --ignore-eos --temp 0
check "a run follows the plan with its steps" [ $code = 0 ]
run run "$tmp/coarse.gguf" -c 128 --plan "$tmp/plan.json" --tokens 1,2,3 -n 4 --ignore-eos --temp 0
check "not without the residuals" sh -c "[ $code = 2 ] && grep -q 'residual FILE' '$tmp/err'"
run run "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --slowdown 900% -v --tokens 1,2,3 -n 2 --ignore-eos --temp 0
check "run -v says them too" sh -c "[ $code = 0 ] && grep -q 'slower, %.*read.*perplexity' '$tmp/err'"
run plan "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --quality high --json -o "$tmp/plan.json"
check "--quality high gives back what 5 % allow" true_that 'd["residuals"]["slowdown"] <= 0.05'
run run "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --quality high --tokens 1,2,3 -n 2 --ignore-eos --temp 0
check "a run does so" sh -c "[ $code = 0 ] && grep -q '^residuals: ' '$tmp/err'"
run run "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --quality high --k-chunk 16 --tokens 1,2,3 -n 2 --ignore-eos --temp 0
check "not where channels are asked for" sh -c "[ $code = 0 ] && ! grep -q '^residuals: ' '$tmp/err'"
run run "$tmp/coarse.gguf" -c 128 --residual "$tmp/f16.gguf" --quality high --ram 20M --tokens 1,2,3 -n 2 --ignore-eos --temp 0
check "none where they do not fit in RAM" sh -c "[ $code = 0 ] && grep -q 'no residuals: ' '$tmp/err'"
# the same RAM spent on bits: the original takes less than its base with residuals
run synth smollm2-135m --layers 6 --type f16 -o "$tmp/six.gguf"
run quantize "$tmp/six.gguf" -o "$tmp/fine.gguf" --type q4_1 --head-type q8_0 --imatrix none
run quantize "$tmp/fine.gguf" -o "$tmp/base.gguf" --type n3g64 --head-type q8_0 --imatrix none
run plan "$tmp/base.gguf" -c 128 --residual "$tmp/fine.gguf" --quality high --json
check "no residuals where the original takes no more RAM" true_that '"residuals" not in d'
check "and is named" grep -q 'fine.gguf fits in the same RAM and loses less' "$tmp/err"
run plan "$tmp/coarse.gguf" --residual "$tmp/f16.gguf" --slowdown x%
check "a slowdown that is none exits 2" [ $code = 2 ]

# no GPU, with a size from --vram; then the fake GPU of the tests
gpu() { NIBBLE_CUDA=$1; export NIBBLE_CUDA; shift; run "$@"; unset NIBBLE_CUDA; }
gpu 0 plan "$model" -c 128 --backend cuda
check "without a GPU and without --vram there is no plan for one" sh -c "[ $code = 5 ] && grep -q 'vram SIZE plans' '$tmp/err'"
gpu 0 plan "$model" -c 128 --backend cuda --vram 624M
check "with --vram there is" [ $code = 0 ]
check "a bar for VRAM" grep -q '^  VRAM .* of 624.0 MiB' "$tmp/out"
check "layers on the GPU" grep -q '^  layer.* VRAM ' "$tmp/out"
check "layers of the processor" grep -q '^  layer.* RAM .*computed by the processor' "$tmp/out"
check "layers that come" grep -q '^  layer.* RAM .*streamed over the link' "$tmp/out"
check "how many" grep -q '^GPU  .*of 9 blocks are resident; .* are streamed' "$tmp/out"
check "where keys and values are" grep -q '^VRAM .*kv .*in RAM.*driver .*(a guess)' "$tmp/out"
check "the rates of both" grep -q '^speed .*tok/s (a guess); the first token of a prompt of .*tok/s)' "$tmp/out"
check "what each tier gives to a token" grep -q '^a token .*from VRAM, .*from RAM, .*over the link: .*of the GPU' "$tmp/out"
check "what more VRAM would buy" grep -q '^bottleneck .*of VRAM: +[1-9]' "$tmp/out"
check "guesses are said to be" grep -q '^note .*there is no GPU here.*guesses' "$tmp/out"
gpu 0 plan "$model" -c 128 --backend cuda --vram 624M --json
check "a block computes on the GPU where its slices are" true_that \
    'all((b["compute"] == "gpu") >= (s["tier"] == "vram") for b in d["blocks"] for s in b["slices"])'
check "the counts are of the blocks" true_that \
    'd["gpu"]["in_place"] == sum(b["compute"] == "cpu" for b in d["blocks"][1:]) > 0 < d["gpu"]["streamed"]'
check "within the cap" true_that 'd["predicted"]["vram_peak"] <= 624 << 20'
check "bytes of a token from each tier" true_that 'all(d["predicted"]["bytes_per_token"][t] > 0 for t in ("vram", "ram", "link"))'
check "what comes is what the link takes" true_that \
    '0.95 < d["predicted"]["bytes_per_token"]["link"] / sum(s["bytes"] for b in d["blocks"][1:] if b["compute"] == "gpu" for s in b["slices"] if s["tier"] == "ram") <= 1'
check "a guess" true_that 'd["gpu"]["guessed"] and d["predicted"]["from"] == "guess"'
gpu 0 plan "$model" -c 128 --backend cuda --vram 590M
check "what does not fit exits 3 and says what would" sh -c "[ $code = 3 ] && grep -q 'VRAM: .*--vram .* is the smallest that works' '$tmp/err'"
fake=$(cd "$(dirname "$nibble")" && pwd)/tests/libfakecuda.so
if [ -f "$fake" ]; then
    gpu "$fake" plan "$model" -c 128 --backend cuda --vram 34M --json -o "$tmp/plan.json"
    check "a plan with the device's figures" true_that 'not d["gpu"]["guessed"] and d["gpu"]["in_place"] > 0'
    gpu "$fake" plan "$model" -c 128 --backend cuda --json
    one=$(json 'd["gpu"]["kv"]')
    check "of one sequence" true_that 'not d["gpu"]["many_sequences"] and not any("decode together" in n for n in d["notes"])'
    gpu "$fake" plan "$model" -c 128 --backend cuda --parallel 20 --json
    check "a plan for many sequences says so" true_that 'd["gpu"]["many_sequences"] and any("20 sequences" in n for n in d["notes"])'
    check "with their keys and values" true_that "d['gpu']['kv'] == 20 * $one"
    gpu "$fake" plan "$model" -c 128 --backend cuda --parallel 20
    check "and in its table" grep -q 'generated rows use the kernels for many sequences' "$tmp/out"
    gpu "$fake" run "$model" --backend cuda --vram 34M -c 128 --tokens 1,2,3 -n 4 --ignore-eos --temp 0 --json
    on_gpu=$(json 'd["tokens"]')
    places=$(json '[s["tier"] for b in d["placement"] for s in b["slices"] if s["format"] != "f32"]')
    gpu "$fake" run "$model" --plan "$tmp/plan.json" --tokens 1,2,3 -n 4 --ignore-eos --temp 0 --json
    check "run --plan does as it says" [ "$(json '[s["tier"] for b in d["placement"] for s in b["slices"] if s["format"] != "f32"]')" = "$places" ]
    check "with the same tokens" [ "$(json 'd["tokens"]')" = "$on_gpu" ]
    check "and its cap" true_that 'd["memory"]["tiers"]["vram"]["peak"] <= d["memory"]["tiers"]["vram"]["cap"] == 34 << 20'
    gpu "$fake" run "$model" --plan "$tmp/plan.json" --tokens 1,2,3 -n 1 --ignore-eos --temp 0 -v
    check "run -v has planned VRAM beside what was taken" sh -c "grep -q '^  planned VRAM ' '$tmp/err' && grep -q '^  taken at most ' '$tmp/err'"
    check "and the placement" grep -q '^  VRAM .* %' "$tmp/err"
    gpu "$fake" run "$model" --plan "$tmp/plan.json" --backend cpu --tokens 1,2,3 -n 1
    check "another back end than the plan's exits 2" [ $code = 2 ]
fi

# a profile without costs: MCAP's rules decide
run profile "$model" -t 2
check "the layers' importance" [ $code = 0 ]
run plan "$model" --mode b -c 128 --ram 42M --json
check "layers are left out so that the others fit" true_that \
    '0 < sum(b.get("left_out", False) for b in d["blocks"]) < 8 and not any(s["tier"] == "disk" for b in d["blocks"] for s in b["slices"])'
check "and the plan warns" true_that 'any("may be very high" in note for note in d["notes"])'
run run "$model" --mode b -c 128 --ram 42M --tokens 1,2,3 -n 4 --ignore-eos --temp 0
check "a run does so too" [ $code = 0 ]
run plan "$model" --mode b -c 128 --ram 31M
check "half of the layers that do not fit exit 3" [ $code = 3 ]
check "and says so" grep -q 'at most half of the layers' "$tmp/err"
run plan "$model" --quality high -c 128 --json
check "16-bit activations from a score of 0.7 on" true_that \
    'all((b["activation"] == "a16") == (b["importance"] >= 0.7) for b in d["blocks"] if b.get("importance") is not None)'

# costs in the form of nibble profile --costs: without layers 5 and 2 together 0.05 nats, without three 0.5
run plan "$model" -c 128 --json
mkdir -p "$XDG_CACHE_HOME/nibble/importance"
python3 - "$tmp/out" "$XDG_CACHE_HOME/nibble/importance" <<'END'
import json, sys
content, n = json.load(open(sys.argv[1]))["content"], 10
place = {6: 0, 3: 1, 1: 2, 2: 3, 4: 4, 5: 5, 7: 6, 8: 7}
layers = lambda f: [f(b) if b in place else None for b in range(n)]
costs = {"nibble_quality": 1, "content": content, "prompts": "0123", "n_block": n, "n_token": 8, "formats": [], "kl": [],
         "error": [], "kl_activation": [0] * 2 * n, "error_activation": [0] * 2 * n, "kl_left_out": layers(lambda b: 0.2),
         "place": layers(lambda b: place[b]), "kl_fewer": [0, 0.01, 0.05, 0.5, 1, 2, 3, 4, None, None]}
json.dump(costs, open(f"{sys.argv[2]}/{content}-0123-quality.json", "w"))
END
run plan "$model" --quality small -c 128 --json
check "layers are left out where what that costs together is allowed" true_that \
    '[b["name"] for b in d["blocks"] if b.get("left_out")] == ["layer.2", "layer.5"] and d["mode"] == "b"'
check "and the plan says what it costs" true_that 'abs(d["predicted"]["quality"] - 0.05) < 1e-6'
run run "$model" --quality small -c 128 --tokens 1,2,3 -n 4 --ignore-eos --temp 0
check "a run does so" [ $code = 0 ]
run plan "$model" --quality balanced -c 128 --json
check "fewer where less is allowed" true_that '[b["name"] for b in d["blocks"] if b.get("left_out")] == ["layer.5"]'
run plan "$model" --quality small --mode a -c 128 --json
check "none with --mode a" true_that 'not any(b.get("left_out") for b in d["blocks"]) and d["mode"] == "a"'
run plan "$model" --speed 1 -c 128
check "--speed alone says what it may lose" grep -q 'up to 1 nat a token' "$tmp/out"
# A plan for a batch: as many bytes as its engine and its requests may take, and no estimate of the best tokens.
run plan "$model" -c 128 --parallel 4 --ram 32M --json -o "$tmp/batch.json"
check "a plan for four sequences" true_that 'd["budget"]["ram"] == 32 << 20 and d["predicted"]["ram_peak"] <= 29 << 20'
echo '{"custom_id": "1"}' >"$tmp/in.jsonl"
opens() { grep -q 'are streamed from disk' "$tmp/err" && grep -q 'has no tokenizer' "$tmp/err"; } # a synthetic model has none
run batch "$model" -i "$tmp/in.jsonl" -o "$tmp/out.jsonl" --parallel 4 --plan "$tmp/batch.json"
check "a batch opens its engine by it" opens
run batch "$model" -i "$tmp/in.jsonl" -o "$tmp/out.jsonl" --parallel 4 --plan "$tmp/batch.json" --ram 32M
check "also where --ram is given" opens
run plan "$model" -c 128 --parallel 4 --ram 2M
check "a cap that requests would take whole" sh -c "[ $code = 2 ] && grep -q 'reserved for requests' '$tmp/err'"
run plan "$model" -c 128 --parallel 4 --ram 9M
check "what does not fit beside requests exits 3" [ $code = 3 ]
min_kib=$(sed -n 's/.*; \([0-9.]*\) MiB is the smallest.*/\1/p' "$tmp/err" | python3 -S -c 'import math; print(math.ceil(float(input())*1024))')
run plan "$model" -c 128 --parallel 4 --ram "${min_kib}K"
check "the named cap has room for requests too" [ $code = 0 ]

run plan "$model" --parallel 1,2
check "several numbers of sequences exit 2" [ $code = 2 ]
run plan "$model" --mode d
check "an unknown mode exits 2" [ $code = 2 ]
run run "$model" --quality lossless --ram 28M -c 128 --tokens 1,2,3 -n 8 --ignore-eos --temp 0 --json
check "run --quality makes its own plan" [ $code = 0 ]
check "lossless changes no token" [ "$(json 'd["tokens"]')" = "$whole" ]
run plan synth:opt-175b --ram 16G -c 512 --json
check "a shape without a file" [ $code = 0 ]
check "has all its layers" true_that 'len(d["blocks"]) == 98'
run plan synth:nothing
check "an unknown shape exits 2" [ $code = 2 ]
run plan "$here/data/arch/llama" -c 16
check "a tiny folder" [ $code = 0 ]

# a block of work
if PATH=$PATH:/sbin ldconfig -p | grep -q libClp.so.1; then
    run plan "$model" --ram 28M --workload 32x32x200 --json
    check "a workload" [ $code = 0 ]
    check "its schedule" true_that 'd["schedule"]["kind"] == "refill" and 1 < d["schedule"]["block"] <= 200 >= d["schedule"]["micro_batch"]'
    check "its shares" true_that 'all(abs(sum(d["shares"][k].values()) - 1) < 1e-6 for k in ("weights", "kv", "stream"))'
    check "part of it is streamed" true_that '0 < d["shares"]["weights"]["disk"] < 1 and d["shares"]["kv"]["ram"] == 1'
    check "the bound is no lower" true_that 'd["bound"]["predicted"]["tok_s"] >= d["predicted"]["tok_s"] * 0.999999'
    one=$(json 'd["predicted"]["tok_s"]')
    run plan "$model" --ram 28M --workload 32x32x200 --kv auto --quality small --json
    check "formats that nobody measured are not chosen" true_that '[(f["kv"], f["weights"], f["loss"], f["chosen"]) for f in d["formats"]] == [("f16", "file", 0, True), ("kv8", "file", None, False), ("kv4", "file", None, False)]'
    run plan "$model" --ram 28M --workload 32x32x1 --json
    check "one request alone is slower" true_that "d['predicted']['tok_s'] < $one / 4"
    run plan "$model" --ram 28M --workload 32x32x200 --frontier --json
    check "a frontier rises" true_that 'all(a["predicted"][k] < b["predicted"][k] for a, b in zip(d["frontier"], d["frontier"][1:]) for k in ("latency_s", "tok_s"))'
    check "it has several points, up to the fastest" true_that "len(d['frontier']) > 2 and d['frontier'][-1]['predicted']['tok_s'] > $one * 0.98"
    first=$(json 'd["frontier"][0]["predicted"]["latency_s"]')
    second=$(json 'd["frontier"][1]["predicted"]["latency_s"]')
    run plan "$model" --ram 28M --workload 32x32x200 --max-latency "$second" --json
    check "a bound on latency holds" true_that "$first <= d['predicted']['latency_s'] <= $second and d['predicted']['tok_s'] < $one"
    run plan "$model" --ram 28M --workload 32x32x200 --max-latency 0.000001
    check "a latency that no plan has exits 3" [ $code = 3 ]
    run plan "$model" --frontier
    check "a frontier of no workload exits 2" [ $code = 2 ]
    run plan "$model" --ram 24M --workload 300x100x200 -c 448 --scratch "$tmp/scratch" --json
    check "keys and values may be on the disk" true_that 'd["shares"]["kv"]["disk"] > 0 and d["shares"]["weights"]["disk"] > 0.99'
    on_disk=$(json 'd["schedule"]["block"]')
    for cap in 1M 8M; do
        run plan "$model" --ram 24M --workload 300x100x200 -c 448 --packed-cache off --disk $cap --json
        disk=$(json 'd["shares"]["kv"]["disk"] * d["schedule"]["block"]')
        check "within a disk of $cap" true_that "$disk < $on_disk * 0.6"
    done
    run plan synth:opt-175b --backend cuda --vram 16G --ram 110G --workload 512x32x1000 --json
    check "175b is planned in seconds" true_that 'd["search"]["seconds"] + d["bound"]["search"]["seconds"] < 5'
    check "its keys and values have homes" true_that 'd["bound"]["shares"]["kv"]["ram"] + d["bound"]["shares"]["kv"]["disk"] > 0'
    run plan synth:opt-30b --backend cuda --vram 16G --ram 110G --workload 512x32x1000 --json
    check "30b: keys and values are in RAM too" true_that 'd["shares"]["kv"]["ram"] > 0.1'
    check "attention is where the bound has it" true_that 'd["schedule"]["attend"] == d["bound"]["schedule"]["attend"]'
    run plan synth:opt-30b --backend cuda --vram 16G --ram 110G --parallel 96 -c 576 --json
    check "and a plan for so many sequences fits" true_that 'd["kv"][0]["shares"]["ram"] > 0.5 and d["gpu"]["kv_in_ram"] > 1e9'
    gzip -dc "$here/data/tokenizer/gpt-2.gguf.gz" >"$tmp/gpt-2.gguf"
    run synth opt-125m --layers 1 -o "$tmp/opt.gguf" --tokenizer "$tmp/gpt-2.gguf"
    check "a synthetic model with a tokenizer" [ $code = 0 ]
    run tokenize "$tmp/opt.gguf" "Why is the sky blue?" --json
    check "its tokens are the other model's" grep -q '\b5195\b' "$tmp/out"
    for i in 1 2; do
        echo '{"custom_id": "'$i'", "method": "POST", "url": "/v1/completions", "body": {"prompt": [5195, 318, 262, 6766], "max_tokens": 6}}'
    done >"$tmp/in.jsonl"
    run plan "$tmp/opt.gguf" --workload "$tmp/in.jsonl" --json
    check "a file's tokens are counted" true_that '4 <= d["workload"]["n_prompt"] <= 5 and d["workload"]["n_gen"] == 6'
    run synth smollm2-135m --layers 1 -o "$tmp/small.gguf" --tokenizer "$tmp/gpt-2.gguf"
    check "a vocabulary that is too large exits 2" [ $code = 2 ]
    check "and says so" grep -q 'expected at most 49152 tokens, found 50257' "$tmp/err"
    run plan "$model" --workload 32x32
    check "half a workload exits 2" [ $code = 2 ]
else
    echo "skip workloads: Clp is not installed"
fi
exit $failed
