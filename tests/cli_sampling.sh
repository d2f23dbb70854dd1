#!/bin/sh
# The samplers on the command line: each has its effect, also beside a grammar. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
model=$here/data/arch/llama
mkdir "$tmp/text"
python3 "$here/support/chat-model.py" "$here" "$tmp/text" || exit 1

answer() { # answer OPTION...: the tokens
    "$nibble" run "$model" --tokens 1,2,3 -n 24 -s 5 --ignore-eos "$@" 2>"$tmp/err" </dev/null
}
differs() { [ "$plain" != "$(answer "$@")" ] && [ ! -s "$tmp/err" ]; }
same() { [ "$plain" = "$(answer "$@")" ] && [ ! -s "$tmp/err" ]; }

plain=$(answer)
check "a seed repeats" same
check "what is off changes nothing" same --typical 1 --top-n-sigma -1 --xtc-probability 0 --xtc-threshold 0.2 \
    --dynatemp-range 0 --mirostat 0 --dry-multiplier 0 --dry-base 2 --dry-penalty-last-n 0
check "--typical" differs --typical 0.2
check "--top-n-sigma" differs --top-n-sigma 0.1
check "--top-nsigma is --top-n-sigma" [ "$(answer --top-n-sigma 0.1)" = "$(answer --top-nsigma 0.1)" ]
check "--typical-p is --typical" [ "$(answer --typical 0.2)" = "$(answer --typical-p 0.2)" ]
check "--xtc-probability" differs --xtc-probability 1 --xtc-threshold 0.02
check "--dynatemp-range" differs --dynatemp-range 0.8
check "--mirostat 1" differs --mirostat 1 --mirostat-ent 2
check "--mirostat 2" differs --mirostat 2 --mirostat-lr 0.2
plain=$(answer --mirostat 2)
check "mirostat has no other sampler but --temp" same --mirostat 2 --top-k 1 --typical 0.1 --repeat-penalty 2 --dry-multiplier 1
check "and has that" differs --mirostat 2 --temp 0.1
plain=$(answer)
check "a draft model changes no drawn token" same --draft-model "$model" --draft-min 4
check "nor do tokens of the text" same --draft-max 4 --draft-min 4
plain=$(answer --temp 0)
check "a draft model changes no greedy token" same --temp 0 --draft "$model" --draft-min 4
check "--draft N is --draft-max N" same --temp 0 --draft 4
proposed() { "$nibble" run "$model" --tokens 1,2,3 -n 24 --temp 0 --ignore-eos --json "$@" </dev/null; }
check "its tokens are proposed and taken" sh -c 'echo "$1" | grep -qE "\"draft_n_accepted\":[1-9]"' - \
    "$(proposed --draft "$model" --draft-min 4)"
check "--dry-multiplier changes a greedy answer that repeats itself" differs --temp 0 --dry-multiplier 5 --dry-allowed-length 1
check "XTC removes the greedy choice" differs --temp 0 --xtc-probability 1 --xtc-threshold 0
check "under a cap with a shortlist, too" [ "$(answer --temp 0 --dry-multiplier 2)" = \
    "$(answer --temp 0 --dry-multiplier 2 --ram 64M --shortlist on)" ]

"$nibble" run "$tmp/text" -p "a" -n 2 --temp 0 >"$tmp/out" 2>"$tmp/err" </dev/null
check "a model without a template is said to be a base model, once" [ "$(grep -c "this is a base model" "$tmp/err")" = 1 ]
"$nibble" run "$tmp/text" -p "a" -n 2 --temp 0 --raw >"$tmp/out" 2>"$tmp/err" </dev/null
check "and not with --raw" [ ! -s "$tmp/err" ]
words() { # words OPTION...: a greedy text
    "$nibble" run "$tmp/text" -p "a: a: a: a:" --raw -n 24 --temp 0 --ignore-eos --json "$@" 2>"$tmp/err" </dev/null |
        sed 's/"timings.*//'
}
check "breakers are texts" [ "$(words --dry-multiplier 5 --dry-sequence-breaker none)" != "$(words)" ]
limited=$(words --dry-multiplier 1 --mirostat 2 --temp 1 -s 1 --grammar 'root ::= "b"+')
check "a grammar holds beside samplers" sh -c 'echo "$1" | grep -qE "\"text\":\"b+\""' - "$limited"
plain=$(answer)
check "the usual order by name and by letters" same --samplers "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
check "and by letters" same --sampler-seq edskypmxt
check "samplers that are not named are off" [ "$(answer --samplers "top_k;temperature" --typical 0.2)" = \
    "$(answer --top-p 1 --min-p 0)" ]
check "the first of several decides what the others see" [ "$(answer --sampler-seq tp --temp 3 --top-p 0.5)" != \
    "$(answer --sampler-seq pt --temp 3 --top-p 0.5)" ]
check "the best of one is greedy" [ "$(answer --sampler-seq k --top-k 1)" = "$(answer --temp 0)" ]
plain=$(answer --temp 0)
first=${plain%% *}
check "--logit-bias -inf: never" sh -c 'case " $1 " in *" $2 "*) exit 1 ;; esac' - "$(answer --temp 0 -l "$first-inf")" "$first"
check "--logit-bias +1000: always" [ "$(answer --temp 0 -n 4 --logit-bias 7+1000)" = "7 7 7 7" ]
check "several of them" [ "$(answer --temp 0 -n 3 -l 7+1000 -l 9+2000 -l 9-1500.5)" = "7 7 7" ]
check "an option of --ram's shortlist, too" [ "$(answer --temp 0 -n 3 -l 7+1000 --ram 64M --shortlist on)" = "7 7 7" ]
# A model whose tokens 256 to 259 are control tokens: they are never written.
mkdir "$tmp/script"
printf '%s' "The sky is blue." >"$tmp/answer"
python3 "$here/support/script-model.py" "$tmp/script" "$tmp/answer" || exit 1
cp "$here/support/chat-template.jinja" "$tmp/script/chat_template.jinja"
said() { # said COMMAND OPTION...
    command=$1
    shift
    "$nibble" "$command" "$tmp/script" -p "Why?" --temp 0 -n 3 "$@" 2>"$tmp/err" </dev/null
}
check "a text is written" [ "$(said run)" = "The sky is" ]
for token in 256 257 258; do
    check "control token $token is not, by run" [ -z "$(said run -l $token+1000)" ]
    check "nor by chat" [ -z "$(said chat -l $token+1000)" ]
    check "but it is in --json's tokens" sh -c 'echo "$1" | grep -qF "[$2,$2,$2]"' - "$(said run --json -l $token+1000)" $token
done
wrong() { # wrong OPTION VALUE
    code=0
    answer "$@" >/dev/null || code=$?
    [ $code = 2 ] && grep -qF -- "$1: expected" "$tmp/err"
}
check "a wrong value is named" wrong --typical 2
check "so is a version that there is not" wrong --mirostat 3
check "and a range" wrong --dry-penalty-last-n -2
for bias in 5 5+ x+1 5+inf 5-infx +5 5+1e; do
    check "a bias $bias is refused" wrong --logit-bias "$bias"
done
refused() { # refused WORD OPTION...
    word=$1
    shift
    code=0
    answer "$@" >/dev/null || code=$?
    [ $code = 2 ] && grep -qF -- "$word" "$tmp/err"
}
check "an unknown sampler is named" refused "found 'infill'" --samplers "top_k;infill"
check "a letter, too" refused "found 'q'" --sampler-seq kq
check "both are not" refused "one of them" --sampler-seq k --samplers top_k
check "none is refused" refused "at least one" --samplers ""
check "a token that there is not" refused "999999" -l 999999+1
exit $failed
