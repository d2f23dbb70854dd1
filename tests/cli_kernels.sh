#!/bin/sh
# Kernel maps from the command line: made, stored, followed, left out, refused; the same answers with and without.
# NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1
model=tests/data/arch-gguf/gpt2-q8_0.gguf
if is_sanitized; then
    echo "skip kernel maps: a sanitizer's times say nothing, and test_engine_kernel_map makes one"
    exit 0
fi

tokens() { # tokens FILE OPTION...: the answer of a run with these options
    out=$1
    shift
    "$nibble" run "$model" --tokens 1,2,3,4,5,6,7,8,9 -n 6 --temp 0 --ignore-eos -t 2 --json "$@" 2>"$tmp/err" |
        sed -n 's/.*"tokens":\[\([^]]*\)\].*/\1/p' >"$tmp/$out"
    test -s "$tmp/$out"
}
quick() { # profile in a moment and in little memory
    "$nibble" profile "$model" --kernels -t 2 --seconds 0.3 --ram 256M "$@" >"$tmp/said" 2>"$tmp/err"
}
code() { # code EXPECTED COMMAND...
    want=$1
    shift
    got=0
    "$@" >"$tmp/said" 2>"$tmp/err" || got=$?
    test "$got" = "$want"
}

check "a run without a map" tokens before
check "a map is made" quick
check "it lies in the cache" test "$(find "$tmp/cache/nibble/kernels" -name '*.json' | wc -l)" = 1
check "it says what was kept" grep -q "kept in $tmp/cache" "$tmp/said"
check "a run follows it" tokens with
check "the answer stays" cmp "$tmp/before" "$tmp/with"
check "a map for one thread, under another name" quick -t 1 -o "$tmp/mine.json" --json
check "which a run can be given" tokens named -t 1 --kernel-map "$tmp/mine.json"
check "the answer stays again" cmp "$tmp/before" "$tmp/named"
check "a missing map is an error" code 4 "$nibble" run "$model" --tokens 1,2 -n 1 --kernel-map "$tmp/none.json"
check "too little memory is refused" code 3 "$nibble" profile "$model" --kernels --ram 100M
check "the comparison, as JSON" sh -c "'$nibble' bench --kernels '$model' -t 1 --kernel-map '$tmp/mine.json' --seconds 0.1 --ram 256M --json >'$tmp/b.json' 2>'$tmp/err'"
check "has shapes, the map's choices and the ablations" \
    grep -q '"shapes":.*"strategies":.*"map":"[a-z].*"ablations":.*the map' "$tmp/b.json"
check "what the units leave untimed has no time" python3 - "$tmp/b.json" <<'END'
import json, sys
for shape in json.load(open(sys.argv[1]))["shapes"]:
    for point in shape["points"]:
        assert not {s["name"] for s in point["strategies"]} & set(point["not_timed"])
        assert point["rule"] not in point["not_timed"]
END

# The same on a fake GPU (tests/support/fakecuda.c): by its clock Split is the fastest.
library=$(cd "$(dirname "$nibble")" && pwd)/tests/libfakecuda.so
if [ ! -f "$library" ]; then
    echo "skip the kernel map of a GPU: $library is not there"
    exit $failed
fi
gpu() { # gpu COMMAND...: on it
    NIBBLE_CUDA=$library "$nibble" "$@" --backend cuda
}
on_gpu() { # on_gpu FILE OPTION...: the answer, and what is said, in $tmp/err
    out=$1
    shift
    gpu run "$model" --tokens 1,2,3,4,5,6,7,8,9 -n 6 --temp 0 --ignore-eos --kv f16 --json "$@" 2>"$tmp/err" |
        sed -n 's/.*"tokens":\[\([^]]*\)\].*/\1/p' >"$tmp/$out"
    test -s "$tmp/$out"
}
gpu_map() {
    gpu profile "$model" --kernels --seconds 0.1 --vram 80M >"$tmp/said" 2>"$tmp/err"
}
check "a run on the GPU without a map" on_gpu gpu-before
check "a map of the GPU is made" gpu_map
check "beside the processor's" test "$(find "$tmp/cache/nibble/kernels" -name 'cuda-*.json' | wc -l)" = 1
check "for a GPU, it says" grep -q 'choices in .* on the GPU' "$tmp/said"
check "a run follows it" on_gpu gpu-with
check "and says so" grep -q 'by the kernel map, q8_0 .* rows: 1-64 split' "$tmp/err"
check "the answer stays" cmp "$tmp/gpu-before" "$tmp/gpu-with"
check "with -v a run names the map" sh -c "NIBBLE_CUDA='$library' '$nibble' run '$model' --tokens 1,2 -n 1 --kv f16 --backend cuda -v 2>&1 | grep -q 'kernels  *by the map .*cuda-'"
check "none is none" on_gpu gpu-none --kernel-map none
check "which is not said" sh -c "! grep -q 'kernel map' '$tmp/err'"
check "the comparison on the GPU" sh -c "NIBBLE_CUDA='$library' '$nibble' bench --kernels '$model' --backend cuda --seconds 0.1 --vram 80M >'$tmp/grid' 2>'$tmp/err'"
check "has the device's strategies" grep -q 'cuda/split .*fastest  *map' "$tmp/grid"
check "its units" grep -q '^unit cuda/s8: .*multiprocessor' "$tmp/grid"
check "the ablations" grep -q '^the map .* 0.0 %' "$tmp/grid"
check "a GPU that is not there" code 5 env NIBBLE_CUDA=0 "$nibble" profile "$model" --kernels --backend cuda
exit $failed
