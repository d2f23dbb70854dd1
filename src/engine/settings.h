/* settings.h - the resolved options of an engine: from the request (nib_engine_options, which is never
 * written to), from a plan, and, for unset options, from the rules of sizes.c and head.c. */
#ifndef NIB_ENGINE_SETTINGS_H
#define NIB_ENGINE_SETTINGS_H

#include "base/log.h"
#include "plan/plan.h"
#include "state/kv_formats.h"

#define KV_AUTO_LOSS 0.003 /* nats a token that NIB_KV_AUTO may lose on other text than the calibration's */

typedef struct settings {
    uint64_t cap[NIB_N_TIER]; /* the smaller of the options' and the plan's; NIB_AUTO: none */
    bool stream;              /* weights may be read while running */
    int packed;               /* a nib_packed */
    int n_thread;
    int32_t n_session;
    int32_t n_sequence;    /* n_session or more */
    int64_t n_ctx;         /* until is_resolved: the requested value, 0 or NIB_CTX_WHOLE for a default */
    int64_t n_batch;       /* rows of a pass */
    bool free_batch;       /* n_batch was not requested */
    int kv;                /* a nib_kv_type or NIB_KV_AUTO; 0: a rule decides */
    const char *kv_layers; /* formats of some layers (kv_formats_parse); NULL or "": none. engine_internal's
                              or the plan's, until is_resolved */
    kv_formats formats;    /* of keys and values, when is_resolved */
    double max_kv_loss;    /* nats that NIB_KV_AUTO may lose */
    bool kv_auto_said;     /* that NIB_KV_AUTO has no effect */
    uint8_t *kv_types;     /* the list of `formats`; NULL: all layers have one */
    int activation;        /* bits; 0: 8, or the plan's bits of each block */
    bool is_resolved;      /* sizes are final */
    int n_attended;        /* a plan's (plan_device) */
    int32_t n_best;        /* logits of the shortlist; 0: all logits, no shortlist */
    int64_t n_draft;       /* proposed tokens of a sequence with memory for their logits */
    int64_t k_chunk;       /* maximum channels of each 1,024 with residuals; 0: no residuals */
    plan_residual residuals[PLAN_MAX_RESIDUAL]; /* from a plan */
    int n_residual;                             /* 0: no plan has any */
    bool residuals_on_disk;                     /* their codes are read while the model runs */
    bool residuals_in_ram;                      /* so weights may not be streamed because of them (idle.h) */
    uint8_t *act_bits; /* [n_block] of the activations; NULL until plan and layout are known */
} settings;

/* Copies and checks the requested options. NIB_E_USAGE: an invalid option. */
nib_status settings_make(settings *s, const nib_engine_options *requested, nib_error *err);
/* Takes sizes and caps from a plan. Its bytes were computed with its context and batch, so these apply, and a
 * longer context is refused. Of two caps the smaller applies. Requested threads, cache type and activations
 * stay. NIB_E_USAGE: the plan has residuals, and the request does not name where they come from. */
nib_status settings_take_plan(settings *s, const plan *p, const nib_engine_options *requested,
                              const logger *log, nib_error *err);
void settings_clear(settings *s); /* zeroed is fine */

/* Converts a nib_kv_type to a number format; false: 0, or an unknown type. */
bool settings_kv_type(int kv, type_id *out);

#endif
