#!/bin/sh
# make install into an empty folder: the installed files, the library's exported names, and the example built against
# it. BUILD and NIBBLE name what was built.
set -u
build=${BUILD:-build}
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1

# A sanitized build has its own flags, which an installed library does not carry.
if nm "$build/libinternal.a" 2>/dev/null | grep -qE '__asan_init|__tsan_init'; then
    echo "skip install: this build is for the sanitizers"
    exit 0
fi
# Without the surrounding make's job server and variables.
unset MAKEFLAGS MFLAGS MAKELEVEL
check "make install" make -s install BUILD="$build" DESTDIR="$tmp/root" PREFIX=/opt/nibble
root=$tmp/root/opt/nibble
for file in bin/nibble lib/libnibble.a lib/libnibble.so include/nib.h include/nib_batch.h include/nib_tools.h lib/pkgconfig/nibble.pc \
    share/man/man1/nibble.1 share/bash-completion/completions/nibble share/zsh/site-functions/_nibble; do
    check "$file" test -s "$root/$file"
done
check "the installed command runs" "$root/bin/nibble" --version
# Debug information stays in the build.
sections() { # the sections of FILE for symbols and for debuggers
    readelf -SW "$1" | grep -oE '\.(symtab|debug_info)' | sort -u | tr '\n' ' '
}
check "the command has no symbols" [ -z "$(sections "$root/bin/nibble")" ]
check "nor has the shared library" [ -z "$(sections "$root/lib/libnibble.so")" ]
check "the static one has none for debuggers" [ -z "$(sections "$root/lib/libnibble.a" | grep debug)" ]
check "the build has them" [ "$(sections "$build/nibble")" = ".debug_info .symtab " ]
strip -o "$tmp/stripped" "$build/nibble"
check "the installed command is the build without them" cmp "$root/bin/nibble" "$tmp/stripped"

if command -v man >/dev/null; then
    page() { # the page at a terminal of 80 columns; warnings go to a file, and there must be none
        MANROFFSEQ='' MANWIDTH=80 LC_ALL=C man --warnings -E ascii -l "$root/share/man/man1/nibble.1" 2>"$tmp/warnings" |
            col -b | expand >"$tmp/page"
        cat "$tmp/warnings"
        [ -s "$tmp/page" ] && [ ! -s "$tmp/warnings" ]
    }
    check "man takes the page without a warning" page
    long() {
        awk 'length > 80' "$tmp/page"
        [ -z "$(awk 'length > 80' "$tmp/page")" ]
    }
    check "it fits 80 columns" long
    check "it has a line for a flag of llama.cpp" grep -q -- '-ctk --cache-type-k' "$tmp/page"
    check "no control characters are in it" [ -z "$(tr -d '\n[:print:]' <"$root/share/man/man1/nibble.1" | tr -d '\200-\377')" ]
else
    echo "skip the man page: man is not here"
fi

# Only nib_ names are exported.
foreign() { # foreign NM_ARGUMENT...
    nm "$@" 2>/dev/null | awk 'NF >= 2 && $(NF-1) ~ /^[A-TV-Z]$/ { print $NF }' | grep -v '^nib_'
}
check "libnibble.a shows nib_ names only" test -z "$(foreign --extern-only --defined-only "$root/lib/libnibble.a")"
check "libnibble.so shows nib_ names only" test -z "$(foreign --dynamic --defined-only "$root/lib/libnibble.so")"
declared=$(cat include/*.h | tr '\n' ' ' | grep -o 'NIB_API [^;(#]*nib_[a-z_]*(' | sed 's/.*\(nib_[a-z_]*\)($/\1/' | sort -u)
defined=$(nm --dynamic --defined-only "$root/lib/libnibble.so" | awk '{ print $NF }' | sort -u)
check "every function of the headers is there" test -n "$declared" -a "$declared" = "$defined"

PKG_CONFIG_PATH=$root/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$tmp/root
export PKG_CONFIG_PATH PKG_CONFIG_SYSROOT_DIR
compile() { # compile OUTPUT COMPILER-AND-FLAGS...; MODE: pkg-config's flags
    output=$1
    shift
    # The sysroot would also be prefixed to the folders of the system's own packages.
    flags=$(pkg-config $MODE --cflags --libs nibble | sed "s|$tmp/root/usr|/usr|g")
    # shellcheck disable=SC2086 # flags are words
    "$@" -o "$output" $flags
}
MODE=
check "the example builds against libnibble.so" compile "$tmp/shared" cc -std=c11 -Wall -Wextra -Werror examples/generate.c
static() {
    rm -f "$root"/lib/libnibble.so*
    MODE=--static compile "$tmp/static" cc -std=c11 -Wall -Wextra -Werror examples/generate.c
}
cp -P "$root"/lib/libnibble.so* "$tmp/"
check "the example builds against libnibble.a" static
if command -v c++ >/dev/null; then
    printf '#include <nib_tools.h>\nint main() { return nib_version()[0] != 48; }\n' >"$tmp/a.cc"
    check "the headers are C++ too" c++ -Wall -Wextra -Werror -I"$root/include" -c -o "$tmp/a.o" "$tmp/a.cc"
fi

code=0
LD_LIBRARY_PATH=$tmp "$tmp/shared" /no/such/model.gguf hello >"$tmp/out" 2>&1 || code=$?
check "the example says what is wrong" test "$code" = 4 -a -s "$tmp/out"
if model=$(sh tools/fetch-model.sh smollm2 2>"$tmp/err"); then
    LD_LIBRARY_PATH=$tmp check "the example writes text" "$tmp/shared" "$model" "The capital of France is"
    check "and so does the static one" "$tmp/static" "$model" "The capital of France is"
else
    echo "skip the example with a model: $(tail -1 "$tmp/err")"
fi
[ $failed = 0 ]
