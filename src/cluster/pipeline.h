/* pipeline.h - the first rank's side of a pipeline: its passes continue on the other ranks, and their results
 * come back. */
#ifndef NIB_CLUSTER_PIPELINE_H
#define NIB_CLUSTER_PIPELINE_H

#include "cluster/processes.h"
#include "cluster/setup.h"

#include "engine/engine.h"

typedef struct pipeline pipeline;

/* Starts the other ranks (nib_engine_options.program, and launcher). */
nib_status pipeline_open(const nib_engine_options *o, const cluster_places *places, pipeline **out,
                         nib_error *err);
/* Asks all ranks for the rates of their machines, with the options' threads, and for the RAM that each may
 * take without a cap: rates and free [places->n]. */
nib_status pipeline_rates(pipeline *p, const nib_engine_options *o, const cluster_places *places,
                          plan_rates *rates, uint64_t *free, nib_error *err);
/* The other ranks begin to open their stages. Makes the memory for sums, if they share every layer. */
nib_status pipeline_begin(pipeline *p, const cluster_setup *s, nib_error *err);
/* Waits until all ranks have opened, and joins the engine, which owns the pipeline from then on. */
nib_status pipeline_join(pipeline *p, nib_engine *e, nib_error *err);
/* Without an engine: ends the other ranks. NULL is fine. */
void pipeline_close(pipeline *p);
/* The sums of ranks that share every layer, for the first one's engine; NULL: there are none. */
rank_sums *pipeline_sums(const pipeline *p);

#endif
