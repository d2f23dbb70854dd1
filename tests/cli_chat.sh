#!/bin/sh
# nibble chat from outside, without a terminal: a tiny model with random weights, a tokenizer of bytes and a template of
# its own, so its answers are noise, but turns, commands, reuse, a full context and refusals are real.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"

chat() { # chat INPUT OPTIONS...: exit code in $code, stdout and stderr in files
    input=$1
    shift
    code=0
    printf '%b' "$input" | "$nibble" chat "$tmp/model" --temp 0 "$@" >"$tmp/out" 2>"$tmp/err" || code=$?
}
json() { [ -s "$tmp/out" ] && python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2], {"d": d}))' "$tmp/out" "$1"; }

mkdir "$tmp/model"
python3 "$here/support/chat-model.py" "$here" "$tmp/model" || exit 1

chat 'Hi\n'
check "a model without a template exits 4" [ $code = 4 ]
check "and says so" grep -q 'no chat template' "$tmp/err"

cp "$here/support/chat-template.jinja" "$tmp/model/chat_template.jinja"

chat 'Hi\n\nHello\n' -n 5
check "two lines are two turns" [ $code = 0 ]
check "nothing but answers on stdout" [ "$(grep -c 'tokens before\|/help' "$tmp/out")" = 0 ]
before() { sed -n 's/.*\[\([0-9]*\) tokens before.*/\1/p' "$tmp/err"; }
chat 'a<u>b\n' -n 2 -v
check "a special token that a message names stays text" [ "$(before)" = 7 ]
chat 'a<u>b\n' -n 2 -v --special-in-messages
check "--special-in-messages parses it" [ "$(before)" = 5 ]
prompt() { "$nibble" run "$tmp/model" 'a<u>b' -n 2 --json "$@" >"$tmp/out" 2>"$tmp/err"; }
prompt
check "so in a run" json 'd["timings"]["prompt_n"] == 7'
prompt --special-in-messages
check "with the flag too" json 'd["timings"]["prompt_n"] == 5'
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
check "/help lists the commands" grep -q '^/clear, /reset' "$tmp/err"
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
code=0
timeout 20 "$nibble" chat "$tmp/model" -n 3 <&- >"$tmp/out" 2>"$tmp/err" || code=$?
check "a closed stdin ends it" [ $code = 0 ]
code=0
timeout 20 "$nibble" chat "$tmp/model" -n 3 <"$tmp" >"$tmp/out" 2>"$tmp/err" || code=$?
check "a stdin that cannot be read exits 1" [ $code = 1 ]
check "and says why" grep -q 'cannot read stdin' "$tmp/err"
chat 'one\n \t \n/\n' -n 3 --json
check "a line of spaces is no message" json 'len(d["messages"]) == 2'

# A first message from the command line.
chat 'two\n' -n 3 --json -p 'one\n1'
check "-p is the first message, its escapes read" json '[m["content"] for m in d["messages"][::2]] == ["one\n1", "two"]'
chat 'two\n' -n 3 --json one
check "so is an argument" json '[m["content"] for m in d["messages"][::2]] == ["one", "two"]'
printf '/reset is\nno command\n\n' >"$tmp/first"
chat 'two\n' -n 3 --json -f "$tmp/first"
check "so is -f FILE, whole" json '[m["content"] for m in d["messages"][::2]] == ["/reset is\nno command", "two"]'
chat 'one\ntwo\n' -n 3 --json -f -
check "-f - is all of stdin" json '[m["content"] for m in d["messages"][::2]] == ["one\ntwo"]'
chat '' one -p two
check "two first messages exit 2" [ $code = 2 ]

# Conversations in files.
chat "Hi\n/save $tmp/saved.json\nYou\n/load $tmp/saved.json\nMe\n" -n 3 --json --system S
check "/load takes up what /save wrote" json '[m["role"][0] + m["content"][:2] for m in d["messages"] if m["role"] != "assistant"] == ["sS", "uHi", "uMe"]'
check "which is JSON" python3 -c '
import json, sys
d = json.load(open(sys.argv[1]))
sys.exit([m["role"] for m in d["messages"]] != ["system", "user", "assistant"])' "$tmp/saved.json"
chat "/load $tmp/saved.json\n/clear\nMe\n" -n 3 --json
check "its system message with it" json '[m["role"] for m in d["messages"]] == ["system", "user", "assistant"]'
printf '[{"role": "user", "content": "Hi"}]' >"$tmp/bare.json"
chat "/load $tmp/bare.json\n/regen\n" -n 3 --json
check "a list of messages alone is taken, and a last question answered" json 'd["messages"][0]["content"] == "Hi" and len(d["messages"]) == 2'
refuses() { # refuses NAME JSON WORDS
    printf '%s' "$2" >"$tmp/bad.json"
    chat "/load $tmp/bad.json\n" -n 3
    check "/load refuses $1" [ $code = 2 ]
    check "and says: $3" grep -q "bad.json: .*$3" "$tmp/err"
}
refuses "what is no JSON" 'no' 'JSON: line 1'
refuses "an object without messages" '{"a": 1}' 'expected an array of messages'
refuses "a message that is none" '[1]' 'message 1: expected an object'
refuses "a message without content" '[{"role": "user"}]' 'expected a content that is a string'
refuses "another role" '[{"role": "user", "content": ""}, {"role": "root", "content": ""}]' "message 2: .*found 'root'"
refuses "a late system message" '[{"role": "user", "content": ""}, {"role": "system", "content": ""}]' "found 'system'"
refuses "what the template refuses" '[{"role": "system", "content": "no"}]' 'this system message is refused'
refuses "deep nesting" "$(printf '[%.0s' $(seq 200))" 'levels'
refuses "too many messages" "[$(yes '{"role":"user","content":""},' | head -10001 | tr -d '\n')1]" 'at most 10000'
chat "/load $tmp/none.json\n" -n 3
check "/load of no file exits 2" [ $code = 2 ]
chat "/load $tmp\n" -n 3
check "/load of a folder is an error" [ $code = 1 ]
chat "Hi\n/save $tmp/none/saved.json\n" -n 3
check "/save to nowhere exits 1" [ $code = 1 ]
python3 -c '
import json
print(json.dumps([{"role": r, "content": "x" * 20} for r in ["user", "assistant"] * 3000]))' >"$tmp/long.json"
chat "/load $tmp/long.json\nHi\n" -n 3 -c 80 --json
check "of a long one the newest turns are kept" json 'len(d["messages"]) <= 6 and d["messages"][-2]["content"] == "Hi"'

# A model with a long answer: 300 words, then the end of the turn.
seq -s ' ' -f 'w%g' 300 | tr -d '\n' >"$tmp/words"
mkdir "$tmp/words-model"
python3 "$here/support/script-model.py" "$tmp/words-model" "$tmp/words" || exit 1
cp "$here/support/chat-template.jinja" "$tmp/words-model/chat_template.jinja"
talk() { # talk INPUT OPTIONS...: with that model
    input=$1
    shift
    code=0
    printf '%b' "$input" | "$nibble" chat "$tmp/words-model" "$@" >"$tmp/out" 2>"$tmp/err" || code=$?
}
talk 'Hi\n'
check "an answer is as long as it is" cmp -s "$tmp/out" - <<END
$(cat "$tmp/words")
END
check "and nothing is said about it" [ ! -s "$tmp/err" ]
talk 'Hi\n/n 2\n/regen\n/continue\n/n -1\n/continue\n' --json
check "/n cuts answers, /continue goes on with them, to the end" json 'd["messages"][1]["content"] == open("'"$tmp"'/words").read() and len(d["messages"]) == 2'
talk 'Hi\n/continue\n'
check "/continue of a whole answer has nothing to add" grep -q 'answer is complete' "$tmp/err"
talk '/continue\n/regen\n'
check "without an answer there is nothing to go on with" grep -q 'no answer to continue yet' "$tmp/err"
check "or to do again" grep -q 'no message to answer again yet' "$tmp/err"
talk '/n two\n/temp -1\n/temp 0.5\n/n 7\n/bye now\n/temp\n/bye\nHi\n'
check "numbers are checked" grep -q "expected a number of tokens from -1 to 16777216, found 'two'" "$tmp/err"
check "so are temperatures" grep -q "expected a temperature from 0 to 100, found '-1'" "$tmp/err"
check "/temp sets and shows it" [ "$(grep -c 'the temperature is 0.5' "$tmp/err")" = 2 ]
check "/n says what it sets" grep -q 'at most 7 tokens' "$tmp/err"
check "a command that takes nothing says so" grep -q '/bye: expected no argument' "$tmp/err"
check "/bye leaves" [ ! -s "$tmp/out" ]
if [ -e /dev/full ]; then
    code=0
    printf 'Hi\nHi\n' | "$nibble" chat "$tmp/model" -n 5 >/dev/full 2>"$tmp/err" || code=$?
    check "a full disk exits 1" [ $code = 1 ]
    check "and is named" grep -q 'cannot write to stdout: No space left' "$tmp/err"
fi
exit $failed
