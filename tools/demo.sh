#!/bin/sh
# Builds nibble, fetches a small model, and answers a question in less memory than the model's size. It shows the
# placement, the streamed text, and planned against measured memory. Installs what is missing (Debian; sudo when not
# root).
set -eu
cd "$(dirname "$0")/.."

sh tools/install-deps.sh
# Without a GPU its kernels would be most of the time.
[ -e /dev/nvidiactl ] || export CUDA="${CUDA:-0}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
n_file=$(make -n 2>/dev/null | grep -c -e ' -c -o ')
echo "building $n_file files" >&2
make -j"$(nproc)" >"$log" 2>&1 &
build=$!
while [ -t 2 ] && kill -0 $build 2>/dev/null; do
    printf '\rcompiled %d of %d' "$(grep -c -e ' -c -o ' "$log")" "$n_file" >&2
    sleep 1
done
[ ! -t 2 ] || printf '\r\033[K' >&2
if ! wait $build; then
    tail -40 "$log" >&2
    exit 1
fi
model=$(sh tools/fetch-model.sh smollm2) || {
    echo "the demo needs the model: connect this machine, or put smollm2.gguf into the models folder" >&2
    exit 1
}
stat -c %s "$model" | awk '{ printf "The model takes %.1f MiB; the whole process may take 72 MiB.\n", $1 / 1048576 }' >&2
echo '$ nibble run smollm2 "Why is the sky blue?" -s 6 --ram 72M -c 256 -v' >&2
build/nibble run "$model" "Why is the sky blue?" -s 6 --ram 72M -c 256 -v
