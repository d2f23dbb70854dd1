/* run.h - one run of the command with one fault, in a process of its own. */
#ifndef NIB_TESTS_FAULTS_RUN_H
#define NIB_TESTS_FAULTS_RUN_H

#include "base/mem.h"

#include <stddef.h>

enum { FAULT_MALLOC = FAULT_N, N_FAULT }; /* kinds: those of mem.h, and any allocation of the process */
enum { RUN_ARGS = 20, RUN_TEXT = 256 << 10, RUN_PARTS = 16, RUN_SECONDS = 20 };

typedef struct run_case {
    const char *name;
    const char *args[RUN_ARGS];
    const char *made;   /* the file that the command makes; NULL: its answer is on stdout */
    bool serves;        /* the client asks it (client.h) */
    const char *ids[4]; /* that lines of the answer begin with, if their order may differ */
} run_case;

typedef struct run_result {
    bool whole;                                /* the command returned */
    int code;                                  /* its exit code, or the number of the signal that ended it */
    int64_t n_call;                            /* of the fault's kind */
    int n_part;                                /* parts of the answer: each is as expected, or is missing */
    size_t part[RUN_PARTS], n_byte[RUN_PARTS]; /* places in text; SIZE_MAX bytes: it is missing */
    size_t n_text;
    char text[RUN_TEXT];
} run_result;

/* Runs `n` of one kind at the same time, one for each of nth[]; out[n] from run_results. folder: for their
 * files. */
run_result *run_results(int n);
void run_with_faults(const run_case *c, const char *folder, fault_kind kind, const int64_t *nth, int n,
                     run_result *out);

/* Adds a part of the answer, without what differs from run to run. */
void run_part(run_result *r, const char *text, size_t n_byte);
void run_missing_part(run_result *r);

#endif
