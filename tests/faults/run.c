/* run.c - see run.h. */
#include "faults/run.h"
#include "base/file.h"
#include "base/num.h"
#include "faults/alloc.h"
#include "faults/client.h"
#include "support/sanitized.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

int nibble_main(int argc, char **argv);

run_result *run_results(int n) {
    void *p =
        mmap(NULL, (size_t)n * sizeof(run_result), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

/* Bytes of a member's value that differs from run to run; 0: the text does not begin with such a member. */
static size_t varying(const char *text, size_t n) {
    static const char *const names[] = {"id",
                                        "created",
                                        "created_at",
                                        "item_id",
                                        "total_duration",
                                        "load_duration",
                                        "prompt_eval_duration",
                                        "eval_duration",
                                        "timings",
                                        "modified_at",
                                        "request_id",
                                        "cached_tokens",
                                        "input_tokens",
                                        "cache_read_input_tokens"};
    for (size_t i = 0; i < NUM_COUNT(names); i++) {
        char head[40];
        const size_t n_head = (size_t)snprintf(head, sizeof head, "\"%s\":", names[i]);
        if (n < n_head || memcmp(text, head, n_head) != 0)
            continue;
        size_t at = n_head;
        while (at < n && !strchr(text[n_head] == '{' ? "}" : ",}", text[at]))
            at++;
        return at;
    }
    return 0;
}

void run_part(run_result *r, const char *text, size_t n_byte) {
    assert_true(r->n_part < RUN_PARTS && r->n_text + n_byte <= RUN_TEXT);
    char *out = r->text + r->n_text;
    size_t n = 0;
    for (size_t i = 0; i < n_byte;) {
        const size_t skip = varying(text + i, n_byte - i);
        if (!skip)
            out[n++] = text[i];
        i += skip ? skip : 1;
    }
    r->part[r->n_part] = r->n_text;
    r->n_byte[r->n_part++] = n;
    r->n_text += n;
}

void run_missing_part(run_result *r) {
    assert_true(r->n_part < RUN_PARTS);
    r->n_byte[r->n_part++] = SIZE_MAX;
}

/* A file is one part, or, of lines in any order, a part for each line that begins with an id. */
static void take_file(run_result *r, const char *path, const char *const *ids) {
    char *text = NULL;
    size_t n = 0;
    if (file_read_all(path, RUN_TEXT / 2, &text, &n, NULL) != NIB_OK)
        run_missing_part(r);
    else if (!*ids)
        run_part(r, text, n);
    for (; *ids && text; ids++) {
        const char *at = strstr(text, *ids);
        if (at)
            run_part(r, at, strcspn(at, "\n"));
        else
            run_missing_part(r);
    }
    mem_free(text);
}

/* ---- the process of one run ---- */

static void arm(fault_kind kind, int64_t nth) {
    if ((int)kind == FAULT_MALLOC)
        malloc_fault_arm(nth);
    else
        fault_arm(kind, nth);
}

static void point(int fd, const char *path) {
    const int out = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (out < 0 || dup2(out, fd) < 0)
        _exit(120);
    close(out);
}

static void live(const run_case *c, fault_kind kind, int64_t nth, run_result *r) {
    char *argv[RUN_ARGS + 1] = {(char *)(uintptr_t) "nibble"};
    int argc = 1, ends[2];
    while (argc <= RUN_ARGS && c->args[argc - 1]) {
        argv[argc] = (char *)(uintptr_t)c->args[argc - 1];
        argc++;
    }
    point(STDERR_FILENO, "said");
    point(STDOUT_FILENO, "answer");
    alarm(RUN_SECONDS * (SANITIZED ? 5 : 1)); /* it hangs */
    if (c->serves) {
        if (pipe(ends) || dup2(ends[1], STDOUT_FILENO) < 0)
            _exit(121);
        client_start(ends[0], r);
    }
    arm(kind, nth);
    r->code = nibble_main(argc, argv);
    r->n_call = (int)kind == FAULT_MALLOC ? malloc_fault_count() : fault_count(kind);
    r->whole = true;
    _exit(0);
}

static pid_t start(const run_case *c, const char *folder, fault_kind kind, int64_t nth, run_result *r) {
    fflush(NULL);
    memset(r, 0, offsetof(run_result, text));
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child)
        return child;
    if (chdir(folder) || (c->made && unlink(c->made) && access(c->made, F_OK) == 0))
        _exit(122);
    live(c, kind, nth, r);
    _exit(123);
}

void run_with_faults(const run_case *c, const char *folder, fault_kind kind, const int64_t *nth, int n,
                     run_result *out) {
    pid_t child[64];
    char path[1100];
    assert_in_range(n, 1, NUM_COUNT(child));
    for (int i = 0; i < n; i++) {
        snprintf(path, sizeof path, "%s/%d", folder, i);
        assert_true(mkdir(path, 0700) == 0 || access(path, W_OK) == 0);
        child[i] = start(c, path, kind, nth[i], &out[i]);
    }
    for (int i = 0; i < n; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        if (!out[i].whole)
            out[i].code = WIFSIGNALED(status) ? WTERMSIG(status) : 1000 + WEXITSTATUS(status);
        if (c->serves)
            continue;
        snprintf(path, sizeof path, "%s/%d/%s", folder, i, c->made ? c->made : "answer");
        take_file(&out[i], path, c->ids);
    }
}
