#!/bin/sh
# page.sh FILE NAME: an HTML file as a C array, `const char NAME[]`, and its length without the NUL, `const size_t NAME_size`.
# The style sheets and scripts that the file names, each on a line of its own, are put in its place: the page is one file.
set -eu
LC_ALL=C
export LC_ALL
folder=$(dirname "$1")
printf '/* Made by tools/page.sh from %s. */\n#include <stddef.h>\n\nextern const char %s[];\nextern const size_t %s_size;\nconst char %s[] =\n' \
    "$1" "$2" "$2" "$2"
page=$(while IFS= read -r line; do
    tag=${line%% *}
    file=${line#*=\"}
    case $line in
    '<link rel="stylesheet" href="'*) tag='<style' file=${file#*=\"} ;;
    '<script src="'*) ;;
    *)
        printf '%s\n' "$line"
        continue
        ;;
    esac
    printf '%s>\n' "$tag"
    cat "$folder/${file%%\"*}"
    printf '</%s>\n' "${tag#<}"
done <"$1")
printf '%s\n' "$page" | sed -e 's/\\/\\\\/g' -e 's/"/\\"/g' -e 's/?/\\?/g' -e 's/^/    "/' -e 's/$/\\n"/'
printf '    ;\nconst size_t %s_size = sizeof %s - 1;\n' "$2" "$2"
