/* planning.h - the question that a plan or a prediction answers (plan/planner.h), gathered from a core. */
#ifndef NIB_ENGINE_PLANNING_PLANNING_H
#define NIB_ENGINE_PLANNING_PLANNING_H

#include "engine/core.h"
#include "nib_tools.h"
#include "plan/planner.h"

/* The purpose of a plan or a prediction. */
typedef struct planning_of {
    const engine_internal *internal; /* NULL: nothing */
    const backend *open;     /* back end of an engine with loaded weights; NULL: they are not loaded */
    int64_t n_prompt, n_gen; /* tokens; 0: the defaults */
} planning_of;

/* Rows of a pass and of a cell. */
typedef struct planning_rows {
    int64_t n_pass, n_cell;
} planning_rows;

typedef struct planning {
    plan_question q; /* points into the rest */
    planning_of of;
    plan_block_facts *blocks;
    pager_page *pages;
    learned learned;
    homes_question device; /* if a GPU computes, and its back end is not open */
    homes_split split;
    planning_rows base, streamed; /* with everything resident, and where weights are streamed */
    uint64_t workspace;           /* of base */
    uint64_t workspace_touched;   /* the part of it that the workload makes resident */
    uint64_t channels;            /* bytes of channel statistics that formats of weights need */
    char model[PLAN_NAME], content[CONTENT_KEY], prompts[40];
} planning;

/* Collects the facts about the model in its current layout, without profiles of its weights: each block has
 * one choice. Times of earlier runs are not included (learn_load). The caller closes *f in any case. */
nib_status planning_gather(planning *f, const engine_core *e, const planning_of *of, nib_error *err);
void planning_close(planning *f);

/* Makes a plan for weights that are not loaded yet. Errors as nib_plan. */
nib_status planning_make(const engine_core *e, const nib_plan_options *how, plan *out, nib_error *err);

/* ---- formats.c: the formats between which a workload's plan chooses ---- */
typedef struct planning_format {
    nib_flow_format is;
    double kv_loss; /* the part of its loss that keys and values have */
    engine_core as; /* the core with these formats: a copy that owns its layout, if that differs, and its
                       list of formats by layer */
    layout *lay;    /* the layout of its own; NULL: the core's */
    uint64_t channels;
} planning_format;

typedef struct planning_formats {
    planning_format list[NIB_FLOW_FORMATS]; /* f16 and the file's own weights first */
    bool allowed[NIB_FLOW_FORMATS];
    int n;
    double max_loss;
} planning_formats;

/* Lists the formats that the options leave open, with the engine's own: those of keys and values if kv_type
 * is NIB_KV_AUTO, those of weights with `quality`. The caller closes *out in any case. */
nib_status planning_list_formats(const engine_core *e, int kv_type, planning_formats *out, nib_error *err);
void planning_close_formats(planning_formats *f);

/* planning.c: the layout with the fewest bytes of weights within a loss (plan_fewest_bytes); *out NULL: the
 * core's own. *loss: of its weights. *channels: bytes of channel statistics that it needs. */
nib_status planning_fewest(const engine_core *e, double max_loss, layout **out, double *loss,
                           uint64_t *channels, nib_error *err);

/* Plans for a workload: those that nib_plan_flows says, at most max >= 1. */
typedef struct flows_wanted {
    bool frontier;
    nib_flow *out; /* [max] */
    size_t max, *n;
} flows_wanted;
/* nib_plan_workload and nib_plan_flows, for a core whose weights are not loaded. kv_type: the requested one.
 * bound may be NULL. */
nib_status planning_workload(const engine_core *e, int kv_type, const nib_workload *work,
                             const flows_wanted *wanted, nib_flow *bound, nib_error *err);

/* ---- memory.c, for planning_gather; f->q.need, the sizes and the workload are set ---- */
/* Lists the possible cache types, the engine's own first. */
nib_status planning_caches(planning *f, const engine_core *e, nib_error *err);
/* Reduces the rows of a pass if the cap does not hold more (then it does not hold the whole model either).
 * Called when all other held bytes are known. */
void planning_fewer_rows(planning *f, const engine_core *e);
/* The ledger's bytes now, and the bytes that the engine will promise before it opens the pager. */
nib_status planning_held(planning *f, const engine_core *e, nib_error *err);

/* ---- device.c ---- */
/* Divides a GPU's memory for the model in this layout; does nothing for other back ends. The rows, the bytes
 * in RAM and the rates must be final. A second call computes it again. */
nib_status planning_share(planning *f, const engine_core *e, const layout *lay, nib_error *err);
void planning_forget_share(planning *f); /* frees the division */

#endif
