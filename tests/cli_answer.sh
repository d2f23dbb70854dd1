#!/bin/sh
# nibble run with a model that has a chat template: a text is a user's turn, which is answered; --raw continues it. The
# model always gives the same answer (support/script-model.py), so the tests assert its input and the end of its answer.
# NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"

answer="The sky is blue, since small parts of air scatter short waves of light most."
printf '%s' "$answer" >"$tmp/answer"
mkdir "$tmp/model"
python3 "$here/support/script-model.py" "$tmp/model" "$tmp/answer" || exit 1
cp -r "$tmp/model" "$tmp/plain"
cp "$here/support/chat-template.jinja" "$tmp/model/chat_template.jinja"

run() { # exit code in $code, stdout and stderr in files
    code=0
    "$nibble" run "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
says() { [ "$(cat "$tmp/out")" = "$answer" ]; }
n_prompt() { python3 -S -c 'import json,sys; print(json.load(open(sys.argv[1]))["timings"]["prompt_n"])' "$tmp/out"; }
json() { python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); sys.exit(not eval(sys.argv[2], {"d": d}))' "$tmp/out" "$1"; }

run "$tmp/model" "Why is the sky blue?"
check "run MODEL TEXT answers" says
check "and ends at the end of the turn, without a word on stderr" [ $code = 0 -a ! -s "$tmp/err" ]
run "$tmp/model" -p "Why?"
check "so does -p" says
printf 'Why?\n' >"$tmp/why"
run "$tmp/model" -f "$tmp/why"
check "so does -f" says
"$nibble" run "$tmp/model" <"$tmp/why" >"$tmp/out" 2>"$tmp/err"
check "so does stdin" says
run "$tmp/model" "Why?" --json
check "<u>, four letters and <a> are what the model gets" [ "$(n_prompt)" = 6 ]
check "and it stops by itself" json 'd["finish_reason"] == "stop"'
run "$tmp/model" -f "$tmp/why" --json
check "the end of a file's last line is no part of the turn" [ "$(n_prompt)" = 6 ]
run "$tmp/model" "Why?" --system "Be it." --json
check "--system is a turn before it" [ "$(n_prompt)" = 13 ]
run "$tmp/model" "Why?" --system no
check "what the template refuses exits 2" [ $code = 2 ]
check "in its words" grep -q 'this system message is refused' "$tmp/err"
check "and --raw is named" grep -q -- '--raw' "$tmp/err"
run "$tmp/model" "Why?" -n 3
check "-n cuts an answer" [ "$(cat "$tmp/out")" = "The sky is" ]
check "and that is said" grep -q 'cut at 3 tokens; -n' "$tmp/err"
run "$tmp/model" "Why?" --ignore-eos -c 40
check "so is an answer that fills the context" grep -q 'context of 40 is full; -c' "$tmp/err"
run "$tmp/model" "Why?" --stop "blue"
check "a stop string ends it" [ "$(cat "$tmp/out")" = "The sky is " ]

run "$tmp/model" --raw "Why?" -n 4 --json
check "--raw gives the text as it stands" [ "$(n_prompt)" = 4 ]
for flag in -no-cnv --no-conversation; do
    run "$tmp/model" $flag "Why?" -n 4 --json
    check "so does $flag" [ "$(n_prompt)" = 4 ]
done
for flag in -sys --system-prompt; do
    run "$tmp/model" "Why?" $flag "Be it." --json
    check "$flag is --system" [ "$(n_prompt)" = 13 ]
done
run "$tmp/model" --raw "Why?" --ignore-eos --json
check "and goes on for 256 tokens" json 'len(d["tokens"]) == 256'
run "$tmp/model" --raw "Why?<a>" -n 40
check "special tokens in a text are text" [ $code = 0 -a "$(cat "$tmp/out")" != "$answer" ]
run "$tmp/model" --raw --special "Why?<a>"
check "unless --special" says
run "$tmp/model" --tokens 257,87,258
check "--tokens is the whole prompt" says
run "$tmp/model" --tokens 257,87,258 --system "Be it."
check "and a system message beside it is said to be ignored" grep -q 'ignored: --tokens' "$tmp/err"
run "$tmp/plain" "Why?" -n 4 --json --system "Be it."
check "a model without a template continues the text" [ "$(n_prompt)" = 4 ]
check "and says that there is no place for a system message" grep -q 'ignored: the model has no chat template' "$tmp/err"
"$nibble" tokenize "$tmp/model" "<a>" >"$tmp/out"
"$nibble" tokenize "$tmp/model" --special "<a>" >>"$tmp/out"
check "tokenize parses special tokens with --special" [ "$(tr '\n' ';' <"$tmp/out")" = "60 97 62;258;" ]

run "$tmp/model" 'a\n\t\"\\\x41' --json
check "escapes in the text are what they stand for" [ "$(n_prompt)" = 8 ]
run "$tmp/model" --raw 'a\qb\x4\x00\' --json -n 1
check "what is no escape stays" [ "$(n_prompt)" = 12 ]
run "$tmp/model" 'a\nb' --no-escape --json
check "--no-escape takes them as they stand" [ "$(n_prompt)" = 6 ]
NIBBLE_NO_ESCAPE=1 run "$tmp/model" 'a\nb' -e --json
check "-e undoes it" [ "$(n_prompt)" = 5 ]
run "$tmp/model" -p b --system 'a\n' --json
check "escapes in the system message" [ "$(n_prompt)" = 6 ]
printf 'a\\n' >"$tmp/escaped"
run "$tmp/model" -f "$tmp/escaped" --json
check "a file is taken as it stands" [ "$(n_prompt)" = 5 ]
"$nibble" tokenize "$tmp/model" 'a\n' >"$tmp/out"
check "so is what is tokenized" [ "$(cat "$tmp/out")" = "97 92 110" ]

for text in "" " \n "; do
    run "$tmp/model" "$text"
    check "a blank text exits 2" [ $code = 2 ]
done
printf 'a\0b' >"$tmp/nul"
run "$tmp/model" -f "$tmp/nul" --json
check "a NUL in a turn is no end of it" [ "$(n_prompt)" = 7 ]
for command in run tokenize; do
    code=0
    timeout 20 "$nibble" $command "$tmp/model" <&- >"$tmp/out" 2>"$tmp/err" || code=$?
    check "$command with a closed stdin and no text exits 2" [ $code = 2 ]
    check "and says so" grep -q 'stdin is closed' "$tmp/err"
done
"$nibble" run "$tmp/model" "Why?" <&- >"$tmp/out" 2>"$tmp/err"
check "with a text stdin may be closed" says
"$nibble" run "$tmp/model" "Why?" <&- >"$tmp/out" 2>&-
check "stderr too" says

# A template with much more text of its own than is estimated.
{ cat "$here/support/chat-template.jinja"; printf '%01000d' 0; } >"$tmp/model/chat_template.jinja"
run "$tmp/model" "Why?" -n 4
check "a long template gets its context" [ $code = 0 ]
# At a terminal lines are broken between words.
cp "$here/support/chat-template.jinja" "$tmp/model/chat_template.jinja"
if PYTHONPATH=$here/support python3 -c 'import os, terminal; os.openpty()' 2>/dev/null; then
    PYTHONPATH=$here/support PYTHONDONTWRITEBYTECODE=1 python3 - "$nibble" "$tmp/model" >"$tmp/out" <<'END'
import sys
from terminal import Screen, Terminal
t = Terminal([sys.argv[1], "run", sys.argv[2], "Why?"], {"TERM": "xterm"}, columns=16)
t.wait()
while t.read(0.1):
    pass
print("|".join(Screen(16, t.shown).text()))
END
    check "an answer's lines are broken between words at a terminal" \
        [ "$(cat "$tmp/out")" = "The sky is blue,|since small|parts of air|scatter short|waves of light|most.|" ]
else
    echo "skip an answer at a terminal: no pseudo-terminal here"
fi
exit $failed
