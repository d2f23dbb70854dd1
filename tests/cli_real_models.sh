#!/bin/sh
# Real models against llama.cpp's published figures (tests/data/README.md has the table): perplexity within
# 0.5 %, budgets kept, sensible text. Skipped when the model could not be fetched. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1
text=$here/data/text/wikitext2-valid.txt
if ! has_kernels avx2; then
    echo "skip real models: plain C takes minutes for what they are asked"
    exit 0
fi

result() { # result NAME TRUE|FALSE DETAIL
    if [ "$2" = True ]; then
        echo "ok $1"
    else
        failed=1
        echo "not ok $1"
        echo "    $3"
    fi
}
value() { python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); print(eval(sys.argv[2], {"d": d}))' "$tmp/out" "$1"; }

perplexity() { # perplexity NAME MODEL CHUNKS EXPECTED
    "$nibble" eval "$2" --ppl "$text" --chunks "$3" --json >"$tmp/out" 2>"$tmp/err" || cat "$tmp/err"
    result "$1 perplexity over $3 chunks is $4 within 0.5 %" "$(value "abs(d['ppl'] / $4 - 1) < 0.005")" \
        "$(cat "$tmp/out")"
}

if model=$(sh "$here/../tools/fetch-model.sh" smollm2 2>"$tmp/err"); then
    perplexity smollm2 "$model" 4 14.6360
    NIBBLE_ISA=ref "$nibble" logits "$model" --tokens 504,3575 -o "$tmp/cpu" -q 2>"$tmp/err"
    "$nibble" logits "$model" --tokens 504,3575 -o "$tmp/check" --backend check -q 2>>"$tmp/err"
    result "smollm2 has the reference's logits on the check back end" \
        "$(cmp "$tmp/cpu" "$tmp/check" >>"$tmp/err" 2>&1 && echo True)" "$(cat "$tmp/err")"
    # Real activations have outliers, which use a path of their own (exec/cpu/product.c, add_outliers).
    one=$("$nibble" run "$model" --raw -p "The sea is" -n 60 -c 256 --temp 0 -t 1 -q)
    same=True
    for _ in 1 2; do
        [ "$("$nibble" run "$model" --raw -p "The sea is" -n 60 -c 256 --temp 0 -t 2 -q)" = "$one" ] || same=False
    done
    result "smollm2 says the same with one thread and with two, every time" $same "$one"
    "$nibble" run "$model" --raw -p "The capital of France is" -n 8 --temp 0 --json >"$tmp/out" 2>"$tmp/err"
    result "smollm2 knows a capital" "$(value "'Paris' in d['text']")" "$(cat "$tmp/out")"
    "$nibble" run "$model" --raw -p "The capital of France is" -n 8 --temp 0 --ram 72M -c 256 --json >"$tmp/out2" 2>"$tmp/err"
    want=$(value "d['tokens']")
    cp "$tmp/out2" "$tmp/out"
    result "smollm2 under 72 MiB says the same" "$(value "d['tokens'] == $want")" "$(cat "$tmp/out" "$tmp/err")"
    result "and stays below it" "$(value "d['memory']['rss_peak'] <= 72 << 20")" "$(cat "$tmp/out")"
    result "the ledger's peak agrees with the system's" \
        "$(value "abs(d['memory']['tiers']['ram']['peak'] - d['memory']['rss_peak']) <= max(4 << 20, d['memory']['rss_peak'] * 0.03)")" \
        "$(cat "$tmp/out")"
    if python3 -c 'import ctypes; ctypes.CDLL("libmicrohttpd.so.12")' 2>/dev/null; then
        PYTHONDONTWRITEBYTECODE=1 python3 "$here/support/serve-real.py" "$nibble" "$model" || failed=1
    else
        echo "skip a server of smollm2: no libmicrohttpd"
    fi
    # The first example of README.md.
    sed -n 's/^\$ nibble run smollm2 "Why is the sky blue?" //p' "$here/../README.md" | head -1 >"$tmp/flags"
    awk '/^```/ { if (n) exit } n { printf "%s%s", space, $0; space = " " }
        index($0, "$ nibble run smollm2 \"Why is the sky blue?\"") == 1 { n = 1 }' "$here/../README.md" >"$tmp/want"
    # shellcheck disable=SC2046 # words
    "$nibble" run "$model" "Why is the sky blue?" $(cat "$tmp/flags") >"$tmp/out" 2>"$tmp/err"
    result "smollm2 answers as README shows it" "$([ -s "$tmp/want" ] && [ "$(cat "$tmp/out")" = "$(cat "$tmp/want")" ] && echo True)" \
        "$(cat "$tmp/out" "$tmp/err")"
    # shellcheck disable=SC2046
    "$nibble" run "$model" "Why is the sky blue?" $(cat "$tmp/flags") --ram 72M -c 256 >"$tmp/out" 2>"$tmp/err"
    result "and in 72 MiB" "$([ "$(cat "$tmp/out")" = "$(cat "$tmp/want")" ] && echo True)" "$(cat "$tmp/out" "$tmp/err")"
    printf 'Hello, who are you?\n' | "$nibble" chat "$model" --temp 0 -n 40 >"$tmp/out" 2>"$tmp/err"
    result "smollm2 answers in a chat" "$(grep -q help "$tmp/out" && echo True)" "$(cat "$tmp/out" "$tmp/err")"
else
    echo "skip smollm2: $(tail -1 "$tmp/err")"
fi
if model=$(sh "$here/../tools/fetch-model.sh" gemma3-270m 2>"$tmp/err"); then
    perplexity gemma3-270m "$model" 1 12.3666
    # Its head of 262,144 rows has a coarse sketch (exec/shortlist.h): the likeliest token, then the 40 best.
    for how in "--temp 0" "-s 7 --temp 1.2"; do
        # shellcheck disable=SC2086 # words
        want=$("$nibble" run "$model" --raw -p "The sea is" -n 40 -c 256 $how --ignore-eos -q)
        # shellcheck disable=SC2086
        "$nibble" run "$model" --raw -p "The sea is" -n 40 -c 256 $how --ignore-eos --ram 150M --json >"$tmp/out" 2>"$tmp/err"
        result "gemma3-270m under 150 MiB says the same, $how" \
            "$(WANT=$want python3 -S -c 'import json,os,sys; print(json.load(open(sys.argv[1]))["text"].strip() == os.environ["WANT"].strip())' "$tmp/out")" \
            "$want $(cat "$tmp/out" "$tmp/err")"
        result "and looks at little of its head" "$(value "0 < d['traffic']['head_share'] < 0.2")" "$(cat "$tmp/out")"
    done
else
    echo "skip gemma3-270m: $(tail -1 "$tmp/err")"
fi
[ $failed = 0 ]
