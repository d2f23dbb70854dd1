#!/bin/sh
# make lint: formatting, the documents' width, static analysis (clang-tidy, cppcheck), the order of the modules, shell
# scripts. Every check runs, so that one call shows everything. Formatting depends on the version of clang-format;
# Debian 12's (14) decides. SINCE=main: clang-tidy and cppcheck look only at sources that differ from that commit, which
# takes seconds; files that include a changed header are left to a whole run.
set -u
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

# A hash of everything that the result for an object's source depends on: the tools, the flags, the sources that the
# compiler read.
analysis_key() {
    depends=${1%.analysis}.d
    [ -f "$depends" ] || return
    shift
    {
        ls -lL "$(command -v clang-tidy)" "$(command -v cppcheck)"
        echo "${TIDY_STATES:-10000} $*"
        tr -s ' \\' '\n' <"$depends" | grep '\.[ch]$' | sort -u | xargs cat .clang-tidy tools/lint.sh
    } 2>&1 | sha256sum
}

# lint.sh --analyse FILE STAMP -- FLAG...: clang-tidy and cppcheck on one file, with the flags of its folder; make has
# the list of them. A file without findings is checked again only when the contents of one of its sources change: STAMP
# has their hash. clang's analyzer takes most of the time: it looks at TIDY_STATES states of a function. A whole run
# takes 10,000, which is 0.4 of the time of 30,000; with SINCE it is 30,000, of clang's 225,000.
# cppcheck sees one file at a time, so it does not follow values from file to file.
analyse_one() {
    file=$1 stamp=$2
    shift 3
    key=$(analysis_key "$stamp" "$@")
    if [ -n "$key" ] && [ "$key" = "$(cat "$stamp" 2>/dev/null)" ]; then
        touch "$stamp"
        return 0
    fi
    found=0
    # shellcheck disable=SC2086 # flags are words
    clang-tidy --quiet --extra-arg=-Xclang --extra-arg=-analyzer-config --extra-arg=-Xclang \
        --extra-arg=max-nodes="${TIDY_STATES:-10000}" "$file" -- $FLAGS "$@" 2>&1 |
        grep -vE '^[0-9]+ warnings?|^Suppressed|^Use -header-filter' | grep . && found=1
    cppcheck --quiet --std=c11 --enable=warning,portability,performance --inline-suppr --error-exitcode=1 \
        -Iinclude -Isrc -D_GNU_SOURCE --suppress=missingIncludeSystem --suppress=internalAstError \
        --suppress=unknownMacro --suppress=invalidFunctionArg --suppress=incorrectLogicOperator \
        --suppress=invalidPointerCast "$file" 2>&1 || found=1
    [ "$found" = 0 ] || return 1
    echo "$key" >"$stamp"
}
[ "${1:-}" = --analyse ] && { shift; analyse_one "$@"; exit; }

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
