#!/bin/sh
# Flags and commands of other programs: each has the same effect as there, is ignored with a message, or is refused in
# one line that says what to use. Misspelt ones get a suggestion. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
model=$here/data/arch/llama
table=$here/../src/cli/options/compat.def
NIBBLE_MODELS=$tmp/models
export NIBBLE_MODELS
mkdir "$tmp/models" "$tmp/text"
cd "$tmp" || exit 1 # some flags name a file to write
python3 "$here/support/chat-model.py" "$here" "$tmp/text" || exit 1

# A process takes several times as long under a sanitizer, which gets each seventh of a long list of flags.
step=1 n=0
is_sanitized && step=7
taken() { # whether it is this flag's turn
    n=$((n + 1))
    [ $((n % step)) = 0 ]
}

run() { # exit code in $code, stdout and stderr in files
    code=0
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
one_line() { [ "$(wc -l <"$tmp/err")" = 1 ]; }
says() { grep -qF -- "$1" "$tmp/err"; }
answer() { # of the model without text, with options
    run run "$model" --tokens 1,2,3 -n 8 --temp 0 --ignore-eos "$@"
}

# A flag with the effect of one of our options: both answers are equal, and with `differs` they differ from the plain
# one.
same() { # same NAME "THEIRS" "OURS"
    # shellcheck disable=SC2086 # flags are words
    {
        run run "$model" --tokens 1,2,3 --seed 1 --ignore-eos $2
        theirs="$code $(cat "$tmp/out")"
        cp "$tmp/err" "$tmp/theirs"
        run run "$model" --tokens 1,2,3 --seed 1 --ignore-eos $3
    }
    check "$1" [ "$theirs" = "0 $(cat "$tmp/out")" -a ! -s "$tmp/theirs" ]
}
same "--n-predict is -n" "--n-predict 5" "-n 5"
same "--n-predict=N, too" "--n-predict=7" "-n 7"
same "--temperature is --temp" "--temperature 0 -n 9" "--temp 0 -n 9"
same "-ctk and -ctv are --kv" "-ctk q4_0 -ctv q4_0 -n 40 --temp 0" "--kv kv4 -n 40 --temp 0"
same "names of formats are read in any case" "--kv KV4 --activation A16 -n 40 --temp 0" "--kv kv4 --activation a16 -n 40 --temp 0"
same "-ub is -b" "-ub 1 -n 3" "-b 1 -n 3"
same "--log-disable is -q" "--log-disable -ngl 9 -n 3" "-q -ngl 9 -n 3"
run run "$model" --tokens 1,2 -n 2 -ctk q8_0 -ctv q4_0
check "two formats of a cache exit 2" [ $code = 2 ]
check "and it says that there is one" says "one --kv for both"
run run "$model" --tokens 1,2 -n 2 -ctk q5_1
check "a format that there is not exits 2" [ $code = 2 ]
run run "$model" --tokens 1,2 -n 2 --log-file "$tmp/said" -ngl 1
check "--log-file is --log" [ $code = 0 -a -e "$tmp/said" ]
run run "$model" --tokens 1 --n-predict many
check "an error names the flag as it was typed" says "--n-predict: expected a whole number"
run run "$model" --tokens 1 --n-predict
check "so does a missing value" says "--n-predict: expected a value (N)"
echo "Some words to score, and then some more words, so that there are enough of them for two chunks." >"$tmp/words.txt"
run eval "$tmp/text" --ppl "$tmp/words.txt" -c 16 --json
sed 's/"timings.*//' "$tmp/out" >"$tmp/ours"
run eval "$tmp/text" -f "$tmp/words.txt" -c 16 --json
sed 's/"timings.*//' "$tmp/out" >"$tmp/theirs"
check "eval -f FILE is --ppl FILE" [ $code = 0 -a -s "$tmp/ours" ]
check "with the same figures" cmp -s "$tmp/ours" "$tmp/theirs"
run eval "$tmp/text" -f "$tmp/words.txt" -c 16 --kl-divergence-base "$tmp/base.kld"
check "--kl-divergence-base is --kld-base" [ $code = 0 -a -s "$tmp/base.kld" ]
run tokenize "$tmp/text" --in-file "$tmp/words.txt"
cp "$tmp/out" "$tmp/theirs"
run tokenize "$tmp/text" -f "$tmp/words.txt"
check "--in-file is -f" cmp -s "$tmp/out" "$tmp/theirs"
printf 'Hi\n' >"$tmp/hi"
cp "$here/support/chat-template.jinja" "$tmp/text/chat_template.jinja"
code=0
"$nibble" chat "$tmp/text" -sys S -n 2 --json <"$tmp/hi" >"$tmp/out" 2>"$tmp/err" || code=$?
check "-sys is --system" grep -q '"role":"system","content":"S"' "$tmp/out"

# Ignored flags: the answer is the plain one, and one line has the reason. The flag's value is not taken for our
# argument.
answer
plain=$(cat "$tmp/out")
ignored() { # ignored FLAG [VALUE]
    answer "$@"
    check "$* is ignored" [ "$code $(cat "$tmp/out")" = "0 $plain" ]
    check "and $1 is said to be" says "nibble: $1 is ignored: "
    check "in one line" one_line
}
for flag in "-fa" "--flash-attn" "-fa on" "--flash-attn auto" "-fa 1" --mlock \
    --no-mmap "-tb 8" "--threads-batch 2" --color "--color on" -st --jinja --verbose-prompt --no-display-prompt --no-warmup \
    --no-perf -nkvo "-mg 0" "-ts 1,1" --simple-io --swa-full "--prio 2" "--poll 50" "-dt 0.1"; do
    taken || continue
    # shellcheck disable=SC2086 # a flag and its value
    ignored $flag
done
for flag in "-sm none" "-sm layer" "-sm row"; do
    # shellcheck disable=SC2086 # a flag and its value
    answer $flag
    check "$flag without --devices changes nothing" [ "$code $(cat "$tmp/out")" = "0 $plain" ]
done
check "and shares without devices are said to be nothing" says "has no effect without --devices"
# Layers on the GPU: all or none. Without a GPU the processor computes, with a message.
export NIBBLE_CUDA=0
for flag in "-ngl 99" "--gpu-layers -1" "--n-gpu-layers all"; do
    # shellcheck disable=SC2086 # a flag and its value
    answer $flag
    check "$flag without a GPU changes nothing" [ "$code $(cat "$tmp/out")" = "0 $plain" ]
    check "and it is said once" says 'using --backend cpu: no GPU can be used'
    check "in one line" one_line
done
answer -ngl 0
check "-ngl 0 says nothing" [ "$code $(cat "$tmp/out")" = "0 $plain" -a ! -s "$tmp/err" ]
answer -ngl=99 -q
check "-q says nothing of it" [ $code = 0 -a ! -s "$tmp/err" ]
code=0
"$nibble" chat "$tmp/text" -cnv -i -mli -n 2 <"$tmp/hi" >"$tmp/out" 2>"$tmp/err" || code=$?
check "chat -cnv -i -mli is chat" [ $code = 0 -a "$(grep -c 'is ignored' "$tmp/err")" = 3 ]

# Refused flags: exit 2, one line, nothing on stdout, and the option that it names exists.
refused() { # refused WORD-IN-TEXT COMMAND FLAG [VALUE]
    word=$1 command=$2
    shift 2
    run "$command" "$model" "$@"
    check "$command $* exits 2" [ $code = 2 -a ! -s "$tmp/out" ]
    check "and names $1 and what to use" grep -qF -- "$word" "$tmp/err"
    check "in one line" one_line
}
refused "nibble chat" run -i
refused "nibble chat" run -cnv
refused "nibble chat" run -mli
refused "nibble run" chat -st
refused "template" run --chat-template chatml
refused "merge" run --lora x.gguf
refused "taskset" run -C 3
refused "HF_TOKEN" run -hft secret
refused "--json" bench -o json
refused "--ppl" eval --winogrande
refused "nibble hw" run --list-devices
refused "--parallel 1" serve -nocb
refused "proxy" serve --ssl-key-file x
refused "8G" serve --cache-ram 8192
refused "requests have it" serve --logit-bias 5+1

# A server takes the flags that it can ignore. It ends before it listens, since it has two models of one name.
run serve "$model" --models "$model" --jinja -cb -fa on --no-webui --metrics --threads-http 4 -sps 0.5 --spec-draft-n-max 4
for flag in --jinja -cb -fa --no-webui --metrics --threads-http -sps; do
    check "serve $flag is ignored" says "nibble: $flag is ignored: "
done
check "and nothing else is said" [ $code = 2 -a "$(wc -l <"$tmp/err")" = 8 ]

# Every flag of llama-server and llama-cli that is not a file of theirs: an option, ignored or refused by its name.
theirs() { # theirs COMMAND FLAG...
    command=$1
    shift
    for flag in "$@"; do
        taken || continue
        "$nibble" "$command" /no/such/model "$flag" 1 >"$tmp/out" 2>"$tmp/err" </dev/null
        ! grep -qE "unknown option|does not take" "$tmp/err" || echo "$command: $flag is unknown"
    done | tee "$tmp/unknown"
    [ ! -s "$tmp/unknown" ]
}
common="-cl -t -tb -C -Cr -Cb -Crb -c -n -b -ub -fa -e -kvo -nkvo -nr -ctk -ctv -dt -lm -lzm -dev -ot -cmoe -ncmoe -ncffn
    -ngl -sm -ts -mg -fit -fitt -fitc -m -mu -dr -hf -hfr -hff -hft -v -lv -ctkd -ctvd -s -l -j -jf -bs -kvu -no-kvu -r
    -sp -mm -mmu --cpu-strict --prio --poll --keep --swa-full --no-perf --rope-scaling --yarn-beta-fast --no-host --rpc --numa
    --moe-cache-mib --check-tensors --override-kv --no-op-offload --lora --control-vector-layer-range --log-disable
    --log-file --log-jsonl --log-colors --offline --no-log-prefix --no-log-timestamps --samplers --sampler-seq --ignore-eos
    --temp --top-k --top-p --min-p --top-nsigma --xtc-probability --typical --repeat-last-n --repeat-penalty
    --presence-penalty --frequency-penalty --dry-multiplier --dry-sequence-breaker --adaptive-target --dynatemp-range
    --mirostat --mirostat-lr --grammar --grammar-file --no-context-shift --no-warmup --no-mmproj --jinja --no-jinja
    --chat-template --chat-template-kwargs --reasoning-format --reasoning-budget -rea --no-escape --spec-type -md -hfd -devd
    -ngld --draft-max --draft-min --draft-p-min --spec-draft-model --spec-draft-n-max --gpt-oss-20b-default"
server="-ctxcp -cms -cram --cache-idle-slots --spm-infill --pooling -np -cb -nocb --cont-batching -a --tags --embd-normalize --host
    --port --reuse-port --path --cors-origins --api-prefix --ui-config --no-webui --no-ui --tools --mcp-servers-config -ag
    --embedding --embeddings --rerank --api-key --api-key-file --ssl-key-file -to --timeout --sse-ping-interval
    --threads-http --cache-prompt --no-cache-prompt --cache-reuse --metrics --props --slots --no-slots --slot-save-path
    --models-dir --models-preset --models-max --no-models-autoload --no-prefill-assistant -sps --lora-init-without-apply
    --sleep-idle-seconds --log-prompts-dir -lcs --kv-unified-per-slot -td -Cd -otd"
# shellcheck disable=SC2086 # flags are words
{
    check "serve knows the flags of llama-server" theirs serve $common $server
    check "run knows those that both have" theirs run $common
}
run run "$model" --tokens 1 -cb
check "letters are no number of an option: -cb is not -c b" says "unknown option -cb"

# Every row of the table: known to a command, not read as a group of short options, one line.
every() {
    sed -n 's/^COMPAT_\(SAME\|WORDS\|IGNORED\|INSTEAD\)("\([^"]*\)".*/\2/p' "$table" | tr ' ' '\n' | sort -u >"$tmp/flags"
    [ "$(wc -l <"$tmp/flags")" -gt 150 ] || return 1
    while read -r flag; do
        taken || continue
        known=
        for command in run chat serve eval bench tokenize; do
            "$nibble" $command /no/such/model "$flag" 1 >"$tmp/out" 2>"$tmp/err" </dev/null
            grep -q "unknown option" "$tmp/err" && continue
            known=1
            break
        done
        [ -n "$known" ] || echo "$flag is unknown to all"
    done <"$tmp/flags" | tee "$tmp/unknown"
    [ ! -s "$tmp/unknown" ]
}
check "every flag of the table is known to a command" every
named() { # commands that messages name: they exist
    grep -o "'nibble [a-z][a-z]*" "$table" | sed 's/.* //' | sort -u >"$tmp/names"
    [ -s "$tmp/names" ] || return 1
    while read -r name; do
        "$nibble" "$name" --help >"$tmp/out" 2>&1 || echo "$name"
    done <"$tmp/names" | tee "$tmp/absent"
    [ ! -s "$tmp/absent" ]
}
check "the commands that it names are there" named

# Misspelt.
meant() { # meant WORD ARGUMENT...: refused, with that suggestion
    word=$1
    shift
    run "$@"
    check "$* exits ${expect:-2}" [ $code = "${expect:-2}" ]
    check "and $word is suggested" says "did you mean $word?"
    check "in one line" one_line
}
meant --prompt run "$model" --promt x
meant --repeat-penalty run "$model" --repeat-penality 1.1
meant --temp run "$model" -temp 0
meant --top-k run "$model" --topk=3
meant --n-predict run "$model" --n-predct 3
meant "'run'" rnu "$model"
meant "'chat'" chta "$model"
meant "'tokenize'" tokenise "$model" hello
meant "'bench'" help bnech
: >"$tmp/models/smollm2.gguf"
expect=4
meant "'smollm2'" run smolm2 -p x
unset expect
run run /no/such/thing -p x
check "what is near nothing gets no suggestion" [ $code = 4 -a -z "$(grep 'did you mean' "$tmp/err")" ]
run run "$model" --frobnicate
check "nor does such a flag" [ $code = 2 -a -z "$(grep 'did you mean' "$tmp/err")" ]
for pair in list:models ls:models rm:models\ rm show:info perplexity:eval version:--version; do
    run "${pair%%:*}" x
    check "${pair%%:*} exits 2" [ $code = 2 ]
    check "and 'nibble ${pair#*:}' is what to use" says "use 'nibble ${pair#*:}"
done
run -m "$model" -p x
check "a flag before any command exits 2" [ $code = 2 ]
check "and it says where a command goes" says "nibble run -m"
run run --tokens 1,2,3 -n 2 -m "$model"
check "-m may stand anywhere" [ $code = 0 ]
run tokenize hello -m "$tmp/text"
first=$(cat "$tmp/out")
run tokenize "$tmp/text" hello
check "and the first word is then the text" [ $code = 0 -a "$first" = "$(cat "$tmp/out")" ]
exit $failed
