#!/bin/sh
# What make install does: install.sh BUILD, or install.sh --remove. DESTDIR, PREFIX, VERSION, PKGS and STRIP come from
# make. Installed files have only the symbols that linking needs; those for debuggers stay in BUILD.
set -eu
prefix=${PREFIX:-/usr/local}
strip=${STRIP:-strip}
root=${DESTDIR:-}$prefix
bin=$root/bin lib=$root/lib include=$root/include man=$root/share/man/man1
bash_completion=$root/share/bash-completion/completions
zsh_completion=$root/share/zsh/site-functions

if [ "$1" = --remove ]; then
    rm -f "$bin/nibble" "$lib/libnibble.a" "$lib/libnibble.so" "$lib/libnibble.so.0" "$lib/libnibble-cuda.so" \
        "$lib/pkgconfig/nibble.pc" \
        "$include/nib.h" "$include/nib_batch.h" "$include/nib_tools.h" "$root/share/nibble/fetch-model.sh" "$man/nibble.1" "$bash_completion/nibble" "$zsh_completion/_nibble"
    exit 0
fi

build=$1
install -d "$bin" "$lib/pkgconfig" "$include" "$man" "$bash_completion" "$zsh_completion"
install -m 755 "$build/nibble" "$bin/nibble"
"$strip" "$bin/nibble"
install -m 644 "$build/libnibble.a" "$lib/libnibble.a"
"$strip" --strip-unneeded "$lib/libnibble.a"
install -m 755 "$build/libnibble.so" "$lib/libnibble.so.0"
"$strip" --strip-unneeded "$lib/libnibble.so.0"
ln -sf libnibble.so.0 "$lib/libnibble.so"
[ ! -f "$build/libnibble-cuda.so" ] || install -m 755 "$build/libnibble-cuda.so" "$lib/libnibble-cuda.so"
install -m 644 include/nib.h include/nib_batch.h include/nib_tools.h "$include/"
install -d "$root/share/nibble"
install -m 755 tools/fetch-model.sh "$root/share/nibble/fetch-model.sh"
cat >"$lib/pkgconfig/nibble.pc" <<PC
prefix=$prefix
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: nibble
Description: Runs large language models inside a memory budget
Version: $VERSION
Requires.private: $PKGS
Libs: -L\${libdir} -lnibble
Libs.private: -lm -lpthread
Cflags: -I\${includedir}
PC
chmod 644 "$lib/pkgconfig/nibble.pc"
# The man page and the completions come from the same table as --help.
write() { # write FILE ARGUMENT...
    file=$1
    shift
    "$build/nibble" "$@" >"$file"
    chmod 644 "$file"
}
write "$man/nibble.1" --man
write "$bash_completion/nibble" --completion bash
write "$zsh_completion/_nibble" --completion zsh
echo "installed under $root"
