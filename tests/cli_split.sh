#!/bin/sh
# Models in several GGUF files: the same answers as in one, and the errors for missing, wrong or damaged shards. NIBBLE
# names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
whole=$(find "$here/data/arch-gguf" -name 'llama*.gguf' | sort | head -1)

split() { # split FOLDER SHARDS [--again N]
    rm -rf "${tmp:?}/$1"
    mkdir "$tmp/$1"
    folder=$1
    shift
    python3 "$here/support/split-gguf.py" "$whole" "$tmp/$folder/m" "$@"
}
run() { # run MODEL: exit code in $code
    code=0
    "$nibble" run "$1" --tokens 1,2,3 -n 8 --temp 0 --ignore-eos >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
refused() { # refused WORDS: exit code 4 and these words
    [ $code = 4 ] && grep -q "$1" "$tmp/err"
}

run "$whole"
check "the model in one file" [ $code = 0 ]
want=$(cat "$tmp/out")
for n in 3 5 12; do
    split "n$n" "$n"
    run "$tmp/n$n/m-00001-of-$(printf %05d "$n").gguf"
    check "$n shards say the same" [ $code = 0 -a "$(cat "$tmp/out")" = "$want" ]
done
NIBBLE_MODELS=$tmp/n3 "$nibble" models >"$tmp/out" 2>"$tmp/err"
check "a split model is one in the list" [ "$(grep -c 'm-0000' "$tmp/out")" = 1 ]

split bad 4
run "$tmp/bad/m-00002-of-00004.gguf"
check "a shard that is not the first is refused" refused "part 2 of 4"
cp "$tmp/bad/m-00001-of-00004.gguf" "$tmp/bad/other.gguf"
run "$tmp/bad/other.gguf"
check "a first shard by another name is refused" refused "00001-of-00004"
mv "$tmp/bad/m-00003-of-00004.gguf" "$tmp/aside"
run "$tmp/bad/m-00001-of-00004.gguf"
check "a missing shard is named" refused "m-00003-of-00004.gguf"
cp "$tmp/bad/m-00002-of-00004.gguf" "$tmp/bad/m-00003-of-00004.gguf"
run "$tmp/bad/m-00001-of-00004.gguf"
check "a shard twice is noticed" refused "m-00003-of-00004.gguf"
cp "$tmp/n5/m-00003-of-00005.gguf" "$tmp/bad/m-00003-of-00004.gguf"
run "$tmp/bad/m-00001-of-00004.gguf"
check "a shard of another splitting is noticed" refused "m-00003-of-00004.gguf"
head -c 300 "$tmp/aside" >"$tmp/bad/m-00003-of-00004.gguf"
run "$tmp/bad/m-00001-of-00004.gguf"
check "a shard that is cut is noticed" refused "m-00003-of-00004.gguf"
cp "$whole" "$tmp/bad/m-00003-of-00004.gguf"
run "$tmp/bad/m-00001-of-00004.gguf"
check "a whole model in a shard's place is noticed" refused "m-00003-of-00004.gguf"
rm "$tmp/bad/m-00003-of-00004.gguf"
mkdir "$tmp/bad/m-00003-of-00004.gguf"
run "$tmp/bad/m-00001-of-00004.gguf"
check "a folder in a shard's place is noticed" [ $code != 0 -a -s "$tmp/err" ]
split twice 4 --again 2
run "$tmp/twice/m-00001-of-00004.gguf"
check "a tensor in two shards is refused" refused "m-00003-of-00004.gguf"
exit $failed
