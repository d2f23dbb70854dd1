#!/bin/sh
# nibble models: models are listed, shown and removed; the cache of other programs is read and not changed.
# NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
HF_HUB_CACHE=$tmp/hub NIBBLE_MODELS=$tmp/models
export HF_HUB_CACHE NIBBLE_MODELS
gguf=$(find "$here/data/arch-gguf" -name 'llama*.gguf' | sort | head -1)

run() { # exit code in $code, stdout and stderr in files
    code=0
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
answer() { # answer MODEL: the same ids as the file itself
    run run "$1" --tokens 1,2,3 -n 4 --temp 0 --ignore-eos
    [ $code = 0 ] && cmp -s "$tmp/out" "$tmp/want"
}
run run "$gguf" --tokens 1,2,3 -n 4 --temp 0 --ignore-eos
cp "$tmp/out" "$tmp/want"

run models
check "without a folder there are none" [ $code = 0 ]
check "and it says how to get one" grep -q "nibble pull smollm2" "$tmp/out"
mkdir -p "$tmp/models/Org/Small-GGUF" "$tmp/hub/models--Org--Big/refs" "$tmp/hub/models--Org--Big/blobs" \
    "$tmp/hub/models--Org--Big/snapshots/abc"
cp "$gguf" "$tmp/models/one.gguf"
cp "$gguf" "$tmp/models/Org/Small-GGUF/Small-F16.gguf"
python3 "$here/support/split-gguf.py" "$gguf" "$tmp/models/part" 3
cp -r "$here/data/arch/llama" "$tmp/models/folder"
cp "$gguf" "$tmp/hub/models--Org--Big/blobs/sum"
ln -s ../../blobs/sum "$tmp/hub/models--Org--Big/snapshots/abc/Big-F16.gguf"
printf abc >"$tmp/hub/models--Org--Big/refs/main"
cat >"$tmp/names" <<'N'
Org/Small-GGUF/Small-F16.gguf
folder
one.gguf
part-00001-of-00003.gguf
Org/Big/Big-F16.gguf
N
for list in "models -q" "models list -q" "models ls --quiet"; do
    # shellcheck disable=SC2086 # words
    run $list
    check "$list has the names alone" cmp -s "$tmp/out" "$tmp/names"
done
run models
check "models says which are shared" grep -q "other programs share" "$tmp/out"
check "and the family of each" [ "$(grep -c ' llama ' "$tmp/out")" = 5 ]
run models --json
check "--json has the same names" python3 -c '
import json, sys
d = json.load(open(sys.argv[1]))
names = open(sys.argv[2]).read().split()
assert [m["name"] for m in d["models"]] == names, d
assert all(m["readable"] and m["bytes"] > 0 and m["path"].startswith("/") for m in d["models"])
assert [m["shared"] for m in d["models"]] == [False] * 4 + [True]' "$tmp/out" "$tmp/names"
while read -r name; do
    case $name in folder) continue ;; esac
    check "$name is a MODEL" answer "$name"
done <"$tmp/names"
for name in ONE Small-F16 Org/Small-GGUF Org/Small-GGUF:f16 Org/Big:F16 hf.co/org/big Big-F16; do
    check "so is $name" answer "$name"
done
run models show Org/Big:F16
check "show says where it is" grep -q "snapshots/abc/Big-F16.gguf (shared" "$tmp/out"
run models show one --json
check "show --json" python3 -S -c 'import json,sys; d=json.load(open(sys.argv[1])); assert d["name"] == "one.gguf" and d["params"] > 0' "$tmp/out"
run models show onf
check "an unknown name exits 4" [ $code = 4 ]
check "with a suggestion" grep -q "did you mean 'one'" "$tmp/err"
for words in show rm pull "list one" frob "rm one two"; do
    # shellcheck disable=SC2086 # words
    run models $words
    check "models $words exits 2" [ $code = 2 -a "$(wc -l <"$tmp/err")" = 1 ]
done

run models rm Org/Big:F16
check "rm leaves what is shared" [ $code = 2 -a -e "$tmp/hub/models--Org--Big/blobs/sum" ]
run models rm "$gguf"
check "rm takes no path" [ $code = 2 -a -e "$gguf" ]
run models rm ../models
check "nor one that leads out of the folder" [ $code != 0 -a -e "$tmp/models/one.gguf" ]
run models rm part-00001-of-00003
check "rm takes all shards" [ $code = 0 -a -z "$(find "$tmp/models" -name 'part-*')" ]
check "and says what it removed" grep -q '^removed part-00001-of-00003.gguf' "$tmp/out"
run models rm folder
check "rm takes a folder" [ $code = 0 -a ! -e "$tmp/models/folder" ]
run models rm Org/Small-GGUF
check "rm takes a file of a repository" [ $code = 0 ]
check "and the folders that are empty then" [ ! -e "$tmp/models/Org" -a -d "$tmp/models" ]
ln -s "$gguf" "$tmp/models/link.gguf"
run models rm link
check "rm takes a link, not what it leads to" [ $code = 0 -a ! -L "$tmp/models/link.gguf" -a -e "$gguf" ]
check "the others are still there" answer one
run models rm nosuch
check "what is not there exits 4" [ $code = 4 ]
if [ "$(id -u)" != 0 ]; then
    chmod a-w "$tmp/models"
    run models rm one
    chmod u+w "$tmp/models"
    check "a folder that cannot be written exits 1" [ $code = 1 ]
    check "and says why" grep -q "Permission denied" "$tmp/err"
fi

run pull
check "pull needs a name" [ $code = 2 ]
run tokenize smollm2 --tokens 1
check "tokenize --tokens needs --decode" [ $code = 2 ]
mkdir "$tmp/models/bytes"
python3 "$here/support/chat-model.py" "$here" "$tmp/models/bytes" || exit 1
run tokenize bytes "Hello" --no-bos
ids=$(tr ' ' ',' <"$tmp/out")
run tokenize bytes --decode --tokens "$ids"
check "tokenize --decode --tokens is text again" [ "$code $(cat "$tmp/out")" = "0 Hello" ]
run tokenize bytes --decode --tokens "$ids" more
check "not beside a text" [ $code = 2 ]
run tokenize bytes --decode --tokens x
check "and not without numbers" [ $code = 2 ]
exit $failed
