#!/bin/sh
# The tools that check the tree, on small trees made for these tests: they must find the mistakes.
set -u
top=$PWD
# shellcheck source=tests/support/check.sh
. "$(dirname "$0")/support/check.sh"
cd "$here/.." || exit 1

not() {
    ! "$@"
}

# lint-includes.sh: one clean tree, then one mistake at a time.
lint() { # lint FILE LINE: a file of the library with that line
    rm -rf "$tmp/tree"
    mkdir -p "$tmp/tree/src/base" "$tmp/tree/src/formats" "$tmp/tree/src/exec/cpu" "$tmp/tree/$(dirname "$1")"
    printf '#include "base/mem.h"\n/* printf("x"); */ static const char s[] = "exit(1)"; // abort()\n' \
        >"$tmp/tree/src/formats/a.c"
    printf '%s\n' "$2" >"$tmp/tree/$1"
    sh "$top/tools/lint-includes.sh" "$tmp/tree"
}
check "a clean tree" lint src/formats/b.c '#include "numbers/types.h"'
check "an include that points up" not lint src/base/b.c '#include "formats/container.h"'
check "a module that is not in the order" not lint src/attic/b.c 'int x;'
check "a header without its module" not lint src/base/b.c '#include "mem.h"'
check "a back end's header outside it" not lint src/exec/b.c '#include "exec/cpu/b.h"'
check "a back end's header inside it" lint src/exec/cpu/b.c '#include "exec/cpu/b.h"'
check "printing" not lint src/base/b.c 'void f(void) { printf("x"); }'
check "printing to stderr" not lint src/base/b.c 'void f(void) { fputs("x", stderr); }'
check "exiting" not lint src/base/b.c 'void f(void) { exit(1); }'
check "the heap's back door" not lint src/base/b.c 'void *f(void) { return malloc(1); }'
check "the same names as members" lint src/base/b.c 'void f(struct s *p) { p->exit(1); p->malloc(2); }'
check "the command line may print" lint src/cli/b.c 'void f(void) { printf("x"); exit(1); }'
check "the command line on the library's inside" not lint src/cli/b.c '#include "weights/pager.h"'
check "the command line on what it may use" lint src/cli/b.c '#include "hub/store.h"'
check "the server on the library's inside" not lint src/server/b.c '#include "engine/engine.h"'
check "unfinished work" not lint src/base/b.c "/* TO""DO: the rest */"

# lint.sh --help; an architecture of the GPU that make does not know.
sh tools/lint.sh --help >"$tmp/help"
check "lint.sh --help shows the usage and checks nothing" sh -c 'grep -q SINCE=main "$1" && ! grep -q "^lint:" "$1"' - "$tmp/help"
check "lint.sh refuses other words" not sh tools/lint.sh --unknown 2>/dev/null
make -n CUDA=0 CUDA_ARCH=90a help >"$tmp/out" 2>&1
check "CUDA_ARCH=90a is an error that names 90" grep -q "expected numbers such as 90, found '90a'" "$tmp/out"

# run-tests.sh: totals over programs, replays and scripts.
fake="$tmp/fake"
mkdir -p "$fake/build/tests" "$fake/tests/fuzz"
program() { # program NAME: its shell text is on stdin
    cat >"$fake/build/tests/$1"
    chmod +x "$fake/build/tests/$1"
    case $1 in
    fuzz_*) : >"$fake/tests/fuzz/$1.c" ;;
    *) : >"$fake/tests/$1.c" ;;
    esac
}
suite() { # suite EXPECTED-LAST-LINE EXPECTED-CODE
    code=0
    (cd "$fake" && JOBS=2 TEST_TIMEOUT=2 sh "$top/tools/run-tests.sh" build) >"$tmp/out" 2>&1 || code=$?
    cat "$tmp/out"
    test "$(tail -1 "$tmp/out")" = "$1" -a "$code" = "$2"
}
check "nothing to run is no success" suite "0 passed, 0 failed, 0 skipped" 1
program test_good <<'SH'
#!/bin/sh
echo "[==========] Running 3 test(s)."
echo "[==========] 3 test(s) run."
echo "[  PASSED  ] 2 test(s)."
echo "[  SKIPPED ] 1 test(s), listed below:"
echo "[  SKIPPED ] a"
SH
program fuzz_x <<'SH'
#!/bin/sh
test -d "$1" && echo "ok a" && echo "ok b"
SH
check "passed and skipped" suite "4 passed, 0 failed, 1 skipped" 0
program test_crash <<'SH'
#!/bin/sh
echo "[==========] Running 3 test(s)."
kill -SEGV $$
SH
check "a crash" suite "4 passed, 1 failed, 1 skipped" 1
program test_crash <<'SH'
#!/bin/sh
echo "[==========] 3 test(s) run."
echo "[  PASSED  ] 1 test(s)."
echo "[  FAILED  ] 2 test(s), listed below:"
echo "[  FAILED  ] a"
echo "[  FAILED  ] b"
exit 2
SH
check "failures" suite "5 passed, 2 failed, 1 skipped" 1
program test_crash <<'SH'
#!/bin/sh
echo "[==========] 3 test(s) run."
echo "[  PASSED  ] 3 test(s)."
exit 1
SH
check "a leak found after the last test" suite "7 passed, 1 failed, 1 skipped" 1
program test_crash <<'SH'
#!/bin/sh
exec sleep 20
SH
check "a test that hangs" suite "4 passed, 1 failed, 1 skipped" 1
rm "$fake/tests/test_crash.c"
check "a program whose source is gone" suite "4 passed, 0 failed, 1 skipped" 0
[ $failed = 0 ]
