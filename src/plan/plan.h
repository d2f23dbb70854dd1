/* plan.h - the decisions that a run follows: for each block its precision and the tiers of its bytes; for the
 * run its KV cache, its schedule and its predicted speed. Made by the pure function of planner.h or by hand,
 * and stored as a small JSON that a person can read, compare and edit.
 * Other modules carry it out: model/ makes the layout with its formats, tiers and devices (layout_make),
 * weights/ keeps and streams the layout's pages, exec/ multiplies with its activations. A value that the plan
 * lacks is decided as without a plan. */
#ifndef NIB_PLAN_PLAN_H
#define NIB_PLAN_PLAN_H

#include "base/status.h"
#include "numbers/pack.h"

enum {
    PLAN_KV_LAYERS = 1024, /* the longest list of formats by layer, with its NUL */
    PLAN_NAME = 64,        /* the longest name of a model, a block or a limit, with its NUL */
    PLAN_MAX_SLICE = 4,    /* slices of one block: formats times tiers */
    PLAN_NOTE = 256,       /* the longest remark, with its NUL */
    PLAN_MAX_NOTE = 10,
    PLAN_MAX_ALTERNATIVE = 12,
    PLAN_MAX_RESIDUAL = 8 /* kinds of products */
};

enum { PLAN_LEFT_OUT = NIB_N_TIER }; /* a second slice that is not used */

/* Some of a block's bytes in one format on one tier. Slices of one format on several tiers are the same
 * matrices, cut by pages: those in RAM come first in the pager's order. A block whose matrices are stacks has
 * slices of two formats, the second with a + before its name ("u4g64", "+u4g64"). First slices come before
 * second ones in the pager's order, so second slices are in RAM only if all first ones are. */
typedef struct plan_slice {
    char format[PACK_NAME]; /* "file": the file's own format, packed; else a uniform format of recipe.h
                               ("u4g64", "u4g64w"), to which the block's matrices are rounded while they are
                               loaded */
    int tier; /* PLAN_LEFT_OUT, or NIB_TIER_RAM: resident; NIB_TIER_DISK: streamed; NIB_TIER_VRAM: on the GPU,
                 then the whole block. If the GPU computes the block, its bytes in RAM or on disk come over
                 the link for each pass */
    uint64_t bytes; /* packed */
} plan_slice;

typedef struct plan_block {
    char name[PLAN_NAME]; /* "embed", "layer.0", ..., "head" */
    bool left_out;        /* modes b and c: the residual stream skips this layer; it has no slices */
    int activation;       /* bits of the activations that its matrices are multiplied with: 4, 8 or 16 */
    bool on_gpu; /* the GPU computes it; false: the processor. If any block has it, the plan is for a GPU */
    bool apart;  /* with on_gpu: for generated rows the processor computes the block's experts that are not in
                    VRAM, and only prompts bring these to the GPU. All else of the block is in VRAM */
    double importance; /* MCAP's score in 0...1; negative: not measured. For people: nothing depends on it */
    plan_slice slices[PLAN_MAX_SLICE];
    int n_slice; /* one format for all of them, or a stack's two */
} plan_block;

/* The recipe (numbers/recipe.h) of the block's slices, except those that are left out; "file" without slices.
 * False: they form no recipe. */
bool plan_block_recipe(const plan_block *b, char out[PACK_NAME]);
/* The kinds of slices that the block has, each once, for messages: "u4g64, +u4g64". */
void plan_block_formats(const plan_block *b, char *out, size_t size);
/* Sum of the bytes of first or of second slices on a tier (-1: on all); false: overflow. */
bool plan_block_bytes(const plan_block *b, bool second, int tier, uint64_t *bytes);

/* Whether a GPU computes any block of the plan. */
struct plan;
bool plan_is_of_gpu(const struct plan *p);

typedef enum plan_kv {
    PLAN_KV_AUTO,
    PLAN_KV_F32,
    PLAN_KV_F16,
    PLAN_KV_8,
    PLAN_KV_4,
    PLAN_KV_8H,
    PLAN_KV_4H,
    PLAN_KV_4S
} plan_kv;

/* The predicted run. Bytes are those of one generated token in the middle of the generation. */
typedef struct plan_prediction {
    double ttft_s, tok_s;            /* time to the first token of a prompt of n_prompt tokens; generation */
    uint64_t ram_bytes, disk_bytes;  /* moved for one token; of the disk, those of weights */
    uint64_t kv_disk_bytes;          /* and those of keys and values */
    uint64_t vram_bytes, link_bytes; /* of a GPU: read there, and sent to it */
    uint64_t ram_peak;               /* of the process */
    double quality; /* mean KL divergence at the logits from the file's own weights, in nats; negative:
                       not measured */
    double disk_s, ram_s,
        compute_s;        /* time of one token by each of these limits alone; compute_s: the processor */
    double gpu_s, link_s; /* of a GPU: its launches with the bytes that they read; the link */
    uint64_t vram_peak;   /* of the device, the driver's included */
    uint64_t owner[NIB_N_OWNER]; /* ram_peak by owner; all 0: not known */
    uint64_t disk_peak;          /* of the files that nibble writes: the packed file, keys and values */
    bool guessed;                /* the machine was not measured */
    int n_run;                   /* earlier runs that corrected tok_s and ttft_s; 0: the formula's */
} plan_prediction;

/* Another answer to the same question. */
typedef struct plan_alternative {
    char what[PLAN_NAME]; /* "all 6 bits", "kv f32", ... */
    bool fits;
    double tok_s, quality; /* quality as above */
    uint64_t ram_peak;
} plan_alternative;

/* How a GPU's memory is shared, for people: the places of the blocks are in `blocks`. */
typedef struct plan_device {
    bool absent;                  /* there was no GPU: driver and activations are guesses */
    uint64_t driver, weights, kv; /* bytes of VRAM; weights: with the slots for streamed blocks */
    uint64_t activations;
    uint64_t kv_in_ram; /* bytes of keys and values in host memory */
    int n_attended;     /* layers of which the processor attends to these for generated rows, for the GPU */
    int n_resident, n_streamed, n_in_place; /* blocks but the embedding */
    int n_in_part;                          /* streamed blocks of which a part is resident */
    int n_apart, n_experts;                 /* streamed blocks of plan_block.apart; experts of each in VRAM */
    int64_t in_place_sequences; /* maximum number of sequences that decode together with layers in place */
    bool many_sequences;        /* generated rows have the kernels for many sequences */
    uint64_t whole;             /* bytes of VRAM with which all blocks are resident */
} plan_device;

/* The residual channels of the products of one input, in all layers (plan/tune.h). */
typedef struct plan_residual {
    char products[PLAN_NAME]; /* "q+k+v", "o", "gate+up", "down" */
    int64_t k_chunk;          /* channels of each 1,024; 0: none */
    int n_tb;                 /* blocks of a GPU that fetch them; 0: the back end decides */
} plan_residual;

typedef struct plan {
    char model[PLAN_NAME]; /* its name, for people */
    char content[40];      /* the model's content key; "": not checked */
    char prompts[40]; /* key of the calibration prompts for formats with an imatrix (profile/imatrix.h); "":
                         the latest */
    uint64_t cap[NIB_N_TIER]; /* NIB_AUTO: none */
    char mode;                /* 'a': paged, all layers; 'b': layers left out; 'c': left out, and rounded */
    plan_block *blocks;       /* [n_block], the model's order */
    int n_block;
    plan_kv kv;
    double kv_on_disk;              /* the share of their bytes that is on the disk */
    char kv_layers[PLAN_KV_LAYERS]; /* the formats of some or all layers, as in "0-3=f16,4-29=kv4"; "": all
                                       have `kv` */
    int64_t n_ctx, n_batch, n_prompt, n_gen; /* 0: not in the plan */
    int n_thread;                            /* 0: not in the plan */
    int n_best;         /* number of the largest logits that the output head computes; 0: all */
    bool packed;        /* pages are streamed from a packed file */
    bool without_costs; /* lower formats were allowed, but their costs are not measured; not in the JSON */
    plan_residual residuals[PLAN_MAX_RESIDUAL];
    int n_residual;     /* 0: not in the plan */
    double slowdown;    /* measured with these residuals; for people */
    plan_device device; /* valid with plan_is_of_gpu */
    plan_prediction predicted;
    char binds[PLAN_NAME];          /* the bottleneck: "disk read", "memory read", "compute", ... */
    double one_more_gb[NIB_N_TIER]; /* tokens a second gained by one more GB of that tier */
    /* for people; nothing depends on them */
    plan_alternative alternatives[PLAN_MAX_ALTERNATIVE];
    int n_alternative;
    char notes[PLAN_MAX_NOTE][PLAN_NOTE]; /* guesses and missing measurements */
    int n_note;
} plan;

void plan_clear(plan *p); /* zeroed is fine */
/* The name of a cache type in a plan ("auto", "f16", "kv8", ...), and back; false: unknown. */
const char *plan_kv_name(plan_kv kv);
bool plan_kv_from_name(const char *name, plan_kv *out);

/* The source of a prediction's speed: "runs", "profile" or "guess". */
const char *plan_prediction_source(const plan_prediction *p);

/* Converts the JSON of plan --json to a plan and back; docs/budget.md lists its keys. plan_parse checks every
 * key, name, format, number and sum, and names the place of a mistake (NIB_E_MODEL). Unknown keys are
 * refused, so that a misspelt edit is noticed. Required are "model" and "blocks", and in a block its name,
 * its slices and its activation; a missing or null value is as in a plan that does not have it. *out is set
 * only on success; the caller clears it. */
nib_status plan_parse(const char *text, size_t n_byte, plan *out, nib_error *err);
/* NIB_E_FAILED: a number cannot be written in JSON. */
nib_status plan_print(const plan *p, char **text, nib_error *err); /* caller frees with mem_free */

#endif
