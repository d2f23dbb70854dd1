#!/bin/sh
# nibble chat from outside, without a terminal: a tiny model with random weights, a tokenizer of bytes and a template of
# its own, so what it says is noise, but turns, commands, reuse, a full context and refusals are real.
set -u
here=$(cd "$(dirname "$0")" && pwd)
nibble=${NIBBLE:-build/nibble}
# shellcheck source=tests/support/check.sh
. "$here/support/check.sh"

chat() { # chat INPUT OPTIONS...: exit code in $code, stdout and stderr in files
    input=$1
    shift
    code=0
    printf '%b' "$input" | "$nibble" chat "$tmp/model" --temp 0 "$@" >"$tmp/out" 2>"$tmp/err" || code=$?
}
json() { [ -s "$tmp/out" ] && python3 -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2], {"d": d}))' "$tmp/out" "$1"; }

mkdir "$tmp/model"
python3 "$here/support/chat-model.py" "$here" "$tmp/model" || exit 1

chat 'Hi\n'
check "a model without a template exits 4" [ $code = 4 ]
check "and says so" grep -q 'no chat template' "$tmp/err"

cp "$here/support/chat-template.jinja" "$tmp/model/chat_template.jinja"

chat 'Hi\n\nHello\n' -n 5
check "two lines are two turns" [ $code = 0 ]
check "nothing but answers on stdout" [ "$(grep -c 'tokens before\|/help' "$tmp/out")" = 0 ]
chat 'Hi\nHello\n' -n 5 --json
check "--json exits 0" [ $code = 0 ]
check "--json holds the conversation" json '[m["role"] for m in d["messages"]] == ["user", "assistant"] * 2 and d["messages"][2]["content"] == "Hello"'
check "--json reports memory" json 'd["memory"]["rss_peak"] > 0'
chat 'one \\\ntwo\n' -n 2 --json
check "a backslash joins lines" json 'd["messages"][0]["content"] == "one \ntwo"'
chat 'A first question of some length\nx\n' -n 4 -v
check "the second turn computes only what is new" python3 -c '
import re, sys
rows = re.findall(r"\[(\d+) tokens before, (\d+) of them computed", open(sys.argv[1]).read())
sys.exit(not (len(rows) == 2 and rows[0][0] == rows[0][1] and int(rows[1][1]) < 20 < int(rows[1][0])))' "$tmp/err"
chat 'Hi\n/reset\nYou\n/exit\nnever\n' -n 3 --json --system 'S'
check "/reset keeps the system message, /exit leaves" json '[m["role"] for m in d["messages"]] == ["system", "user", "assistant"] and d["messages"][1]["content"] == "You"'
chat '/system B\nHi\n/nonsense\n/help\n' -n 3 --json
check "/system sets it" json 'd["messages"][0] == {"role": "system", "content": "B"}'
check "an unknown command is named" grep -q 'unknown command /nonsense' "$tmp/err"
check "/help lists the commands" grep -q '^/reset' "$tmp/err"
chat 'Hi\n' --system no
check "what the template raises exits 2" [ $code = 2 ]
check "with its words" grep -q 'this system message is refused' "$tmp/err"
chat 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb\ncccccccccccccccccccccccccccccc\n' -c 80 -n 8 --json
check "a full context leaves out the oldest turn" [ $code = 0 ]
check "and says so" grep -q 'left out' "$tmp/err"
check "and enough at once" json 'len(d["messages"]) == 2'
check "but keeps the newest" json 'd["messages"][-2]["content"] == "c" * 30'
long=$(printf 'abcdefghij%.0s' 1 2 3)
chat "$long\n$long\n$long\n$long\n$long\n$long\n$long\n$long\n" -c 200 -n 8 -v
check "turns are left out in one go, not one at every turn" [ "$(grep -c 'left out' "$tmp/err")" -le 2 ]
chat "$(printf '%0200d' 0)\n" -c 80
check "a message longer than the context exits 2" [ $code = 2 ]
check "and says how long it is" grep -q '202 tokens' "$tmp/err"
printf 'caf\351 \000x\n' >"$tmp/bytes"
code=0
"$nibble" chat "$tmp/model" --temp 0 -n 3 <"$tmp/bytes" >"$tmp/out" 2>"$tmp/err" || code=$?
check "bytes that are no UTF-8 do no harm" [ $code -le 2 ]
chat '' -n 3
check "no input exits 0" [ $code = 0 ]
if [ -e /dev/full ]; then
    code=0
    printf 'Hi\nHi\n' | "$nibble" chat "$tmp/model" -n 5 >/dev/full 2>"$tmp/err" || code=$?
    check "a full disk exits 1" [ $code = 1 ]
fi
exit $failed
