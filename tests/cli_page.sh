#!/bin/sh
# The page of nibble serve in a real browser (support/page-checks.py): typing, keys, answers, Markdown, copying, stored
# conversations, stopping, dark colours, the width of a phone. Skipped where there is no chromium (Debian's package). NIBBLE names the binary; PICTURES is a folder for
# screenshots (default: none are kept).
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
for needed in python3 chromium; do
    command -v "$needed" >/dev/null || { echo "skip the page in a browser: no $needed"; exit 0; }
done
if ! python3 -c 'import ctypes; ctypes.CDLL("libmicrohttpd.so.12")' 2>/dev/null; then
    echo "skip the page in a browser: no libmicrohttpd"
    exit 0
fi
pictures=${PICTURES:-$tmp/pictures}
mkdir -p "$pictures"
pictures=$(cd "$pictures" && pwd)
cd "$tmp" || exit 1
export PYTHONPATH="$here/support" PYTHONDONTWRITEBYTECODE=1
printf '%s' 'The sky is **blue**, since <b>air</b> scatters `short` waves most:

```python
print("blue")
```' >answer
mkdir script
python3 "$here/support/script-model.py" script answer || exit 1
cp "$here/support/chat-template.jinja" script/chat_template.jinja
python3 "$here/support/page-checks.py" "$nibble" script "$pictures" || failed=1
exit $failed
