#!/bin/sh
# nibble serve over HTTP, with a client of our own (support/serve-checks.py): answers, streams, refusals, keys, clients
# that disconnect, signals, the cap on memory. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
need_python serve
if ! python3 -c 'import ctypes; ctypes.CDLL("libmicrohttpd.so.12")' 2>/dev/null; then
    echo "skip serve: no libmicrohttpd"
    exit 0
fi
cd "$tmp" || exit 1
export NIBBLE_MODELS="$tmp/none"

printf '%s' "The sky is blue, since små parts of air ✓ scatter short waves of light most." >answer
mkdir script random caller
printf '%s' '<think> Hm.</think> I look. <tool_call> {"name": "f", "arguments": {"a": 1}} </tool_call> ' >calls
printf '%s' '<tool_call> {"name": "f", "arguments": {"b": "é", "c": 18446744073709551615}} </tool_call>' >>calls
python3 "$here/support/script-model.py" script answer || exit 1
python3 "$here/support/chat-model.py" "$here" random || exit 1
python3 "$here/support/script-model.py" caller calls || exit 1
cp "$here/support/chat-template.jinja" script/chat_template.jinja
cp "$here/support/chat-template.jinja" caller/chat_template.jinja
cp -r random random-chat
printf '%s' "{% for m in messages %}{{ m.role }}: {{ m.content }} {% endfor %}" >random-chat/chat_template.jinja
build=plain
if is_sanitized; then
    build=sanitized
    echo "skip a server's cap: a sanitizer's own memory does not fit it"
fi
python3 "$here/support/serve-checks.py" "$nibble" script answer random $build || failed=1
exit $failed
