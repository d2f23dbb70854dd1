/* settings.h - the resolved options of an engine: from the request (nib_engine_options, which is never
 * written to), from a plan, and, for unset options, from the rules of sizes.c and head.c. */
#ifndef NIB_ENGINE_SETTINGS_H
#define NIB_ENGINE_SETTINGS_H

#include "base/log.h"
#include "plan/plan.h"
#include "plan/residency.h"
#include "quant/types.h"

typedef struct settings {
    uint64_t cap[NIB_N_TIER]; /* the smaller of the options' and the plan's; NIB_AUTO: none */
    bool stream;              /* weights may be read while running */
    int packed;               /* a nib_packed */
    int n_thread;
    int32_t n_session;
    int32_t n_sequence; /* n_session or more */
    int64_t n_ctx;      /* until is_resolved: what was asked for, 0 or NIB_CTX_WHOLE for a rule */
    int64_t n_batch;    /* rows of a pass */
    bool free_batch;    /* nobody said how many those are */
    int kv;             /* a nib_kv_type; 0: a rule says it */
    type_id kv_type;    /* when is_resolved */
    int activation;     /* bits; 0: 8, or what a plan says for each block */
    bool is_resolved;   /* sizes are as they stay */
    int32_t n_best;     /* logits that the output head gives, in two steps; 0: it gives all */
    int64_t k_chunk;    /* the most channels of each 1,024 that residuals give back; 0: there are none */
    plan_residual residuals[PLAN_MAX_RESIDUAL]; /* a plan's */
    int n_residual;                             /* 0: no plan says any */
    uint8_t *act_bits;     /* [n_block] of the activations; NULL until plan and layout are known */
    residency_block *kept; /* [n_block], on which tiers a plan has each block's matrices; NULL: no plan */
} settings;

/* NIB_E_USAGE: an option is not what it can be. */
nib_status settings_make(settings *s, const nib_engine_options *asked, nib_error *err);
/* Sizes and caps of a plan. Its context and batch are what its bytes were counted with, so they hold, and a
 * longer context is refused; a cap is the smaller of both; threads, the cache's format and activations that
 * were asked for stay. */
nib_status settings_take_plan(settings *s, const plan *p, const logger *log, nib_error *err);
void settings_clear(settings *s); /* zeroed is fine */

/* A nib_kv_type as a number format; false: there is none, or 0. */
bool settings_kv_type(int kv, type_id *out);

#endif
