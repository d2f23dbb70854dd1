#!/bin/sh
# /v1/files and /v1/batches of nibble serve (support/batches-checks.py): uploads, answers beside those of clients,
# cancelling, and servers that are killed and started again. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python batches
cd "$tmp" || exit 1
export NIBBLE_MODELS="$tmp/none" XDG_STATE_HOME="$tmp/state"

mkdir model
python3 "$here/support/chat-model.py" "$here" model || exit 1
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >model/chat_template.jinja
python3 "$here/support/batches-checks.py" "$nibble" model || failed=1
exit $failed
