#!/bin/sh
# nibble batch (support/batch-checks.py): answers, lines that are no requests, files that cannot be read or written, and
# runs that are killed and continued. NIBBLE names the binary.
set -u
here=$(cd "$(dirname "$0")" && pwd)
nibble=${NIBBLE:-build/nibble}
case $nibble in /*) ;; *) nibble=$PWD/$nibble ;; esac
# shellcheck source=tests/support/check.sh
. "$here/support/check.sh"
command -v python3 >/dev/null || { echo "skip batch: no python3"; exit 0; }
cd "$tmp" || exit 1
export PYTHONPATH="$here/support" PYTHONDONTWRITEBYTECODE=1
export NIBBLE_MODELS="$tmp/none"
export XDG_CACHE_HOME="$tmp/cache"

mkdir model
python3 "$here/support/chat-model.py" "$here" model || exit 1
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >model/chat_template.jinja
build=plain
if nm "$nibble" 2>/dev/null | grep -qE '__asan_init|__tsan_init'; then
    build=sanitized
    echo "skip a batch's cap: a sanitizer's own memory does not fit it"
fi
python3 "$here/support/batch-checks.py" "$nibble" model $build || failed=1
exit $failed
