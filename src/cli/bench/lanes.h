/* lanes.h - the lanes of a run, as in table 4 of FlexGen: load weights, load cache, load stream, store cache,
 * compute. On the processor they are counted anyway (nib_engine_lanes). On a GPU they are the first launches
 * and copies of the run (spans.h), with --trace. */
#ifndef NIB_CLI_BENCH_LANES_H
#define NIB_CLI_BENCH_LANES_H

#include "cli/bench/spans.h"
#include "nib_tools.h"

typedef struct bench_lanes {
    double begun;
    nib_lanes before;
    bench_spans spans;
    bool traced; /* spans are recorded */
} bench_lanes;

nib_status bench_lanes_begin(bench_lanes *l, const cli_args *args, nib_engine *engine, nib_error *err);
/* [{"lane", "busy_s", "idle_s"}], since begin, and frees the spans; NULL: no memory, or the trace failed. To
 * be called if begin succeeded. */
json_t *bench_lanes_end(bench_lanes *l, nib_engine *engine);

#endif
