#!/bin/sh
# Writes the C tables of the open lists, from the existing files:
#   registry.sh lib [NAME...]
#                     src/arch/NAME.c -> arch_NAME, src/kernels/cpu/NAME/ -> kernels_NAME,
#                     src/numbers/cpu/NAME/ -> packers_NAME (linked into the library), without the instruction sets
#                     that are named: those of other machines
#   registry.sh cli   src/cli/cmd_NAME.c -> cmd_NAME (linked into the nibble binary only)
# Run from the root of the tree. The order is that of the names in the C locale.
set -eu
LC_ALL=C
export LC_ALL

# table HEADER TYPE TABLE PREFIX NAME...
table() {
    header=$1 type=$2 array=$3 prefix=$4
    shift 4
    [ -f "src/$header" ] || return 0
    printf '#include "%s"\n\n' "$header"
    for name in "$@"; do
        printf 'extern const %s %s%s;\n' "$type" "$prefix" "$name"
    done
    printf 'const %s *const %s[] = {' "$type" "$array"
    for name in "$@"; do
        printf '&%s%s, ' "$prefix" "$name"
    done
    printf 'NULL};\n\n'
}

# The names of the files that exist among the arguments: names SUFFIX PATH...
names() {
    suffix=$1
    shift
    for path in "$@"; do
        [ -e "$path" ] && basename "$path" "$suffix"
    done
    return 0
}

# The instruction sets among the folders in $1 that are not named in $2.
sets() {
    for folder in "$1"/*; do
        case " $2 " in *" ${folder##*/} "*) ;; *) [ -e "$folder" ] && echo "${folder##*/}" ;; esac
    done
    return 0
}

printf '/* Made by tools/registry.sh from the files in the tree. */\n#include <stddef.h>\n\n'
case ${1:-} in
lib)
    shift
    others=$*
    # shellcheck disable=SC2046 # names hold no spaces
    table model/arch.h arch_desc arch_registry arch_ $(names .c src/arch/*.c)
    # shellcheck disable=SC2046
    table kernels/registry.h kernel_isa kernel_isas kernels_ $(sets src/kernels/cpu "$others")
    # shellcheck disable=SC2046
    table numbers/pack_isa.h pack_isa pack_isas packers_ $(sets src/numbers/cpu "$others")
    ;;
cli)
    # shellcheck disable=SC2046
    table cli/cli.h cli_command cli_registry cmd_ $(names .c src/cli/cmd_*.c | sed 's/^cmd_//')
    ;;
*)
    echo "usage: registry.sh lib [NAME...] | cli" >&2
    exit 2
    ;;
esac
