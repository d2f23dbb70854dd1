/* spans.h - nibble bench --trace on a GPU: one prompt or token, launch by launch. */
#ifndef NIB_CLI_BENCH_SPANS_H
#define NIB_CLI_BENCH_SPANS_H

#include "cli/cli.h"

enum { SPANS_MAX = 16384, SPANS_MAX_ROWS = 64 };

/* Launches of one name and lane. */
typedef struct spans_row {
    const nib_span *of; /* the first */
    int n;
    bool at_least; /* `bytes` is a lower bound */
    double seconds, bytes, macs;
} spans_row;

/* All times are by the device's clock, except untraced_s. */
typedef struct bench_spans {
    nib_span *list; /* [n], malloc'd */
    size_t n, n_dropped;
    nib_span_scale scale;
    spans_row rows[SPANS_MAX_ROWS];
    int n_row;
    double first_s;    /* start of the pass: its first launch or copy, or of weights on their own */
    double pass_s;     /* from there to the end of its last */
    double launches_s; /* all spans of the compute lane */
    double idle_s;     /* the part of pass_s in which neither that lane nor the processor works */
    double untraced_s; /* such a pass without a trace, by the host's clock */
} bench_spans;

/* Called before and after the pass; the second one also if the pass failed. */
nib_status bench_spans_begin(bench_spans *s, nib_engine *engine, nib_error *err);
nib_status bench_spans_end(bench_spans *s, nib_engine *engine, nib_error *err);
void bench_spans_free(bench_spans *s);

void bench_spans_print(const bench_spans *s, const char *test, bool token);
json_t *bench_spans_json(const bench_spans *s);
/* Writes Chrome's trace format: a process for each of n tests, a thread for each lane. Returns an exit code.
 */
int bench_spans_write(const char *path, const bench_spans *const *list, const char *const *tests, int n);

#endif
