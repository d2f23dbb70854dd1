#!/bin/sh
# Models with recurrent layers through the program: run, a chat's second turn, batches, a server with several sequences,
# a GGUF file made of the folder, caps on RAM. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
export PYTHONPATH="$here/support" PYTHONDONTWRITEBYTECODE=1

run() { "$nibble" run "$@" --temp 0 --ignore-eos 2>"$tmp/err"; }
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }

for family in lfm2 mamba2 falcon_h1 qwen3_5; do
    model=$tmp/$family
    mkdir "$model"
    python3 "$here/support/chat-model.py" "$here" "$model" $family || exit 1
    printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >"$model/chat_template.jinja"
    want=$(run "$model" --tokens 5,6,7,8,9,10 -n 12)
    check "$family: a cap changes no token" same "$want" "$(run "$model" --tokens 5,6,7,8,9,10 -n 12 --ram 48M)"
    check "$family: nor does --no-fuse" same "$want" "$(run "$model" --tokens 5,6,7,8,9,10 -n 12 --no-fuse -t 3)"

    printf 'A first question that is longer than a page of positions, so that there is a checkpoint\nx\n' |
        "$nibble" chat "$model" --temp 0 -c 128 -n 4 -v >"$tmp/out" 2>"$tmp/err"
    check "$family: the second turn continues at a checkpoint" python3 -c '
import re, sys
rows = re.findall(r"\[(\d+) tokens before, (\d+) of them computed", open(sys.argv[1]).read())
sys.exit(not (len(rows) == 2 and rows[0][0] == rows[0][1] and int(rows[1][1]) == int(rows[1][0]) - 64))' "$tmp/err"

    python3 -c '
import json
for i in range(12):
    text = "the same beginning of every question, which is longer than a page of positions: " * (i % 2) + "and %d" % i
    print(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                      "body": {"prompt": text, "max_tokens": 8, "temperature": 0, "ignore_eos": True}}))' >"$tmp/requests"
    for n in 1 5; do
        "$nibble" batch "$model" -i "$tmp/requests" -o "$tmp/answers.$n" -np $n -c 120 >/dev/null 2>"$tmp/err"
    done
    check "$family: answers together are those one by one" python3 -c '
import json, sys
texts = [{d["custom_id"]: d["response"]["body"]["choices"][0]["text"] for d in map(json.loads, open(path))}
         for path in sys.argv[1:]]
sys.exit(not (len(texts[0]) == 12 and texts[0] == texts[1]))' "$tmp/answers.1" "$tmp/answers.5"
    check "$family: on the check back end too" same "$want" "$(run "$model" --tokens 5,6,7,8,9,10 -n 12 --backend check)"
done

"$nibble" quantize "$tmp/lfm2" -o "$tmp/lfm2.gguf" --type q8_0 >/dev/null 2>"$tmp/err"
check "a GGUF file of it answers" [ -n "$(run "$tmp/lfm2.gguf" 'Why?' -n 8)" ]
code=0
"$nibble" run "$tmp/lfm2" --tokens 1,2 -n 2 --backend cuda >"$tmp/out" 2>"$tmp/err" || code=$?
check "the GPU refuses the model" [ $code != 0 ]
check "and names the op, or that there is no GPU" grep -Eq 'conv|CUDA|cuda' "$tmp/err"
exit $failed
