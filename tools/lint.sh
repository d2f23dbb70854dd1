#!/bin/sh
# make lint: formatting, the documents' width, static analysis (clang-tidy, cppcheck), the order of the modules, shell
# scripts. Every check runs, so that one call shows everything. Formatting depends on the version of clang-format;
# Debian 12's (14) decides. SINCE=main: clang-tidy and cppcheck look only at sources that differ from that commit, which
# takes seconds; files that include a changed header are left to a whole run.
set -u
usage() { # the comment above
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}
case ${1:-} in
'' | --analyse) ;;
-h | --help) usage; exit 0 ;;
*) echo "lint.sh: unknown argument '$1'; --help shows the usage" >&2; exit 2 ;;
esac
LC_ALL=C
export LC_ALL
jobs=${JOBS:-$(nproc)}
build=${BUILD:-build}
FLAGS="-std=c11 -D_GNU_SOURCE -Iinclude -Isrc -Itests"
bad=0
check() {
    what=$1
    shift
    if "$@"; then
        echo "lint: $what: ok"
    else
        echo "lint: $what: FAILED"
        bad=1
    fi
}

formatting() {
    find include src tests bench examples -name '*.[ch]' 2>/dev/null | sort |
        xargs "${CLANG_FORMAT:-clang-format}" --dry-run -Werror 2>&1 | head -60 | grep . && return 1
    return 0
}

# lint.sh --analyse FILE... -- FLAG...: clang-tidy and cppcheck on the files of one folder, with its flags; make has
# the list of them. One call of each tool for many files takes two thirds of the time of a call for each file. clang's
# analyzer takes most of the time: it looks at TIDY_STATES states of a function. A whole run takes 10,000, which is 0.4 of
# the time of 30,000; with SINCE it is 30,000, of clang's 225,000. cppcheck follows values within a folder.
analyse() {
    files=
    while [ "$1" != -- ]; do
        files="$files $1"
        shift
    done
    shift
    found=0
    # shellcheck disable=SC2086 # files and flags are words
    clang-tidy --quiet --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang \
        --extra-arg=max-nodes="${TIDY_STATES:-10000}" $files -- $FLAGS "$@" 2>&1 |
        grep -vE '^[0-9]+ warnings?|^Suppressed|^Use -header-filter' | grep . && found=1
    # shellcheck disable=SC2086
    cppcheck --quiet --std=c11 --enable=warning,portability,performance --inline-suppr --error-exitcode=1 \
        -Iinclude -Isrc -D_GNU_SOURCE --suppress=missingIncludeSystem --suppress=internalAstError \
        --suppress=unknownMacro --suppress=invalidFunctionArg --suppress=incorrectLogicOperator \
        --suppress=invalidPointerCast $files 2>&1 || found=1
    [ "$found" = 0 ]
}
[ "${1:-}" = --analyse ] && { shift; analyse "$@"; exit; }

# Sources that SINCE selects: a list, or nothing for all.
changed() {
    [ -z "${SINCE:-}" ] && return
    {
        git diff --name-only --diff-filter=d "$SINCE" -- src
        git ls-files --others --exclude-standard -- src
    } | grep '\.c$' || echo none
}

analysis() {
    sources=$(changed)
    [ "$sources" = none ] && return
    [ -z "$sources" ] || export TIDY_STATES="${TIDY_STATES:-30000}"
    # The jobs of a calling make are shared.
    case ${MAKEFLAGS:-} in *jobserver*) parallel= ;; *) parallel=-j$jobs ;; esac
    # shellcheck disable=SC2086 # files are words
    make -s -k $parallel BUILD="$build" analysis ${sources:+ANALYSED="$(echo $sources)"}
}

scripts() {
    for script in tools/*.sh tests/*.sh .ci/run; do
        [ -f "$script" ] || continue
        sh -n "$script" || return 1
    done
    command -v shellcheck >/dev/null || return 0
    find tools tests -name "*.sh" -exec shellcheck -s sh -S warning {} +
}

# Lines of the documents have at most 100 characters, but for addresses and quoted sources.
documents() {
    LC_ALL=C.UTF-8 grep -nE '^.{101}' README.md CONTRIBUTING.md docs/*.md | grep -vE 'https?://|:\+' && return 1
    return 0
}

# The checks of one process each, while the analysis uses the other processors.
small=$(mktemp -d)
trap 'rm -rf "$small"' EXIT
{
    check "formatting" formatting
    check "documents" documents
    check "modules and calls" sh tools/lint-includes.sh
    check "shell scripts" scripts
    echo "$bad" >"$small/bad"
} >"$small/said" 2>&1 &
check "clang-tidy and cppcheck" analysis
wait $!
cat "$small/said"
[ "$(cat "$small/bad")" = 0 ] || bad=1
exit $bad
