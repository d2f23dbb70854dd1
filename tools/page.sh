#!/bin/sh
# page.sh FILE NAME: the file as a C array, `const char NAME[]`, and its length without the NUL, `const size_t NAME_size`.
set -eu
LC_ALL=C
export LC_ALL
printf '/* Made by tools/page.sh from %s. */\n#include <stddef.h>\n\nextern const char %s[];\nextern const size_t %s_size;\nconst char %s[] =\n' \
    "$1" "$2" "$2" "$2"
sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/?/\\?/g' -e 's/^/    "/' -e 's/$/\\n"/' "$1"
printf '    ;\nconst size_t %s_size = sizeof %s - 1;\n' "$2" "$2"
