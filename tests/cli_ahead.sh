#!/bin/sh
# A head that predicts later tokens through the program: --draft-model mtp of run, chat, batch and serve, families
# that have one, files made of them, caps, and models without one. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python ahead
arch=$here/data/arch
ids=20,21,22,23,24,25,26,27,28,29,30,31,32,33

answer() { "$nibble" run "$@" --tokens $ids -n 30 --temp 0.3 -s 4 --ignore-eos --json 2>"$tmp/err" >"$tmp/json"; }
tokens() { answer "$@" && grep -o '"tokens":\[[^]]*\]' "$tmp/json"; }
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }
proposes() { grep -qE '"draft_n":[1-9]' "$tmp/json"; }

# The RAM cap in the report, and a part of the memory that is the head's.
reports() {
    python3 -c '
import json, sys
m = json.load(open(sys.argv[1]))["memory"]
sys.exit(not (m["tiers"]["ram"]["cap"] == int(sys.argv[2]) >= m["tiers"]["ram"]["planned"] and m["draft"]["weights"] > 0))' \
        "$tmp/json" "$1"
}

for family in glm4_moe deepseek_v3 glm4_moe_lite qwen3_5 qwen3_5_moe qwen3_next mimo_v2_flash exaone_moe ernie4_5_moe; do
    model=$tmp/$family
    python3 "$here/support/add-ahead.py" "$arch/$family" "$model" || exit 1
    want=$(tokens "$model")
    check "$family: the head changes no token" same "$want" "$(tokens "$model" --draft-model mtp --draft-min 3)"
    check "$family: it proposes some" proposes
    check "$family: nor under a cap" same "$want" "$(tokens "$model" --draft mtp --ram 40M --draft-min 2)"
    check "$family: which is the one that is reported" reports $((40 << 20))
    is_sanitized || check "$family: the peak stays under it" python3 -c '
import json, sys
sys.exit(not json.load(open(sys.argv[1]))["memory"]["rss_peak"] <= 40 << 20)' "$tmp/json"
    "$nibble" quantize "$model" -o "$tmp/$family.gguf" --type bf16 >"$tmp/out" 2>"$tmp/err"
    check "$family: a GGUF file keeps it" same "$want" "$(tokens "$tmp/$family.gguf" -md mtp --draft-min 3)"
    check "$family: and proposes with it" proposes
    check "$family: info names it" sh -c '"$1" info "$2" | grep -q "predicts later tokens"' - "$nibble" "$tmp/$family.gguf"
done

sed -i 's/"model_type"/"mtp_layer_types": ["sliding_attention"], &/' "$tmp/exaone_moe/config.json"
code=0
tokens "$tmp/exaone_moe" --draft-model mtp >/dev/null || code=$?
check "a head with another layer is refused" test $code = 2
check "and why" grep -q "mtp_layer_types: expected full_attention" "$tmp/err"

"$nibble" run "$tmp/glm4_moe" --tokens $ids -n 8 --draft-model mtp --ram 40M -v >/dev/null 2>"$tmp/err"
check "text names the given cap" grep -q "budget  *40.0 MiB" "$tmp/err"
check "and the head's memory" grep -q "draft model  *[0-9]" "$tmp/err"

# the same model with a tokenizer of bytes
mkdir "$tmp/bytes"
python3 "$here/support/chat-model.py" "$here" "$tmp/bytes" glm4_moe || exit 1
cp "$tmp/bytes/tokenizer.json" "$tmp/glm4_moe/"
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >"$tmp/glm4_moe/chat_template.jinja"
chat() {
    printf 'A question\nAnother one\n' | "$nibble" chat "$tmp/glm4_moe" --temp 0 -c 120 -n 16 "$@" 2>"$tmp/err"
}
check "a conversation is the same" same "$(chat)" "$(chat --draft-model mtp --draft-min 2)"
python3 -c '
import json
for i in range(8):
    text = "the same beginning of every question, longer than a page of positions: " * (i % 2) + "and %d" % i
    print(json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                      "body": {"prompt": text, "max_tokens": 12, "temperature": 0, "ignore_eos": True}}))' >"$tmp/requests"
"$nibble" batch "$tmp/glm4_moe" -i "$tmp/requests" -o "$tmp/plain" -np 3 -c 120 >/dev/null 2>"$tmp/err"
"$nibble" batch "$tmp/glm4_moe" -i "$tmp/requests" -o "$tmp/with" -np 3 -c 120 --draft-model mtp --draft-min 2 \
    >/dev/null 2>"$tmp/err"
check "answers of a file are the same" python3 -c '
import json, sys
texts = [{d["custom_id"]: d["response"]["body"]["choices"][0]["text"] for d in map(json.loads, open(path))}
         for path in sys.argv[1:]]
sys.exit(not (len(texts[0]) == 8 and texts[0] == texts[1]))' "$tmp/plain" "$tmp/with"

code=0
tokens "$arch/llama" --draft-model mtp >/dev/null || code=$?
check "a model without one is refused" test $code = 2
check "with its name" grep -q "arch/llama: expected a model with a head that predicts later tokens" "$tmp/err"
check "plan says what it takes" sh -c '"$1" plan "$2" | grep -q -- "--draft-model mtp"' - "$nibble" "$tmp/glm4_moe"
check "several devices go on without it" same "$(tokens "$tmp/glm4_moe")" \
    "$(tokens "$tmp/glm4_moe" --draft-model mtp --devices cpu,cpu)"
check "and say so" grep -q "no head predicts later tokens" "$tmp/err"

"$nibble" serve "$tmp/glm4_moe" --port 0 -c 120 --ram 200M --draft-model mtp >"$tmp/address" 2>"$tmp/err" &
server=$!
for _ in $(seq 100); do
    grep -q http "$tmp/address" && break
    sleep 0.1
done
python3 - "$(grep -o 'http[^ ]*' "$tmp/address" | head -n 1)" >"$tmp/json" <<'END'
import sys, urllib.request
print('{"memory":%s}' % urllib.request.urlopen(sys.argv[1] + "/memory").read().decode())
END
check "a server reports the given cap as well" reports $((200 << 20))
kill $server
wait $server

# On a fake GPU (tests/support/fakecuda.c) both share the cap, which is the one that is reported.
library=$(cd "$(dirname "$nibble")" && pwd)/tests/libfakecuda.so
vram() { NIBBLE_CUDA="$library" tokens "$tmp/glm4_moe" --backend cuda --kv f16 --vram 400M "$@" >/dev/null && json_value; }
json_value() { python3 -c 'import json, sys; m = json.load(open(sys.argv[1]))["memory"]["tiers"]["vram"]; print(m["cap"], m["planned"])' "$tmp/json"; }
cap() { echo "${1% *}"; }
if [ -f "$library" ]; then
    alone=$(vram) both=$(vram --draft-model mtp --draft-min 2)
    check "the cap is the given one" same "$(cap "$alone")" $((400 << 20))
    check "with the head as well" same "$(cap "$both")" $((400 << 20))
    check "whose VRAM counts under it" [ "${both#* }" -gt "${alone#* }" ]
    check "and not beyond it" [ "${both#* }" -le $((400 << 20)) ]
fi

exit $failed
