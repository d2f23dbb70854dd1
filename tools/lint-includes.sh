#!/bin/sh
# Rules that no compiler checks:
#  - a module (folder under src/) includes itself and modules below it only; the order is below, lowest first;
#    docs/architecture.md has its reasons;
#  - the files of engine/ include each other downwards only, too;
#  - server/ and cli/ are programs on top of the library: both include public headers (include/) and base/, cli/ also
#    hub/ and headers of server/;
#  - a back end (folder under src/exec/) is used through src/exec/backend.h: nobody else includes its headers;
#  - the library does not print, exit or abort, and takes heap memory through base/mem.h only.
# lint-includes.sh [ROOT]: ROOT is the tree to check (the test of this script gives its own).
set -u
cd "${1:-.}" || exit 2
MODULES='base hub numbers formats tokenizer jinja model arch kernels memory state schedule weights profile plan exec grammar sequence engine cluster session measure quantize synth server cli'

bad=0
say() {
    printf '%s\n' "$1" >&2
    bad=1
}

level() {
    n=0
    for module in $MODULES; do
        [ "$module" = "$1" ] && { echo $n; return; }
        n=$((n + 1))
    done
    echo -1
}

for folder in src/*/; do
    module=$(basename "$folder")
    own=$(level "$module")
    [ "$own" -ge 0 ] || say "src/$module: not in the order of the modules (tools/lint-includes.sh)"
    includes=$(grep -rnE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$folder" --include='*.[ch]' --include='*.def')
    other_modules=$(printf '%s\n' "$includes" | sed -n 's/.*"\([a-z0-9_]*\)\/.*/\1/p' | sort -u)
    for other in $other_modules; do
        theirs=$(level "$other")
        if [ "$theirs" -lt 0 ] || [ "$theirs" -gt "$own" ]; then
            say "$(printf '%s\n' "$includes" | grep "\"$other/")"
            say "  a file of $module may not include one of $other, which is above it"
        fi
    done
    # Every include names its module, so that the check above sees all of them; public headers are for everybody.
    stray=$(printf '%s\n' "$includes" | grep -vE '"([a-z0-9_]+/.*|nib(_batch|_tools)?\.h)"' | grep .)
    [ -z "$stray" ] || say "$stray
  include a header by its path under src/"
done

# A program includes public headers and modules that know nothing of how a model is computed.
reaching=$(grep -rnE '^#include "' src/cli --include='*.[ch]' 2>/dev/null |
    grep -vE "\"((cli|server|base|hub)/[a-z0-9_/]+\.(h|def)|nib(_batch|_tools)?\.h)\"" | grep .)
[ -z "$reaching" ] || say "$reaching
  the command line uses public headers, base/, hub/ and server/"
reaching=$(grep -rnE '^#include "' src/server --include='*.[ch]' 2>/dev/null |
    grep -vE '"((server|base)/[a-z0-9_]+\.h|nib(_batch)?\.h)"' | grep .)
[ -z "$reaching" ] || say "$reaching
  the server uses nib.h, nib_batch.h and base/"

# The files of engine/ are layers too (their order: src/engine/core.h): no circle of includes among them.
circle=$(grep -rHE '^#include "engine/' src/engine --include='*.[ch]' 2>/dev/null |
    sed -E 's|^src/engine/([a-z_/]+)\.[ch]:#include "engine/([a-z_/]+)\.h".*|\1 \2|' | awk '$1 != $2' | tsort 2>&1 >/dev/null)
[ -z "$circle" ] || say "$circle
  files of src/engine/ include each other in a circle"

for folder in src/exec/*/; do
    [ -d "$folder" ] || continue
    name=$(basename "$folder")
    others=$(grep -rn "\"exec/$name/" src --include='*.[ch]' | grep -v "^src/exec/$name/")
    [ -z "$others" ] || say "$others
  src/exec/$name/ is a back end, which others use through exec/backend.h"
done

# Comments and strings may mention calls that code may not make, so "FILE:LINE:code" leaves both out.
strip() {
    awk '
        FNR == 1 { comment = 0 }
        !comment && !/["\047\/]/ { print FILENAME ":" FNR ":" $0; next }
        comment && !/\*\// { next }
        {
            line = string = ""
            for (i = 1; i <= length($0); i++) {
                two = substr($0, i, 2)
                one = substr($0, i, 1)
                if (comment) {
                    if (two == "*/") { comment = 0; i++ }
                } else if (string != "") {
                    if (one == "\\") i++
                    else if (one == string) string = ""
                } else if (two == "/*") { comment = 1; i++ }
                else if (two == "//") break
                else if (one == "\"" || one == "\047") { string = one; line = line " " }
                else line = line one
            }
            print FILENAME ":" FNR ":" line
        }' "$@"
}

forbid() { # REGEX REASON: reports code that matches; REGEX includes the characters that may precede a word
    hits=$(printf '%s\n' "$code" | grep -E "$1")
    [ -z "$hits" ] || say "$hits
  $2"
}

# shellcheck disable=SC2046 # no file here has a space in its name
code=$(strip $(find src -name '*.[ch]' ! -path 'src/cli/*' | sort) </dev/null)
forbid '[^a-zA-Z0-9_.>](exit|_exit|_Exit|quick_exit|abort|printf|vprintf|puts|putchar|perror|system|setlocale)[[:space:]]*\(' \
    'the library never exits, aborts or prints'
forbid '[^a-zA-Z0-9_.>](stdout|stderr)([^a-zA-Z0-9_]|$)' 'the library never prints'
code=$(printf '%s\n' "$code" | grep -v '^src/base/mem\.c:')
forbid '[^a-zA-Z0-9_.>](malloc|calloc|realloc|reallocarray|strdup|strndup|asprintf|vasprintf|posix_memalign|aligned_alloc|mmap)[[:space:]]*\(' \
    'heap memory goes through base/mem.h'
unfinished=$(grep -rnE '(^|[^A-Za-z])(TODO|FIXME|XXX)([^A-Za-z]|$)' src include tests/*.c tests/support tests/fuzz tools examples Makefile 2>/dev/null | grep -v lint-includes)
[ -z "$unfinished" ] || say "$unfinished
  finish it, or leave it out"
exit $bad
