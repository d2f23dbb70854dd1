/* spans.c - see spans.h. */
#include "cli/bench/spans.h"

#include "base/file.h"
#include "base/interval.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const lanes[NIB_N_LANE] = {"compute", "copy", "side", "processor"};

nib_status bench_spans_begin(bench_spans *s, nib_engine *engine, nib_error *err) {
    s->list = malloc(SPANS_MAX * sizeof *s->list);
    if (!s->list)
        return nib_fail_nomem(err, SPANS_MAX * sizeof *s->list, "the trace");
    return nib_engine_spans_start(engine, SPANS_MAX, &s->scale, err);
}

/* ---- sums ---- */

/* If the rows are full, the last one takes all further names. */
static spans_row *row_of(bench_spans *s, const nib_span *x) {
    for (int i = 0; i < s->n_row; i++)
        if (s->rows[i].of->lane == x->lane && !strcmp(s->rows[i].of->what, x->what))
            return &s->rows[i];
    if (s->n_row < SPANS_MAX_ROWS)
        s->rows[s->n_row++].of = x;
    return &s->rows[s->n_row - 1];
}

static void sum_rows(bench_spans *s) {
    s->n_row = 0;
    memset(s->rows, 0, sizeof s->rows);
    for (size_t i = 0; i < s->n; i++) {
        const nib_span *x = &s->list[i];
        spans_row *r = row_of(s, x);
        r->n++;
        r->at_least = r->at_least || x->at_least;
        r->seconds += x->end_s - x->start_s;
        r->bytes += x->bytes;
        r->macs += x->macs;
    }
}

/* Copies of weights on their own may belong to the next pass. */
static bool is_of_pass(const nib_span *x) {
    return x->lane == NIB_LANE_COMPUTE || x->lane == NIB_LANE_HOST;
}

static void sum_pass(bench_spans *s, interval *of_pass) {
    double first = 1e300, last = 0;
    size_t n = 0;
    s->launches_s = 0;
    for (size_t i = 0; i < s->n; i++) {
        const nib_span *x = &s->list[i];
        if (!is_of_pass(x))
            continue;
        first = NUM_MIN(first, x->start_s);
        last = NUM_MAX(last, x->end_s);
        of_pass[n++] = (interval){x->start_s, x->end_s};
        s->launches_s += x->lane == NIB_LANE_COMPUTE ? x->end_s - x->start_s : 0;
    }
    s->first_s = n ? first : 0;
    s->pass_s = n ? last - first : 0;
    s->idle_s = NUM_MAX(s->pass_s - interval_cover(of_pass, n), 0);
}

nib_status bench_spans_end(bench_spans *s, nib_engine *engine, nib_error *err) {
    NIB_TRY(nib_engine_spans_stop(engine, s->list, &s->n, &s->n_dropped, err));
    interval *of_pass = malloc((s->n + 1) * sizeof *of_pass);
    if (!of_pass)
        return nib_fail_nomem(err, s->n * sizeof *of_pass, "the trace");
    sum_rows(s);
    sum_pass(s, of_pass);
    free(of_pass);
    return NIB_OK;
}

void bench_spans_free(bench_spans *s) {
    free(s->list);
    s->list = NULL;
}

/* ---- the table ---- */

static void print_total(const bench_spans *s, const char *what, double seconds) {
    printf("  %-46s %10.1f %6.1f%%\n", what, seconds * 1e6, s->pass_s > 0 ? seconds / s->pass_s * 100 : 0);
}

static void print_row(const bench_spans *s, const spans_row *r) {
    printf("  %-32s %6d %6s %10.1f %6.1f%%", r->of->what, r->n,
           r->of->lane == NIB_LANE_COMPUTE ? "" : lanes[r->of->lane], r->seconds * 1e6,
           s->pass_s > 0 ? r->seconds / s->pass_s * 100 : 0);
    if (r->bytes > 0 && r->seconds > 0) {
        printf(" %2s%9.2f %7.0f", r->at_least ? ">=" : "", r->bytes * 1e-6, r->bytes / r->seconds * 1e-9);
        if (r->of->link)
            printf(" %8s", "link");
        else if (s->scale.read_rate > 0)
            printf(" %7.0f%%", r->bytes / r->seconds / s->scale.read_rate * 100);
    }
    if (r->macs > 0 && r->seconds > 0)
        printf(" %8.1f", 2 * r->macs / r->seconds * 1e-12);
    putchar('\n');
}

void bench_spans_print(const bench_spans *s, const char *test, bool token) {
    printf("\n%s, %-*s %6s %6s %10s %7s %11s %7s %8s %8s\n", test, NUM_MAX(32 - (int)strlen(test), 0),
           token ? "one token" : "one prompt", "calls", "lane", "us", "share", "MB", "GB/s", "of reads",
           "TFLOP/s");
    for (int i = 0; i < s->n_row; i++)
        print_row(s, &s->rows[i]);
    print_total(s, "sum of these, in the lane that computes", s->launches_s);
    print_total(s, "nothing computes", s->idle_s);
    print_total(s, "the pass, from its first to its last", s->pass_s);
    printf("  Traced launches run one at a time, each after the end of the one before, and %.1f us of each\n"
           "  is the clock's own time. Untraced, such a pass takes %.1f us: the mean of those above%s,\n"
           "  by the host's clock, so with what the host does before and after it.\n",
           s->scale.empty_s * 1e6, s->untraced_s * 1e6, token ? ", as a graph where all weights stay" : "");
    if (s->scale.read_rate > 0)
        printf("  The GPU reads its weights with %.0f GB/s, measured just before.\n",
               s->scale.read_rate * 1e-9);
    if (s->n_dropped)
        printf("  %zu more launches and copies did not fit the trace and are missing.\n", s->n_dropped);
}

/* ---- files ---- */

json_t *bench_spans_json(const bench_spans *s) {
    json_t *rows = json_array();
    for (int i = 0; i < s->n_row; i++) {
        const spans_row *r = &s->rows[i];
        json_array_append_new(rows, json_pack("{s:s, s:s, s:b, s:i, s:f, s:f, s:b, s:f}", "op", r->of->what,
                                              "lane", lanes[r->of->lane], "link", r->of->link, "calls", r->n,
                                              "seconds", r->seconds, "bytes", r->bytes, "bytes_at_least",
                                              r->at_least, "macs", r->macs));
    }
    return json_pack("{s:o, s:f, s:f, s:f, s:f, s:f, s:o, s:I}", "rows", rows, "launches_s", s->launches_s,
                     "idle_s", s->idle_s, "pass_s", s->pass_s, "untraced_s", s->untraced_s, "empty_s",
                     s->scale.empty_s, "read_gb_s",
                     s->scale.read_rate > 0 ? json_real(s->scale.read_rate * 1e-9) : json_null(), "dropped",
                     (json_int_t)s->n_dropped);
}

static void append_name(json_t *list, const char *kind, int pid, int tid, const char *name) {
    json_array_append_new(list, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", kind, "ph", "M", "pid",
                                          pid, "tid", tid, "args", "name", name));
}

static void append_spans(json_t *events, const bench_spans *s, int pid) {
    for (size_t i = 0; i < s->n; i++) {
        const nib_span *x = &s->list[i];
        json_array_append_new(
            events, json_pack("{s:s, s:s, s:i, s:i, s:f, s:f, s:{s:f, s:f}}", "name", x->what, "ph", "X",
                              "pid", pid, "tid", x->lane, "ts", (x->start_s - s->first_s) * 1e6, "dur",
                              (x->end_s - x->start_s) * 1e6, "args", "bytes", x->bytes, "macs", x->macs));
    }
}

static json_t *chrome_json(const bench_spans *const *list, const char *const *tests, int n) {
    json_t *events = json_array();
    for (int t = 0; t < n; t++) {
        append_name(events, "process_name", t + 1, 0, tests[t]);
        for (int l = 0; l < NIB_N_LANE; l++)
            append_name(events, "thread_name", t + 1, l, lanes[l]);
        append_spans(events, list[t], t + 1);
    }
    return json_pack("{s:o, s:s}", "traceEvents", events, "displayTimeUnit", "ns");
}

int bench_spans_write(const char *path, const bench_spans *const *list, const char *const *tests, int n) {
    nib_error err;
    const size_t lost = jsonx_lost();
    json_t *document = jsonx_built(chrome_json(list, tests, n), lost);
    char *text = document ? jsonx_text(document, JSON_COMPACT) : NULL;
    json_decref(document);
    const int code = !text                                            ? cli_no_memory()
                     : file_write_all(path, text, strlen(text), &err) ? cli_fail(&err)
                                                                      : 0;
    mem_free(text);
    return code;
}
