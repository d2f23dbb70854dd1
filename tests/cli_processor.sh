#!/bin/sh
# Every processor gives the same answers: this one acting as a lesser one (NIBBLE_CPU), and emulated lesser ones, which
# stop at any instruction that they lack. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1
vocabulary=${BUILD:-build}/tests/data/tokenizer/llama-spm.gguf

refused() { # refused LIST FOUND: NIBBLE_CPU=LIST is an error that names FOUND
    got=0
    NIBBLE_CPU=$1 "$nibble" info tests/data/arch-gguf/gpt2-q8_0.gguf >"$tmp/said" 2>"$tmp/err" || got=$?
    test "$got" = 2 && grep -q "^nibble: NIBBLE_CPU: expected .*x86-64, avx2, .* found '$2'" "$tmp/err"
}
# answers FILE COMMAND...: the answers of COMMAND (the program, with a prefix) for some models and a text
answers() {
    out=$tmp/$1
    shift
    {
        for model in gpt2-q8_0 gemma2-q8_0 cohere2 mpt; do
            "$@" run tests/data/arch-gguf/$model.gguf --tokens 1,2,3,4,5,6,7,8,9 -n 12 --temp 0 --ignore-eos -t 2 || return 1
        done
        "$@" tokenize "$vocabulary" "Grüße aus dem Süden, 12345 mal!" || return 1
    } >"$out" 2>"$tmp/err"
}
same_answers() {
    answers "$@" && cmp "$tmp/native" "$tmp/$1"
}

unset NIBBLE_CPU
check "answers" answers native "$nibble"
check "a misspelt feature is refused" refused avx2,avx avx
check "and a misspelt level" refused x86_64 x86_64
for cpu in x86-64 avx2 avx2,avx_vnni avx512 avx512_vnni; do
    check "the same with no more than $cpu" same_answers "$cpu" env NIBBLE_CPU=$cpu "$nibble"
done

if is_sanitized; then
    echo "skip emulated processors: a sanitizer's memory does not fit into the emulator's"
elif ! command -v qemu-x86_64 >/dev/null; then
    echo "skip emulated processors: no qemu-x86_64 (Debian: qemu-user)"
else
    for cpu in qemu64,-pni,-cx16,-x2apic Nehalem Haswell; do
        check "the same on an emulated $cpu" same_answers "$cpu" qemu-x86_64 -cpu "$cpu" "$nibble"
    done
fi
exit $failed
