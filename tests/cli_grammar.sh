#!/bin/sh
# Answers of nibble run and nibble chat that are constrained to a grammar or a JSON schema. The model has random weights
# and a tokenizer of bytes: its unconstrained answers are noise.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
mkdir "$tmp/model"
python3 "$here/support/chat-model.py" "$here" "$tmp/model" || exit 1
run() { # OPTIONS...: exit code in $code, stdout and stderr in files
    code=0
    "$nibble" run "$tmp/model" --raw -p "Why?" "$@" >"$tmp/out" 2>"$tmp/err" || code=$?
}
schema='{"properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer", "minimum": 0, "maximum": 150}}, "required": ["name", "age"]}'
person() {
    python3 -S -c 'import json, sys
d = json.load(open(sys.argv[1]))
sys.exit(not (list(d) == ["name", "age"] and len(d["name"]) <= 9 and 0 <= d["age"] <= 150))' "$tmp/out"
}
printf '%s' "$schema" >"$tmp/schema.json"
printf 'root ::= word ("-" word){2}\nword ::= [a-c]{1,3}\n' >"$tmp/words.gbnf"

for seed in 1 2 3 4; do
    run --json-schema "$schema" --seed $seed --temp 1.5
    check "an answer is JSON of the schema ($seed)" [ $code = 0 ]
    check "all of it ($seed)" person
    cp "$tmp/out" "$tmp/before"
    run -jf "$tmp/schema.json" --seed $seed --temp 1.5
    check "the same with the schema in a file ($seed)" cmp -s "$tmp/out" "$tmp/before"
done
run --json-schema "$schema" --seed 4 --temp 1.5 -t 2 --shortlist on
check "and with a shortlist, which is said to be ignored" cmp -s "$tmp/out" "$tmp/before"
check "in a line" grep -q "shortlist" "$tmp/err"
run --grammar-file "$tmp/words.gbnf" --top-k 1
check "a grammar in a file" grep -qxE '[abc]{1,3}(-[abc]{1,3}){2}' "$tmp/out"
run --grammar 'root ::= "yes" | "no"' --ignore-eos
check "a grammar's end is the answer's, whatever the end of a text is" grep -qxE 'yes|no' "$tmp/out"
run --grammar 'root ::= "é" [^\x00-\x7f]{2}'
check "characters are whole" python3 -S -c 'import sys; t = open(sys.argv[1], encoding="utf-8").read().rstrip("\n"); sys.exit(not (len(t) == 3 and t[0] == "é"))' "$tmp/out"
run --grammar 'root ::= "x"{40}' -n 7
check "-n cuts it" grep -qx xxxxxxx "$tmp/out"
cp "$here/support/chat-template.jinja" "$tmp/model/chat_template.jinja"
code=0
printf 'a\nb\n' | "$nibble" chat "$tmp/model" --grammar 'root ::= "yes" | "no"' >"$tmp/out" 2>"$tmp/err" || code=$?
check "every answer of a chat" [ "$(grep -cxE 'yes|no' "$tmp/out")" = 2 ]

refused() { # WORD OPTIONS...
    word=$1
    shift
    run "$@"
    check "$* exits 2" [ $code = 2 ]
    check "and says $word" grep -qF -- "$word" "$tmp/err"
}
refused "left recursion" --grammar 'root ::= root "a" | "b"'
refused "line 1" --grammar 'root ::= ('
refused "pattern" --json-schema '{"pattern": "(x"}'
refused "one of them" --json-schema '{}' --grammar 'root ::= "a"'
run --grammar-file "$tmp/none"
check "a file that is not there is named" grep -q none "$tmp/err"
exit $failed
