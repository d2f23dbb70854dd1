#!/bin/sh
# nibble pull USER/REPO:QUANT and -hf against a hub of our own on this machine: whole files, broken connections, a killed
# process, a full disk, wrong files, tokens, redirections, shards, folders, the cache of other programs, TLS.
# NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python hub
unset HF_TOKEN HF_TOKEN_PATH HF_HUB_CACHE HF_HUB_OFFLINE NIBBLE_OFFLINE SSL_CERT_FILE CURL_CA_BUNDLE http_proxy https_proxy \
    HTTPS_PROXY all_proxy ALL_PROXY
export NIBBLE_MODELS="$tmp/models" HF_HOME="$tmp/hf" NO_PROXY='*'

hub=$tmp/hub repo=$tmp/hub/repos/Org/Small-GGUF
servers=
trap 'kill $servers 2>/dev/null; rm -rf "$tmp"' EXIT
serve() { # serve FOLDER: starts a hub; $port
    python3 "$here/support/hub.py" "$1" 2>"$1/err" &
    servers="$servers $!"
    for _ in $(seq 200); do
        [ -s "$1/port" ] && break
        sleep 0.05
    done
    port=$(cat "$1/port") || { cat "$1/err"; echo "not ok the hub of the test starts"; exit 1; }
}
mkdir -p "$repo" "$hub/wrong"
gguf=$(find "$here/data/arch-gguf" -name 'llama*.gguf' | sort | head -1)
cp "$gguf" "$repo/Small-F16.gguf"
cp "$gguf" "$repo/Small-Q8_0.gguf"
printf more >>"$repo/Small-Q8_0.gguf"
cp "$gguf" "$repo/mmproj-F16.gguf"
echo "# Small" >"$repo/README.md"
mkdir "$tmp/hub/repos/Org/Split"
python3 "$here/support/split-gguf.py" "$gguf" "$tmp/hub/repos/Org/Split/m é-Q4_0" 3
cp -r "$here/data/arch/llama" "$tmp/hub/repos/Org/Folder"
mkdir -p "$tmp/hub/repos/Org/Folder/onnx"
echo x >"$tmp/hub/repos/Org/Folder/onnx/model.onnx"
echo x >"$tmp/hub/repos/Org/Folder/pytorch_model.bin"
mkdir "$tmp/hub/repos/Org/Bin"
echo x >"$tmp/hub/repos/Org/Bin/pytorch_model.bin"
size=$(wc -c <"$gguf")
serve "$hub"
export HF_ENDPOINT="http://127.0.0.1:$port/"

there=$tmp/models/Org/Small-GGUF/Small-F16.gguf
run() { # exit code in $code, stdout and stderr in files; the hub's requests in $hub/log
    code=0
    : >"$hub/log"
    "$nibble" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
}
pull() {
    run pull Org/Small-GGUF:F16 "$@"
}
anew() {
    rm -rf "$tmp/models"
    rm -f "$hub"/wrong/*
}
left() { # files beside the models
    find "$tmp/models" -type f ! -name '*.gguf'
}
part_size() {
    find "$tmp/models" -name '*.part' -size +0 -exec wc -c {} \; | cut -d' ' -f1
}
says() { grep -qF -- "$1" "$tmp/err"; }
one_line() { [ "$(wc -l <"$tmp/err")" = 1 ]; }
content() { grep -c '^/content/' "$hub/log"; }

pull
check "pull ends well" [ $code = 0 ]
check "with the file" cmp -s "$gguf" "$there"
check "prints its path" [ "$(cat "$tmp/out")" = "$there" ]
check "and leaves nothing else" [ -z "$(left)" ]
check "what was listed is fetched as it was at that commit" grep -q '^/Org/Small-GGUF/resolve/0123456789abcdef' "$hub/log"
run run Org/Small-GGUF:F16 --tokens 1,2,3 -n 4 --temp 0 --ignore-eos
check "then its name is a MODEL" [ $code = 0 -a ! -s "$hub/log" ]
cp "$tmp/out" "$tmp/want"
pull
check "what is there is not fetched again" [ $code = 0 -a ! -s "$hub/log" -a "$(cat "$tmp/out")" = "$there" ]
pull --json
check "--json has the path" grep -qF "\"path\":\"$there\"" "$tmp/out"
run run -hf Org/Small-GGUF:Q8_0 --tokens 1,2,3 -n 4 --temp 0 --ignore-eos -q
check "-hf fetches, and runs" [ $code = 0 -a -e "$tmp/models/Org/Small-GGUF/Small-Q8_0.gguf" ]
check "with nothing but the answer" cmp -s "$tmp/out" "$tmp/want"
run run --hf-repo hf.co/org/small-gguf:q8_0 --tokens 1,2,3 -n 4 --temp 0 --ignore-eos
check "and fetches no second time" [ $code = 0 -a ! -s "$hub/log" ]
run run "$gguf" -hf Org/Small-GGUF -p x
check "-hf takes the first word as text" [ $code = 2 ]
run run -m "$gguf" -hf Org/Small-GGUF -p x
check "-m and -hf exit 2" [ $code = 2 ]
NIBBLE_HF_REPO=Org/Small-GGUF run run "$gguf" --tokens 1 -n 1
check "a MODEL beats NIBBLE_HF_REPO" [ $code = 0 -a ! -s "$hub/log" ]
run models -q
check "models lists what was fetched" [ "$(grep -c '^Org/Small-GGUF/' "$tmp/out")" = 2 ]
run models rm Org/Small-GGUF:F16
check "models rm removes it" [ $code = 0 -a ! -e "$there" ]

# Incomplete downloads: the received part stays, and is continued.
anew
echo $((size / 3)) >"$hub/wrong/break"
pull
check "connections that always break do not matter" [ $code = 0 ]
check "the file is whole" cmp -s "$gguf" "$there"
check "each goes on where the last one ended" [ "$(grep '^/content/' "$hub/log" | cut -d' ' -f2 | sort -u | wc -l)" = "$(content)" ]
anew
echo 100 >"$hub/wrong/once"
echo 1 >"$hub/wrong/norange"
pull
check "a hub without ranges is asked for all of it again" [ $code = 0 -a "$(content)" = 2 ]
check "and the file is right" cmp -s "$gguf" "$there"
anew
echo 2 >"$hub/wrong/busy"
pull
check "a busy hub is asked again" [ $code = 0 ]
anew
mkdir -p "$tmp/models"
echo 20 >"$hub/wrong/once"
"$nibble" pull Org/Small-GGUF:F16 --retries 0 >"$tmp/out" 2>"$tmp/err"
code=$?
check "--retries 0 gives up" [ $code = 1 ]
check "in one line after the first" [ "$(grep -c . "$tmp/err")" = 2 ]
check "what has come is kept" [ "$(part_size)" = 20 ]
check "under no name of a model" [ -z "$(find "$tmp/models" -name '*.gguf')" ]
pull
check "the next pull goes on with it" grep -q '^/content/.* bytes=20-' "$hub/log"
check "and ends well" cmp -s "$gguf" "$there"
check "leaving nothing" [ -z "$(left)" ]

for case in INT:130 TERM:143 KILL:137; do
    anew
    echo $((size / 20)) >"$hub/wrong/slow"
    # A shell's background jobs ignore SIGINT; this starts the command with the default action, as at a terminal.
    python3 -c 'import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])' \
        "$nibble" pull Org/Small-GGUF:F16 >"$tmp/out" 2>"$tmp/err" </dev/null &
    child=$!
    for _ in $(seq 200); do
        [ -n "$(part_size 2>/dev/null)" ] && break
        sleep 0.05
    done
    kill "-${case%:*}" $child
    code=0
    wait $child 2>/dev/null || code=$?
    check "SIG${case%:*} ends a pull with ${case#*:}" [ "$code" = "${case#*:}" ]
    check "what has come is there" [ "$(part_size)" -gt 0 -a ! -e "$there" ]
    rm "$hub/wrong/slow"
    pull
    check "and gone on with" grep -q '^/content/.* bytes=[1-9]' "$hub/log"
    check "to the whole file" cmp -s "$gguf" "$there"
done

anew
echo 20 >"$hub/wrong/once"
"$nibble" pull Org/Small-GGUF:F16 --retries 0 >/dev/null 2>&1
printf 'XXXXXXXXXXXXXXXXXXXX' >"$(find "$tmp/models" -name '*.part')"
pull
check "a damaged part is fetched anew" cmp -s "$gguf" "$there"
check "and it is said" says "damaged"
anew
echo 20 >"$hub/wrong/once"
"$nibble" pull Org/Small-GGUF:F16 --retries 0 >/dev/null 2>&1
cat "$gguf" "$gguf" >"$(find "$tmp/models" -name '*.part')"
pull
check "so is one that is too long" cmp -s "$gguf" "$there"

# Wrong files are removed.
for what in damage longer short; do
    anew
    : >"$hub/wrong/$what"
    pull --retries 0
    check "$what: exits 1" [ $code = 1 ]
    check "$what: no model is there" [ ! -e "$there" ]
done
: >"$hub/wrong/damage"
rm -rf "$tmp/models" "$hub/wrong/short"
pull
check "a wrong file is named" says "SHA-256 differs"
check "and nothing of it is kept" [ -z "$(left)" ]
rm "$hub/wrong/damage"
pull
check "so the next pull ends well" [ $code = 0 ]

# A disk that is full, a folder that cannot be written.
anew
(
    trap '' XFSZ
    ulimit -f $((size / 1024))
    "$nibble" pull Org/Small-GGUF:F16 >"$tmp/out" 2>"$tmp/err" </dev/null
)
check "a file that cannot grow exits 1" [ $? = 1 ]
check "and says why" says "cannot write"
check "what has come is kept" [ "$(part_size)" -gt 0 ]
pull
check "and gone on with" grep -q '^/content/.* bytes=[1-9]' "$hub/log"
check "to the whole file" cmp -s "$gguf" "$there"
if unshare -rm true 2>/dev/null; then
    anew
    mkdir "$tmp/models"
    unshare -rm sh -c '
        mount -t tmpfs -o size=64k none "$0/models" || exit 77
        "$1" pull Org/Small-GGUF:F16 >"$0/out" 2>"$0/err" </dev/null
        echo $? >"$0/code"
        find "$0/models" -type f >"$0/found"' "$tmp" "$nibble"
    check "a full disk exits 1" [ "$(cat "$tmp/code")" = 1 ]
    check "before anything is fetched" [ ! -s "$tmp/found" ]
    check "and says how much is missing" grep -Eq 'needs [0-9.]+ [KM]iB more, but the disk of .* has only [0-9.]+ KiB free' "$tmp/err"
else
    echo "skip a full disk: no mount namespace here"
fi
anew
: >"$tmp/models"
pull
check "a folder that cannot be made exits 1" [ $code = 1 ]
check "and is named" says "$tmp/models"

# Missing files, and files that need a token.
anew
run pull Org/Nothing
check "an unknown repository exits 4" [ $code = 4 ]
check "and is named" says "no model Org/Nothing"
check "in one line" one_line
run pull Org/Small-GGUF:Q5_K_M
check "an unknown quant exits 4" [ $code = 4 ]
check "and what there is is listed" says "it has Small-F16.gguf, Small-Q8_0.gguf"
run pull Org/Bin
check "a repository without weights that we read exits 4" [ $code = 4 -a "$(wc -l <"$tmp/err")" = 1 ]
: >"$hub/wrong/lost"
pull
check "content that is gone exits 1" [ $code = 1 ]
check "and says what the server said" says "404"
rm "$hub/wrong/lost"
run pull smollmm
check "a name that is none exits 2" [ $code = 2 ]
check "with a suggestion" says "did you mean 'smollm2'"
anew
for bad in Org/ /Org/x Org/..  Org/x: "Org/x:a b:c" a/b/c; do
    run pull "$bad"
    check "'$bad' exits 2" [ $code = 2 -a ! -s "$hub/log" ]
done
check "and nothing was made of it" [ ! -e "$tmp/models" ]
run run Org/Nothing -p x
check "run says how to fetch" says "nibble pull Org/Nothing"
printf secret >"$hub/gated"
anew
pull
check "a gated repository exits 4" [ $code = 4 ]
check "and HF_TOKEN is named" says "HF_TOKEN"
HF_TOKEN=secret pull
check "HF_TOKEN opens it" [ $code = 0 ]
check "and stays with the hub's host" [ "$(content)" -gt 0 -a "$(grep '^/content/' "$hub/log" | grep -c secret)" = 0 ]
anew
mkdir -p "$tmp/hf"
printf ' secret\n' >"$tmp/hf/token"
pull
check "so does the token that the hub's programs keep" [ $code = 0 ]
HF_TOKEN="two words" run pull Org/Other
check "a token with a space exits 2" [ $code = 2 -a ! -s "$hub/log" ]
rm "$hub/gated" "$tmp/hf/token"

# Without a network.
anew
HF_ENDPOINT=http://127.0.0.1:1 run pull Org/Small-GGUF:F16
check "no connection exits 1" [ $code = 1 ]
check "in one line" one_line
check "that names the hub" says "cannot reach http://127.0.0.1:1: "
HF_ENDPOINT=http://no-such-host.invalid run pull Org/Small-GGUF:F16
check "so does a host that there is not" [ $code = 1 -a "$(wc -l <"$tmp/err")" = 1 ]
for offline in --offline HF_HUB_OFFLINE=1 NIBBLE_OFFLINE=1; do
    case $offline in
    --*) run pull Org/Small-GGUF:F16 $offline ;;
    *) env "$offline" "$nibble" pull Org/Small-GGUF:F16 >"$tmp/out" 2>"$tmp/err" </dev/null && code=0 || code=$? ;;
    esac
    check "$offline asks nothing" [ $code = 1 -a ! -s "$hub/log" ]
    check "and says so" says "--offline"
done
HF_ENDPOINT=ftp://x run pull Org/Small-GGUF:F16
check "an address of another kind exits 2" [ $code = 2 ]

# Several files: shards, folders. The file that opens the model comes last.
run pull Org/Split
check "a split model is fetched" [ $code = 0 -a "$(find "$tmp/models/Org/Split" -name '*.gguf' | wc -l)" = 3 ]
check "the first shard last" [ "$(grep '^/content/' "$hub/log" | tail -1 | grep -c 00001-of)" = 1 ]
run run Org/Split --tokens 1,2,3 -n 4 --temp 0 --ignore-eos
check "and is a MODEL" cmp -s "$tmp/out" "$tmp/want"
anew
echo 3000 >"$hub/wrong/once"
run pull Org/Split --retries 0
check "half of it is no model" [ $code = 1 -a -z "$("$nibble" models -q)" ]
run pull Org/Split
check "and is gone on with" [ $code = 0 -a "$(content)" = 3 ]
run pull Org/Folder
check "a folder is fetched" [ $code = 0 -a "$(cat "$tmp/out")" = "$tmp/models/Org/Folder" ]
check "without what we do not read" [ -z "$(find "$tmp/models/Org/Folder" -name '*.bin' -o -name 'onnx')" ]
"$nibble" run "$here/data/arch/llama" --tokens 1,2,3 -n 4 --temp 0 --ignore-eos >"$tmp/folder" 2>/dev/null
run run Org/Folder --tokens 1,2,3 -n 4 --temp 0 --ignore-eos
check "and is a MODEL" cmp -s "$tmp/out" "$tmp/folder"
anew
mkdir -p "$tmp/models/Org/Folder"
sed 's/64/65/' "$here/data/arch/llama/config.json" >"$tmp/models/Org/Folder/generation_config.json"
cp "$tmp/models/Org/Folder/generation_config.json" "$tmp/other"
cp "$tmp/other" "$tmp/hub/repos/Org/Folder/generation_config.json"
printf x | dd of="$tmp/models/Org/Folder/generation_config.json" conv=notrunc 2>/dev/null
run pull Org/Folder
check "a file of another revision is fetched again" cmp -s "$tmp/other" "$tmp/models/Org/Folder/generation_config.json"

# Models that other programs have fetched.
anew
cache=$tmp/hf/hub/models--Org--Small-GGUF
mkdir -p "$cache/refs" "$cache/blobs" "$cache/snapshots/abc"
printf abc >"$cache/refs/main"
cp "$gguf" "$cache/blobs/sum"
ln -s ../../blobs/sum "$cache/snapshots/abc/Small-F16.gguf"
pull
check "the cache is looked at first" [ $code = 0 -a ! -s "$hub/log" -a "$(cat "$tmp/out")" = "$cache/snapshots/abc/Small-F16.gguf" ]
run run -hf Org/Small-GGUF:F16 --tokens 1,2,3 -n 4 --temp 0 --ignore-eos --offline
check "and run from" cmp -s "$tmp/out" "$tmp/want"
run pull Org/Small-GGUF:Q8_0
check "what it has not is fetched" [ $code = 0 -a -e "$tmp/models/Org/Small-GGUF/Small-Q8_0.gguf" ]
rm -r "$tmp/hf"

# Two at once: one fetches, the other reports that; nothing is lost.
anew
echo $((size / 20)) >"$hub/wrong/slow"
"$nibble" pull Org/Small-GGUF:F16 >/dev/null 2>&1 &
child=$!
for _ in $(seq 200); do
    [ -n "$(part_size 2>/dev/null)" ] && break
    sleep 0.05
done
pull
check "a second pull of the same exits 1" [ $code = 1 ]
check "and says why" says "being downloaded by another process"
rm "$hub/wrong/slow"
wait $child
check "the first one ends well" cmp -s "$gguf" "$there"

# At a terminal.
anew
echo $((size / 20)) >"$hub/wrong/slow"
if PYTHONPATH=$here/support python3 -c 'import os, terminal; os.openpty()' 2>/dev/null; then
    cat >"$tmp/progress.py" <<'PY'
import os, re, sys
from terminal import Terminal
t = Terminal([sys.argv[1], "pull", "Org/Small-GGUF:F16"], dict(os.environ, TERM="xterm"))
code = t.wait(60)
while t.read(0.2): pass
t.kill()
shares = [int(n) for n in re.findall(r"(\d+) %", t.shown)]
assert code == 0 and len(set(shares)) > 3 and shares == sorted(shares) and max(shares) == 100, (code, t.shown)
assert re.search(r"[KM]iB of [0-9.]+ [KM]iB +[0-9.]+ [KM]?i?B/s", t.shown), t.shown
assert all(len(line) < 80 for line in re.split(r"\r\x1b\[K|\r\n", t.shown)[1:-1] if "%" in line), t.shown
PY
    check "progress is shown at a terminal" env PYTHONPATH="$here/support" PYTHONDONTWRITEBYTECODE=1 python3 "$tmp/progress.py" "$nibble"
else
    echo "skip progress: no pseudo-terminal here"
fi
anew
pull
check "and nowhere else" [ "$(grep -c '%' "$tmp/err")" = 0 ]

# TLS: an unknown certificate is refused, a known one is not.
if command -v openssl >/dev/null; then
    mkdir -p "$tmp/safe/wrong"
    ln -s "$hub/repos" "$tmp/safe/repos"
    openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
        -keyout "$tmp/safe/key.pem" -out "$tmp/safe/cert.pem" 2>/dev/null
    serve "$tmp/safe"
    anew
    HF_ENDPOINT=https://localhost:$port pull
    check "an unknown certificate exits 1" [ $code = 1 -a ! -e "$there" ]
    check "in one line" one_line
    check "and says so" says "certificate"
    HF_ENDPOINT=https://localhost:$port SSL_CERT_FILE=$tmp/safe/cert.pem pull
    check "SSL_CERT_FILE makes it known" cmp -s "$gguf" "$there"
else
    echo "skip TLS: no openssl"
fi
exit $failed
