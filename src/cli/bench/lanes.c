/* lanes.c - see lanes.h. */
#include "cli/bench/lanes.h"

#include "base/interval.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "base/thread.h"

#include <string.h>

enum { WEIGHTS, LOAD_CACHE, STREAM, STORE_CACHE, COMPUTE, PROCESSOR, N_COLUMN };

static const char *const columns[N_COLUMN] = {"load weights", "load cache", "load stream",
                                              "store cache",  "compute",    "processor"};

nib_status bench_lanes_begin(bench_lanes *l, const cli_args *args, nib_engine *engine, nib_error *err) {
    *l = (bench_lanes){.begun = time_now()};
    nib_engine_lanes(engine, &l->before);
    if (!args->trace || !args->json)
        return NIB_OK;
    const nib_status status = bench_spans_begin(&l->spans, engine, err);
    l->traced = status == NIB_OK;
    if (!l->traced)
        bench_spans_free(&l->spans);
    return status == NIB_E_USAGE ? NIB_OK : status; /* it has no such clock */
}

static int column_of(const nib_span *x) {
    static const struct {
        const char *what;
        int column;
    } copies[] = {{"copy weights", WEIGHTS},
                  {"load keys and values", LOAD_CACHE},
                  {"store keys and values", STORE_CACHE},
                  {"copy rows", STREAM}};
    for (size_t i = 0; i < NUM_COUNT(copies); i++)
        if (!strcmp(x->what, copies[i].what))
            return copies[i].column;
    return x->lane == NIB_LANE_HOST ? PROCESSOR : COMPUTE;
}

static json_t *row_json(int column, double busy, double all) {
    return json_pack("{s:s, s:f, s:f}", "lane", columns[column], "busy_s", busy, "idle_s",
                     NUM_MAX(all - busy, 0));
}

/* Of a GPU's timeline. */
static json_t *of_spans(bench_lanes *l, nib_engine *engine) {
    json_t *all = NULL;
    nib_error why;
    double first = 1e300, last = 0;
    bench_spans *s = &l->spans;
    interval *list = NULL;
    if (bench_spans_end(s, engine, &why) == NIB_OK && (list = mem_alloc((s->n + 1) * sizeof *list)))
        all = json_array();
    for (size_t i = 0; i < s->n && all; i++) {
        first = NUM_MIN(first, s->list[i].start_s);
        last = NUM_MAX(last, s->list[i].end_s);
    }
    for (int column = 0; column < N_COLUMN && all; column++) {
        size_t n = 0;
        for (size_t i = 0; i < s->n; i++)
            if (column_of(&s->list[i]) == column)
                list[n++] = (interval){s->list[i].start_s, s->list[i].end_s};
        json_array_append_new(all, row_json(column, interval_cover(list, n), NUM_MAX(last - first, 0)));
    }
    mem_free(list);
    bench_spans_free(s);
    return all;
}

json_t *bench_lanes_end(bench_lanes *l, nib_engine *engine) {
    nib_lanes now;
    const double seconds = time_now() - l->begun;
    if (l->traced)
        return of_spans(l, engine);
    nib_engine_lanes(engine, &now);
    const double wait = now.wait_s - l->before.wait_s;
    const double busy[] = {now.load_weights_s - l->before.load_weights_s,
                           now.load_cache_s - l->before.load_cache_s, 0,
                           now.store_cache_s - l->before.store_cache_s, NUM_MAX(seconds - wait, 0)};
    json_t *all = json_array();
    for (int column = 0; column < PROCESSOR; column++)
        json_array_append_new(all, row_json(column, busy[column], seconds));
    return all;
}
