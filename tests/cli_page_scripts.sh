#!/bin/sh
# The scripts of nibble serve's page without a browser (support/page-scripts.js): Markdown, hostile texts, stored conversations.
# Skipped where there is no node (Debian's package nodejs).
set -u
here=$(cd "$(dirname "$0")" && pwd)
command -v node >/dev/null || { echo "skip the page's scripts: no node"; exit 0; }
exec node "$here/support/page-scripts.js" "$here/../src/server/page"
