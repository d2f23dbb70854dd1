#!/bin/sh
# nibble bench --trace on a fake GPU (tests/support/fakecuda.c): the table, its totals, the JSON and the file in
# Chrome's format. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
library=$(cd "$(dirname "$nibble")" && pwd)/tests/libfakecuda.so
if [ ! -f "$library" ]; then
    echo "skip a trace of the GPU: $library is not there"
    exit 0
fi
unset NIBBLE_TRACE NIBBLE_TRACE_FILE NIBBLE_JSON 2>/dev/null
model=tests/data/arch-gguf/gemma3.gguf

run() { # exit code in $code, stdout and stderr in files
    code=0
    NIBBLE_CUDA=$library "$nibble" bench "$model" -p 70 -n 4 -r 1 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
holds() { # a Python expression of d, the JSON document, and t, the trace's events
    python3 - "$tmp/out" "$tmp/trace" "$1" <<'END'
import json, sys
d = json.load(open(sys.argv[1]))
t = json.load(open(sys.argv[2]))["traceEvents"]
near = lambda a, b: abs(a - b) <= 1e-9 + 1e-6 * abs(b)
rows = [r["launches"] for r in d["rows"]]
sys.exit(0 if eval(sys.argv[3]) else f"{sys.argv[3]}\n{json.dumps(d)[:2000]}")
END
}

run --backend cuda --trace
check "a table of launches" [ $code = 0 ]
check "of a prompt" grep -q '^pp70, one prompt .*calls .*of reads' "$tmp/out"
check "of a token" grep -q '^tg4, one token' "$tmp/out"
for row in 'linear gate+up' 'linear head' 'rope, attention' 'look up embeddings'; do
    check "with a row: $row" grep -q "^  $row  *[1-9]" "$tmp/out"
done
for total in 'sum of these' 'nothing computes' 'the pass, from its first to its last'; do
    check "and a total: $total" grep -q "^  $total.*%\$" "$tmp/out"
done
check "an untraced pass is beside it" grep -q 'Untraced, such a pass takes [0-9.]* us' "$tmp/out"

run --backend cuda --trace-file "$tmp/trace" --json
check "the same as JSON, and a file" [ $code = 0 ]
check "one shape a key" holds 'all("trace" not in r and isinstance(r["launches"], dict) for r in d["rows"])'
check "the sum is of the lane that computes" \
    holds 'all(near(sum(x["seconds"] for x in r["rows"] if x["lane"] == "compute"), r["launches_s"]) for r in rows)'
check "the fake's launches do not overlap" holds 'all(near(r["launches_s"] + r["idle_s"], r["pass_s"]) for r in rows)'
check "an untraced pass is in it" holds 'all(r["untraced_s"] > 0 and r["empty_s"] > 0 for r in rows)'
check "nothing is missing" holds 'all(r["dropped"] == 0 for r in rows)'
check "the model's products are counted" \
    holds 'all(x["macs"] > 0 and x["bytes"] > 0 for r in rows for x in r["rows"] if x["op"].startswith("linear"))'
check "a process a test" holds '[e["args"]["name"] for e in t if e["name"] == "process_name"] == ["pp70", "tg4"]'
check "a thread a lane" \
    holds '[e["args"]["name"] for e in t if e["name"] == "thread_name"] == 2 * ["compute", "copy", "side", "processor"]'
check "an event a launch" \
    holds 'sum(e["ph"] == "X" for e in t) == sum(x["calls"] for r in rows for x in r["rows"])'
check "which begin with the pass" holds 'all(e["ts"] >= 0 and e["dur"] > 0 for e in t if e["ph"] == "X")'

run --backend cuda --trace-file /no/such/folder/trace
check "a file that cannot be written exits 1" [ $code = 1 ]
check "and is named" grep -q '/no/such/folder/trace' "$tmp/err"
run --backend cuda --trace-file /dev/full
check "a full disk exits 1" [ $code = 1 ]
check "and its file is named" grep -q '/dev/full' "$tmp/err"
run --backend cpu --trace-file "$tmp/cpu"
check "a file of the processor exits 2" [ $code = 2 ]
check "and is not written" [ ! -e "$tmp/cpu" ]
run --backend cpu --trace --json --ram 1G # with a cap memory is not measured
check "the processor's trace is by op" \
    sh -c "python3 -S -c 'import json; assert isinstance(json.load(open(\"$tmp/out\"))[\"rows\"][0][\"trace\"], list)'"

# Many sequences.
NIBBLE_CUDA=$library "$nibble" bench "$model" --backend cuda -np 1,20,2 -p 2 -n 3 -r 1 --json >"$tmp/out" 2>"$tmp/err" </dev/null
check "one sequence is timed with the kernels for few" [ "$(python3 -S -c 'import json, sys
print([(r["n_seq"], r["many_sequences"]) for r in json.load(open(sys.argv[1]))["rows"]])' "$tmp/out")" = "[(1, False), (20, True), (2, False)]" ]
check "GB/s, and no share of what RAM gives" [ "$(python3 -S -c 'import json, sys
print({(r["gb_s"] > 0, r["peak_share"]) for r in json.load(open(sys.argv[1]))["rows"]})' "$tmp/out")" = "{(True, None)}" ]
check "in an engine of its own" [ "$(grep -c 'kernels for many sequences' "$tmp/err")" = 1 ]
exit $failed
