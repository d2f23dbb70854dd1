#!/bin/sh
# nibble serve under random requests, with clients that disconnect and send garbage (support/soak.py), for two seconds
# or SOAK_SECONDS (make soak). NIBBLE names the binary; SOAK_OPTIONS go to the server under load.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python soak
if ! python3 -c 'import ctypes; ctypes.CDLL("libmicrohttpd.so.12")' 2>/dev/null; then
    echo "skip soak: no libmicrohttpd"
    exit 0
fi
cd "$tmp" || exit 1
mkdir random
python3 "$here/support/chat-model.py" "$here" random || exit 1
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >random/chat_template.jinja
# shellcheck disable=SC2086 # several options
python3 "$here/support/soak.py" "$nibble" random "${SOAK_SECONDS:-2}" ${SOAK_OPTIONS:-} || failed=1
exit $failed
