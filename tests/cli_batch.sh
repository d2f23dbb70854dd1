#!/bin/sh
# nibble batch (support/batch-checks.py): answers, lines that are no requests, files that cannot be read or written, and
# runs that are killed and continued. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python batch
cd "$tmp" || exit 1
export NIBBLE_MODELS="$tmp/none"

mkdir model
python3 "$here/support/chat-model.py" "$here" model || exit 1
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >model/chat_template.jinja
build=plain
if is_sanitized; then
    build=sanitized
    echo "skip a batch's cap: a sanitizer's own memory does not fit it"
fi
python3 "$here/support/batch-checks.py" "$nibble" model $build || failed=1
exit $failed
