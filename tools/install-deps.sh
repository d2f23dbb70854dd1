#!/bin/sh
# Installs what is missing to build and run nibble, on Debian and its relatives, with apt (sudo when not root).
#   install-deps.sh          to build, and to fetch a model (what tools/demo.sh needs)
#   install-deps.sh tests    also to build the tests
#   install-deps.sh all      also to run them all and to lint: clang, the linters, an emulator of other processors
# If everything is installed it prints nothing and does not call apt. On a system without apt it names what to install.
set -eu

missing=
need() { # need PACKAGE COMMAND...: the package is needed if the command fails
    package=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $package"
}
has() {
    command -v "$1"
}
compiles() { # compiles COMPILER FLAG: whether a program builds, C library and sanitizer run times included
    dir=$(mktemp -d)
    echo 'int main(void) { return 0; }' >"$dir/a.c"
    code=0
    "$1" "$2" -o "$dir/a" "$dir/a.c" || code=1
    rm -rf "$dir"
    return $code
}
modules() {
    pkg-config --exists "$@"
}

need build-essential compiles cc -O1
need build-essential has make
need binutils has objcopy
need pkg-config has pkg-config
need libjansson-dev modules jansson
need libpcre2-dev modules libpcre2-8
need libutf8proc-dev modules libutf8proc
need libxxhash-dev modules libxxhash
need libedit-dev modules libedit
need liburing-dev modules liburing
need nettle-dev modules nettle
need libcurl4-openssl-dev modules libcurl
need libmicrohttpd-dev modules libmicrohttpd
need libopenblas0-pthread eval "PATH=\$PATH:/sbin ldconfig -p | grep -q libopenblas.so.0"
need coinor-libclp1 eval "PATH=\$PATH:/sbin ldconfig -p | grep -q libClp.so.1"
need ca-certificates test -s /etc/ssl/certs/ca-certificates.crt
need python3 has python3
need python3-pip python3 -m pip --version
if [ "${1:-}" = tests ] || [ "${1:-}" = all ]; then
    need libcmocka-dev modules cmocka
fi
if [ "${1:-}" = all ]; then
    need build-essential compiles cc -fsanitize=thread
    need clang compiles clang -O1
    need libclang-rt-dev compiles clang -fsanitize=address,undefined
    need clang-format has clang-format
    need clang-tidy has clang-tidy
    need cppcheck has cppcheck
    need iproute2 eval "PATH=\$PATH:/sbin command -v ip >/dev/null"
    need zsh has zsh
    need man-db has man
    need groff-base has groff
    need bsdextrautils has col
    need qemu-user has qemu-x86_64
fi
missing=$(printf '%s\n' $missing | sort -u | tr '\n' ' ')
missing=${missing% }
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
    echo "nibble needs these packages (names as in Debian), and this system has no apt to install them:" >&2
    echo "  $missing" >&2
    exit 1
fi
as_root=
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || {
        echo "nibble needs packages; as root: apt-get install $missing" >&2
        exit 1
    }
    as_root=sudo
fi
echo "installing: $missing" >&2
log=$(mktemp)
# apt's lists may be old, or missing in a fresh image. shellcheck disable=SC2086
if ! { $as_root apt-get update &&
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
    >"$log" 2>&1 </dev/null; then
    tail -20 "$log" >&2
    echo "apt could not install: $missing (everything it said: $log)" >&2
    exit 1
fi
rm -f "$log"
