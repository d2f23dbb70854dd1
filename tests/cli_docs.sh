#!/bin/sh
# Every option is in the documents, and every option and file that they name exists. NIBBLE names the binary.
set -u
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1
if is_sanitized; then
    echo "skip documents: they are the same for every build"
    exit 0
fi
if ! python3 -c '' 2>/dev/null; then
    echo "skip documents: no python3 here"
    exit 0
fi

check "the page of options is made" sh -c "python3 tools/options-page.py '$nibble' >'$tmp/options.md'"
check "docs/options.md is it (tools/options-page.py makes it)" diff docs/options.md "$tmp/options.md"
"$nibble" --man | sed 's/\\-/-/g' >"$tmp/man"
"$nibble" --completion bash >"$tmp/bash"
"$nibble" --completion zsh >"$tmp/zsh"
sed -nE 's/^- (`-[a-z]`, )?`(--[a-z0-9-]+).*/\2/p' docs/options.md | sort -u >"$tmp/options"
has_all() { # has_all FILE: every option is there as a word
    grep -oE -e '--[a-z][a-z0-9-]+' "$1" | sort -u | comm -23 "$tmp/options" - >"$tmp/missing"
    cat "$tmp/missing"
    test -s "$tmp/options" && test ! -s "$tmp/missing"
}
check "the man page has every option" has_all "$tmp/man"
check "bash completes every option" has_all "$tmp/bash"
check "zsh completes every option" has_all "$tmp/zsh"

# Help fits a terminal of 100 columns: no line is wider, and none ends with a blank.
narrow() {
    for command in $("$nibble" help | sed -nE 's/^  ([a-z]+) {2,}.*/\1/p'); do
        "$nibble" "$command" --help
    done >"$tmp/help"
    test -s "$tmp/help" && ! grep -nE '^.{101}| $' "$tmp/help"
}
check "help has no line of more than 100 columns" narrow

# Options of our scripts, and of other programs that the documents call, are no options of nibble.
"$nibble" --help | grep -oE -e '--[a-z][a-z0-9-]+' >"$tmp/others"
grep -ohE -e '--[a-z][a-z0-9-]+' src/cli/options/compat.def src/cli/main.c Makefile bench/*.* tools/*.* tests/*.sh >>"$tmp/others"
sort -u "$tmp/options" "$tmp/others" >"$tmp/known"
only_known() {
    grep -ohE -e '(^|[^-a-z])--[a-z][a-z0-9]*(-[a-z0-9]+)*([^-a-z0-9]|$)' README.md CONTRIBUTING.md docs/*.md |
        sed 's/^[^-]*//; s/[^a-z0-9]$//' | sort -u | comm -23 - "$tmp/known" >"$tmp/unknown"
    cat "$tmp/unknown"
    test ! -s "$tmp/unknown"
}
check "the documents name no option that is not there" only_known

# The log may name files of its time. NAME and WHAT stand for any name.
find src include examples tests bench tools docs README.md CONTRIBUTING.md Makefile -type f >"$tmp/files"
only_files() {
    for page in README.md CONTRIBUTING.md docs/*.md; do
        [ "$page" = docs/optimisation-log.md ] || cat "$page"
    done | grep -oE '`[A-Za-z0-9_./-]+\.(c|h|cu|cuh|py|sh|def|md)`' | tr -d '`' | grep -vE 'NAME|WHAT' | sort -u >"$tmp/named"
    while read -r file; do
        grep -qE "(^|/)$(printf '%s' "$file" | sed 's/[.]/[.]/g')\$" "$tmp/files" || echo "$file"
    done <"$tmp/named" >"$tmp/unknown"
    cat "$tmp/unknown"
    test -s "$tmp/named" && test ! -s "$tmp/unknown"
}
check "the documents name no file that is not there" only_files

# The README's commands run as they stand, with a small model for MODEL. A server runs until it is stopped.
mkdir "$tmp/run" "$tmp/run/MODEL"
python3 tests/support/chat-model.py "$PWD/tests" "$tmp/run/MODEL" || exit 1
cp tests/support/chat-template.jinja "$tmp/run/MODEL/chat_template.jinja"
yes 'Some words to score, and then some more words.' | head -100 >"$tmp/run/text.txt"
echo '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions",
    "body": {"max_tokens": 2, "messages": [{"role": "user", "content": "Why?"}]}}' | tr -d '\n' >"$tmp/run/in.jsonl"
sed -nE 's/^(nibble [a-z]+ .*MODEL[^#]*).*/\1/p' README.md >"$tmp/commands"
case $nibble in /*) program=$nibble ;; *) program=$PWD/$nibble ;; esac
examples() {
    [ "$(wc -l <"$tmp/commands")" -gt 10 ] || return 1
    cd "$tmp/run" || return 1
    while read -r command; do
        code=0
        case $command in *serve*) limit=2 ;; *) limit=60 ;; esac
        (
            nibble() { timeout $limit "$program" "$@"; }
            # a port may be taken, and nothing is kept in the cache of who runs this
            export NIBBLE_PORT=0 NIBBLE_REPETITIONS=1 NIBBLE_CTX_SIZE=64 XDG_CACHE_HOME="$tmp/cache"
            eval "$command"
        ) >"$tmp/out" 2>"$tmp/err" </dev/null || code=$?
        [ $code = 0 ] || { [ $limit = 2 ] && [ -s "$tmp/out" ]; } || { echo "$command: exit $code" && tail -2 "$tmp/err"; }
    done <"$tmp/commands" >"$tmp/broken"
    cat "$tmp/broken"
    [ ! -s "$tmp/broken" ]
}
check "the README's commands run" examples
exit $failed
