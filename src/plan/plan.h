/* plan.h - what a run follows: for each block its precision and where its bytes live, for the run its cache,
 * its schedule and what is expected of it. Made by planner.h's pure function or by hand; kept as a small JSON
 * that a person can read, compare and edit.
 *
 * A plan decides, it does not know how: tiers/ keeps and streams what it says (residency_follow), model/
 * makes the layout that has the formats it names (layout_make), exec/ multiplies with the activations it
 * names. Whatever it does not say is decided as without a plan. */
#ifndef NIB_PLAN_PLAN_H
#define NIB_PLAN_PLAN_H

#include "base/status.h"
#include "quant/pack.h"

enum {
    PLAN_NAME = 64,     /* the longest name of a model, a block or a limit, with its NUL */
    PLAN_MAX_SLICE = 4, /* of one block: formats times tiers */
    PLAN_NOTE = 256,    /* the longest remark, with its NUL */
    PLAN_MAX_NOTE = 9,
    PLAN_MAX_ALTERNATIVE = 12,
    PLAN_MAX_RESIDUAL = 8 /* kinds of products */
};

enum { PLAN_LEFT_OUT = NIB_N_TIER }; /* of a second slice: it is not there */

/* Some of a block's bytes in one format on one tier. The tiers of all slices of one format are one matrix set
 * cut in two: the pages in RAM come first in the pager's order. A block whose matrices are stacks has slices
 * of two formats, the second with a + in front ("u4g64", "+u4g64"); first slices come before second ones in
 * the pager's order, so that second ones are in RAM only where all first ones are. */
typedef struct plan_slice {
    char format[PACK_NAME]; /* "file": exactly what the file has, packed; else what recipe.h
                               calls a uniform format ("u4g64", "u4g64w") that the block's matrices are
                               rounded to when they are loaded */
    int tier; /* PLAN_LEFT_OUT, or NIB_TIER_RAM: resident; NIB_TIER_DISK: streamed; NIB_TIER_VRAM: on the
                 GPU, all of the block's. Of a block that the GPU computes, what is in RAM or on disk comes
                 over the link for each pass */
    uint64_t bytes; /* packed */
} plan_slice;

typedef struct plan_block {
    char name[PLAN_NAME]; /* "embed", "layer.0", ..., "head" */
    bool left_out;        /* modes B and C: the residual stream passes by this layer; it has no slices */
    int activation;       /* bits of what its matrices are multiplied with: 4, 8 or 16 */
    bool on_gpu;          /* computed there; false: by the processor. With any, the plan is a GPU's */
    double importance; /* MCAP's score in 0...1; negative: not measured. For people: nothing depends on it */
    plan_slice slices[PLAN_MAX_SLICE];
    int n_slice; /* one format for all of them, or a stack's two */
} plan_block;

/* The recipe (quant/recipe.h) that the slices are together, without what is left out: "file" without any.
 * False: there is none. */
bool plan_block_recipe(const plan_block *b, char out[PACK_NAME]);
/* The kinds of slices that the block has, each once, for messages: "u4g64, +u4g64". */
void plan_block_formats(const plan_block *b, char *out, size_t size);
/* Summed bytes of first or of second slices on a tier (-1: on all); false: they overflow. */
bool plan_block_bytes(const plan_block *b, bool second, int tier, uint64_t *bytes);

/* Whether a GPU computes any of its blocks. */
struct plan;
bool plan_is_of_gpu(const struct plan *p);

typedef enum plan_kv { PLAN_KV_AUTO, PLAN_KV_F32, PLAN_KV_F16, PLAN_KV_8, PLAN_KV_4 } plan_kv;

/* What is expected of the run. Bytes are of one generated token with a cache of `at` positions. */
typedef struct plan_prediction {
    double ttft_s, tok_s;            /* time to the first token of a prompt of n_prompt tokens; generation */
    uint64_t ram_bytes, disk_bytes;  /* moved for one token */
    uint64_t vram_bytes, link_bytes; /* of a GPU: read there, and sent to it */
    uint64_t ram_peak;               /* of the process */
    double quality; /* mean KL divergence at the logits against the file's own weights, in nats;
                       negative: not known */
    double disk_s, ram_s, compute_s; /* what each alone would take for one token; compute_s: the processor */
    double gpu_s, link_s;            /* of a GPU: its launches and what they read; the link */
    uint64_t vram_peak;              /* of the device, the driver's included */
    uint64_t owner[NIB_N_OWNER];     /* ram_peak by owner; all 0: not known */
    uint64_t disk_peak;              /* of what nibble itself writes (the packed file) */
    bool guessed;                    /* the machine was not measured */
    int n_run;                       /* earlier runs that corrected tok_s and ttft_s; 0: the formula's */
} plan_prediction;

/* Another answer to the same question. */
typedef struct plan_alternative {
    char what[PLAN_NAME]; /* "all 6 bits", "kv f32", ... */
    bool fits;
    double tok_s, quality; /* quality as above */
    uint64_t ram_peak;
} plan_alternative;

/* How a GPU's memory is shared; nothing depends on it, which blocks are where is said by the blocks. */
typedef struct plan_device {
    bool absent;                  /* there was none: driver and activations are guesses */
    uint64_t driver, weights, kv; /* bytes of VRAM; weights: with the slots for those that come */
    uint64_t activations;
    uint64_t kv_in_ram; /* bytes of keys and values of layers that the processor computes */
    int n_resident, n_streamed, n_in_place; /* blocks but the embedding */
    int64_t in_place_sequences;             /* sequences that may decode together for layers to be in place */
    bool many_sequences;                    /* generated rows have the kernels for many sequences */
    uint64_t whole;                         /* bytes of VRAM with which all blocks stay */
} plan_device;

/* What the products of one input get back of what rounding took, in all layers (plan/tune.h). */
typedef struct plan_residual {
    char products[PLAN_NAME]; /* "q+k+v", "o", "gate+up", "down" */
    int64_t k_chunk;          /* channels of each 1,024; 0: none */
    int n_tb;                 /* blocks of a GPU that fetch them; 0: the back end decides */
} plan_residual;

typedef struct plan {
    char model[PLAN_NAME];    /* its name, for people */
    char content[40];         /* the model's content key; "": not checked */
    char prompts[40];         /* key of the calibration prompts that formats ending in w are rounded by
                                 (channel_stats.h);
                                 "": the latest */
    uint64_t cap[NIB_N_TIER]; /* NIB_AUTO: none */
    char mode;                /* 'a': paged, all layers; 'b': layers left out; 'c': left out, and rounded */
    plan_block *blocks;       /* [n_block], the model's order */
    int n_block;
    plan_kv kv;
    int64_t n_ctx, n_batch, n_prompt, n_gen; /* 0: not said */
    int n_thread;                            /* 0: not said */
    int n_best;                              /* of the logits, that the output head gives; 0: all */
    bool packed;                             /* what is streamed comes from a packed file */
    plan_residual residuals[PLAN_MAX_RESIDUAL];
    int n_residual;     /* 0: not said */
    double slowdown;    /* that was measured with them; for people */
    plan_device device; /* where plan_is_of_gpu */
    plan_prediction predicted;
    char binds[PLAN_NAME];          /* the limit that binds: "disk read", "memory read", "compute", ... */
    double one_more_gb[NIB_N_TIER]; /* tok/s gained by one more GB of that tier */
    /* for people; nothing depends on them */
    plan_alternative alternatives[PLAN_MAX_ALTERNATIVE];
    int n_alternative;
    char notes[PLAN_MAX_NOTE][PLAN_NOTE]; /* what was guessed, what was not known */
    int n_note;
} plan;

void plan_clear(plan *p); /* zeroed is fine */
/* The name of a type of cache as it stands in a plan ("auto", "f16", "kv8", ...), and back; false: none. */
const char *plan_kv_name(plan_kv kv);
bool plan_kv_from_name(const char *name, plan_kv *out);

/* Where a prediction's speed is from: "runs", "profile" or "guess". */
const char *plan_prediction_source(const plan_prediction *p);

/* The JSON of plan --json to a plan and back; docs/budget.md lists its keys. plan_parse checks
 * every key, name, format, number and sum, and says where a mistake is (NIB_E_MODEL); unknown keys are
 * refused, so that a hand edit that is misspelt is noticed. Only "model" and "blocks" have to be there, and
 * of a block its name, its slices and its activation; what is missing or null counts as not said. *out is set
 * only on success, and is to be cleared. */
nib_status plan_parse(const char *text, size_t n_byte, plan *out, nib_error *err);
nib_status plan_load(const char *path, plan *out, nib_error *err); /* the same from a file */
/* NIB_E_FAILED for a plan that plan_parse would refuse for a number that JSON cannot hold. */
nib_status plan_print(const plan *p, char **text, nib_error *err); /* caller frees with mem_free */

#endif
