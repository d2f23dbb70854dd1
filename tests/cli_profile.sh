#!/bin/sh
# Importance from the command line: measured, stored, found again, the same bytes on every instruction set and for any
# number of threads, and refused for other weights. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1
if is_sanitized; then
    echo "skip profiles: test_measure_probe and others run this code under a sanitizer"
    exit 0
fi
model=tests/data/arch-gguf/gpt2-q8_0.gguf

code() { # code EXPECTED COMMAND...
    want=$1
    shift
    got=0
    "$@" >"$tmp/said" 2>"$tmp/err" || got=$?
    test "$got" = "$want"
}
kept() { # the file of this run
    find "$tmp/cache/nibble/importance" -name '*.json' ! -name '*quality*'
}
same_on() { # same_on ISA THREADS
    NIBBLE_ISA=$1 "$nibble" profile "$model" -t "$2" -o "$tmp/other.json" >"$tmp/said" 2>"$tmp/err" || return 1
    cmp "$(kept)" "$tmp/other.json" && rm "$tmp/other.json"
}

check "a profile is made" code 0 "$nibble" profile "$model" -t 2
check "a line a layer" test "$(grep -c '^  layer' "$tmp/said")" -ge 2
check "it lies in the cache" test "$(kept | wc -l)" = 1
check "it is found again" code 0 "$nibble" profile "$model"
check "in no time" grep -q "^0 s, from $tmp/cache" "$tmp/said"
check "or measured anew" code 0 "$nibble" profile "$model" --again --json
check "as JSON" grep -q '"found":false' "$tmp/said"
for isa in ref avx2 avx512; do
    if has_kernels $isa; then
        check "the same bytes with $isa" same_on $isa 1
    else
        echo "skip the same bytes with $isa: this processor cannot run the $isa kernels"
    fi
done
check "and with more threads" same_on ref 3
sed 's/"content": "./"content": "0f/; s/\("content": ".\{32\}\)./\1/' "$(kept)" >"$tmp/foreign.json"
check "another model's profile" code 0 "$nibble" profile "$model" -o "$tmp/foreign.json"
check "is not believed" grep -q "expected a profile of the weights" "$tmp/err"
check "costs of lower precision" code 0 "$nibble" profile "$model" --costs --json -t 2
check "have formats and layers left out" grep -q '"formats":.*"kl_left_out":' "$tmp/said"
check "and lie beside it" test "$(find "$tmp/cache/nibble/importance" -name '*-quality.json' | wc -l)" = 1
check "costs of formats that are named" code 0 "$nibble" profile "$model" --costs --formats u4g64a,u2g32a --json
check "are measured" grep -q '"formats":\["u4g64a","u2g32a"\]' "$tmp/said"
check "a format that does not exist" code 2 "$nibble" profile "$model" --costs --formats u4g64a,u9g64
check "is named" grep -q 'found "u9g64" in "u4g64a,u9g64"' "$tmp/err"
mixture=tests/data/arch/qwen3_moe
check "experts of a mixture are counted" code 0 "$nibble" profile $mixture --experts
check "layer by layer" grep -q '^  layer   0 .* %' "$tmp/said"
check "and found again" code 0 "$nibble" profile $mixture --experts --json
check "with a share for each" grep -q '"found":true' "$tmp/said"
check "in the cache" test "$(find "$tmp/cache/nibble/importance" -name '*-experts.json' | wc -l)" = 1
check "a dense model has no experts" code 2 "$nibble" profile "$model" --experts
check "which is said" grep -q "expected a mixture of experts" "$tmp/err"
check "a calibration file that is not there" code 1 "$nibble" profile "$model" --calib "$tmp/none.txt"
exit $failed
