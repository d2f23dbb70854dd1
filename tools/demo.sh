#!/bin/sh
# Builds nibble, fetches a small model, and answers a question in less memory than the model's size. It shows the
# placement, the streamed text, and planned against measured memory. Installs what is missing (Debian; sudo when not
# root).
set -eu
cd "$(dirname "$0")/.."

sh tools/install-deps.sh
echo "building" >&2
# Without a GPU its kernels would be most of the time.
[ -e /dev/nvidiactl ] || export CUDA="${CUDA:-0}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! make -j"$(nproc)" >"$log" 2>&1; then
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
