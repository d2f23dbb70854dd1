#!/bin/sh
# nibble quantize that is ended by a file at its limit, a full disk, or a kill. The same command continues and makes the
# bytes of one run; a damaged or foreign work file is noticed. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1
if is_sanitized; then
    echo "skip interrupted quantizations: test_quantize has them, and takes a sanitizer's time"
    exit 0
fi
model=tests/data/arch-gguf/gemma3.gguf # 93 tensors, 74 KiB as q4_0
out=$tmp/out.gguf

made() { # made [OPTION...]: exit code in $code, stderr in a file
    code=0
    "$nibble" quantize "$model" -o "$out" --type q4_0 --imatrix none "$@" >"$tmp/said" 2>"$tmp/err" </dev/null ||
        code=$?
}
limited() { # limited BLOCKS: no file gets longer than so many half KiB
    code=0
    (
        ulimit -f "$1"
        exec "$nibble" quantize "$model" -o "$out" --type q4_0 --imatrix none >/dev/null 2>"$tmp/err" </dev/null
    ) || code=$?
}
says() { grep -q -e "$1" "$tmp/err"; }
alone() { [ "$(find "$tmp" -maxdepth 1 -name 'out.gguf*')" = "$out" ]; }
same() { [ "$code" = 0 ] && cmp "$out" "$tmp/expected" && alone; }
begin() { # the work files of a file at its limit, after half the model
    rm -f "$out"
    limited 80
}

code=0
"$nibble" quantize tests/data/arch-gguf/deepseek2-absorbed.gguf -o "$out" --permute >/dev/null 2>&1 </dev/null || code=$?
check "channels of a model with computed matrices" [ $code = 0 ]
rm -f "$out"
code=0
"$nibble" quantize tests/data/arch/qwen3 -o "$out" --rotate --type f32 >"$tmp/said" 2>/dev/null </dev/null || code=$?
check "channels are rotated" [ $code = 0 ]
check "and it is said" grep -q "heads of values of [0-9]* layers are rotated" "$tmp/said"
made --rotate
check "norms after a sub-layer are refused" [ $code = 2 ]
check "by name" says "--rotate: .*attn_post_norm"
rm -f "$out"
rm -f "$out"

made
check "one run" [ $code = 0 ]
mv "$out" "$tmp/expected"

# The model's own file is never written to, under whatever name.
cp "$model" "$tmp/own.gguf"
ln "$tmp/own.gguf" "$tmp/hard.gguf"
ln -s own.gguf "$tmp/soft.gguf"
for name in own hard soft; do
    code=0
    "$nibble" quantize "$tmp/own.gguf" -o "$tmp/$name.gguf" --type q4_0 --imatrix none >/dev/null 2>"$tmp/err" || code=$?
    check "$name.gguf, which is the model, is refused" [ $code = 2 ]
    check "and says why" says "found the model itself"
    check "and the model is what it was" cmp "$model" "$tmp/own.gguf"
done
rm -f "$tmp/own.gguf" "$tmp/hard.gguf" "$tmp/soft.gguf"
code=0
"$nibble" quantize "$model" -o "$tmp" --type q4_0 --imatrix none >/dev/null 2>"$tmp/err" || code=$?
check "a folder's name is refused" [ $code = 2 ]
check "and says what it is" says "expected a name for the file that is made, found a folder"

# A refusal leaves nothing.
nothing() { [ -z "$(find "$tmp" -maxdepth 1 -name 'out.gguf*')" ]; }
made --ram 1M
check "a cap that is too small exits 3" [ $code = 3 ]
check "and leaves nothing" nothing
limited 0
check "a file that may have no byte exits 1" [ $code = 1 ]
check "and leaves nothing, too" nothing
python3 - "$model" "$tmp/nan.gguf" <<'END'
import sys
data = bytearray(open(sys.argv[1], "rb").read())
half = len(data) // 2
data[half:] = b"\xff" * (len(data) - half)
open(sys.argv[2], "wb").write(data)
END
code=0
"$nibble" quantize "$tmp/nan.gguf" -o "$out" --type q4_0 --imatrix none >/dev/null 2>"$tmp/err" </dev/null || code=$?
check "a value that is no number exits 4" [ $code = 4 ]
check "and leaves nothing of the tensors before it" nothing

# A file at its limit.
for blocks in 1 20; do
    limited $blocks
    check "a file that may have $blocks half KiB exits 1" [ $code = 1 ]
    check "and says why" says "out.gguf: cannot write: File too large"
    check "and leaves nothing, since no tensor is finished" nothing
done
for blocks in 60 130; do
    limited $blocks
    check "a file that may have $blocks half KiB exits 1" [ $code = 1 ]
    check "and says why" says "out.gguf: cannot write: File too large"
    check "and what goes on" says "the finished part is in $out.part; the same command continues it"
    check "there is no file yet" [ ! -e "$out" ]
done
made
check "the same command makes the rest" same
check "and says what was there" says '[1-9][0-9] of 93 tensors were finished before'
begin
check "an old file" cp "$tmp/expected" "$out"
limited 100
check "stays until the new one is whole" cmp "$out" "$tmp/expected"
made
check "then it is" same

# A full disk.
if unshare -m true 2>/dev/null; then
    mkdir "$tmp/disk"
    code=0
    # shellcheck disable=SC2016 # the inner shell's
    unshare -m sh -c '
        mount -t tmpfs -o size=48k none "$1/disk" || exit 77
        mkdir "$1/disk/x"
        make="$2 quantize $3 -o $1/disk/x/out.gguf --type q4_0 --imatrix none"
        $make >/dev/null 2>"$1/err" && exit 1
        echo $? >"$1/full"
        ls "$1/disk/x" >"$1/left"
        mount -o remount,size=1m "$1/disk" || exit 77
        $make >/dev/null 2>"$1/err.then" || exit 1
        ls "$1/disk/x" >"$1/then"
        cp "$1/disk/x/out.gguf" "$1/from-disk"' - "$tmp" "$nibble" "$model" || code=$?
    if [ $code = 77 ]; then
        echo "skip a full disk: no file system can be mounted here"
    else
        check "a full disk exits 1" [ "$(cat "$tmp/full")" = 1 ]
        check "and is named" says "out.gguf.*: cannot write: No space left on device"
        check "its work files stay" [ "$(tr '\n' ' ' <"$tmp/left")" = "out.gguf.part out.gguf.part.log " ]
        check "with enough space there is the same file" cmp "$tmp/from-disk" "$tmp/expected"
        check "and nothing else" [ "$(cat "$tmp/then")" = out.gguf ]
        check "of which a part was there" grep -q 'tensors were finished before' "$tmp/err.then"
    fi
else
    echo "skip a full disk: no file system can be mounted here"
fi

# Killed.
rm -f "$out"
for after in 0.01 0.02 0.03 0.05 0.08; do
    timeout -s KILL $after "$nibble" quantize "$model" -o "$out" --type q4_0 --imatrix none -t 1 >/dev/null 2>&1
done
made
check "killed some times, it makes the same file" same

# Ctrl-C, when some tensors are finished.
interrupted() { # interrupted SIGNAL
    rm -f "$out"*
    "$nibble" quantize "$large" -o "$out" --type q4_k_m --imatrix none -t 1 >/dev/null 2>"$tmp/err" </dev/null &
    turns=0
    until [ "$(wc -c 2>/dev/null <"$out.part.log" || echo 0)" -gt 200 ] || [ $turns = 600 ]; do
        sleep 0.05
        turns=$((turns + 1))
    done
    kill -s "$1" $!
    code=0
    wait $! || code=$?
}
large=$tmp/large.gguf
if "$nibble" synth smollm2-135m --layers 8 -o "$large" -q >/dev/null 2>"$tmp/err"; then
    "$nibble" quantize "$large" -o "$tmp/large-expected" --type q4_k_m --imatrix none -q >/dev/null 2>&1
    for by in INT:130 TERM:143; do
        interrupted "${by%:*}"
        check "SIG${by%:*} exits ${by#*:}" [ $code = "${by#*:}" ]
        check "and says what goes on" says "the finished part is in $out.part; the same command continues it"
        check "there is no file yet" [ ! -e "$out" ]
    done
    "$nibble" quantize "$large" -o "$out" --type q4_k_m --imatrix none >/dev/null 2>"$tmp/err" </dev/null
    check "the same command makes the bytes of one run" cmp "$out" "$tmp/large-expected"
    check "and says what was there" says 'tensors were finished before'
    interrupted INT
    printf 'x' | dd of="$large" bs=1 seek=$(($(wc -c <"$large") - 100000)) conv=notrunc 2>/dev/null
    "$nibble" quantize "$large" -o "$out" --type q4_k_m --imatrix none >/dev/null 2>"$tmp/err" </dev/null
    check "a byte of the source that changed meanwhile begins anew" says "another input"
    rm -f "$large" "$out" "$tmp/large-expected"
else
    check "a model to interrupt" false
fi

# Another model of the same shapes in its place: nothing of the first one is reused.
cp "$model" "$tmp/source.gguf"
first=$model size=$(wc -c <"$model") model=$tmp/source.gguf
begin
printf 'another' | dd of="$model" bs=1 seek=$((size - 64)) conv=notrunc 2>/dev/null
made
check "a source that changed begins anew" [ $code = 0 ]
check "and says so" says "another input"
cp "$out" "$tmp/of-changed"
rm "$out"
made
check "its file has nothing of the first source" cmp "$out" "$tmp/of-changed"
cp "$first" "$model"
rm -f "$out"
begin
touch -d '2001-01-01' "$model"
made
check "so does a source with another date alone" same
check "and says so, too" says "another input"
model=$first
rm -f "$out"*

# Damage.
begin
printf 'damage' | dd of="$out.part" bs=1 seek=30000 conv=notrunc 2>/dev/null
made
check "changed bytes are made again" same
check "which is said" says "out.gguf.part is damaged: of [0-9]* finished tensors only the first [0-9]* are"
begin
truncate -s 20000 "$out.part"
made
check "so are missing bytes" same
check "and said" says "out.gguf.part is damaged"
begin
rm "$out.part"
made
check "so is a missing file" same
check "and said, too" says "out.gguf.part is damaged: .* the first 0 are"
begin
printf 'damage' | dd of="$out.part.log" bs=1 seek=100 conv=notrunc 2>/dev/null
made
check "changed sums are noticed" same
check "and said as damage" says "out.gguf.part is damaged"
begin
truncate -s 203 "$out.part.log"
made
check "a log that ends in the middle of an entry counts as far as it goes" same
check "24 entries" says '24 of 93 tensors were finished before'
begin
head -c 400 /dev/urandom >"$out.part.log"
made
check "a log of no key begins anew" same
check "and says so" says "out.gguf.part was made by other settings, another input or another version: starting again"
begin
made --type q8_0
check "so do other settings" [ $code = 0 ]
check "with the same words" says "other settings"
check "and leave nothing" alone
rm -f "$out"

# Two at once.
begin
if command -v flock >/dev/null; then
    code=0
    flock "$out.part" "$nibble" quantize "$model" -o "$out" --type q4_0 --imatrix none >/dev/null 2>"$tmp/err" \
        </dev/null || code=$?
    check "a file that another process writes exits 1" [ $code = 1 ]
    check "and is named" says "out.gguf.part: another process is writing it"
fi
made
check "and is none the worse for it" same

# The names of uniform formats.
alike() { # alike TYPE TYPE [OPTION...]: both names make the same file
    one=$1 two=$2
    shift 2
    made --type "$one" "$@"
    [ $code = 0 ] && mv "$out" "$tmp/one.gguf" && made --type "$two" "$@" && [ $code = 0 ] && cmp "$out" "$tmp/one.gguf"
}
check "u4g64 is n4g64" alike u4g64 n4g64
check "u4g32 is q4_0, and u8g32 q8_0 for the head" alike u4g32 q4_0 --head-type u8g32
check "names are read in any case" alike U4G32 Q4_0 --head-type Q8_0 --method RTN
check "in lists, too" alike N3G64,Q4_0 n3g64,q4_0 --bits 3.5
check "lists of --bits have them" alike u3g64,u4g32 n3g64,q4_0 --bits 3.5
made --type q4_0
check "a smaller result is not said to be larger" sh -c '! grep -q "larger" "$1"' - "$tmp/err"
mv "$out" "$tmp/small.gguf"
"$nibble" quantize "$tmp/small.gguf" -o "$out" --type f16 --imatrix none >/dev/null 2>"$tmp/err" </dev/null
check "a larger result is said to be one" says "the result is larger than"
rm -f "$out"
made --type u6g64
check "a uniform format that no file type holds exits 2" [ $code = 2 ]
check "and the others are named" says "unknown type 'u6g64'; known: .*, u4g64, "

# The residual file beside the output replaces the original.
logits() { # logits NAME ORIGINAL [OPTION...]: the base's with residuals
    name=$1 original=$2
    shift 2
    code=0
    "$nibble" logits "$out" --tokens 1,2,3,4,5 -o "$tmp/$name" --residual "$original" --k-chunk 512 "$@" >/dev/null \
        2>"$tmp/err" </dev/null || code=$?
}
rm -f "$out"
made --type u4g32 --residual
check "residuals beside the file" [ $code = 0 ]
check "and are named" grep -q "residuals: $out.residual" "$tmp/said"
logits by-original "$model"
check "the original" [ $code = 0 ]
logits by-file "$out.residual"
check "its residuals give the same bits" cmp "$tmp/by-original" "$tmp/by-file"
logits by-weight "$model" --residual-rule weighted
logits by-file "$out.residual" --residual-rule weighted
check "by another rule too" cmp "$tmp/by-weight" "$tmp/by-file"
"$nibble" logits "$out" --tokens 1,2,3,4,5 -o "$tmp/plain" >/dev/null 2>&1 </dev/null
check "which are not those of the base" sh -c "! cmp -s '$tmp/plain' '$tmp/by-original'"
logits by-file "$out.residual" --residual-rule static
check "channels by the original's calibration exit 2" [ $code = 2 ]
logits by-file "$out.residual" --residual-bits 8
check "other bits exit 2" [ $code = 2 ]
check "and are named" says "expected --residual-bits 4, found 8"
cp "$out.residual" "$tmp/kept"
truncate -s -128 "$tmp/kept"
logits by-file "$tmp/kept"
check "a short file exits 4" [ $code = 4 ]
cp "$out.residual" "$tmp/kept"
head -c 256 /dev/zero | tr '\000' '\377' |
    dd of="$tmp/kept" bs=1 seek=$(($(wc -c <"$tmp/kept") - 256)) conv=notrunc 2>/dev/null
logits by-file "$tmp/kept"
check "scales that are no numbers exit 4" [ $code = 4 ]
check "and are named" says "expected finite scales"
made --type u4g32a
logits by-file "$out.residual"
check "the residuals of another base exit 4" [ $code = 4 ]
check "and say so" says "expected residuals of this model"
made --type f32 --keep-residual
check "a base that lost nothing has none" [ $code = 4 ]
check "and is kept" says "the model was written, but its residuals were not"

exit $failed
