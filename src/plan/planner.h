/* planner.h - makes a plan from facts: which pages are resident, the precision of each block, and the
 * predicted speed. A pure function: it reads no files, no clock and no machine. docs/budget.md has the cost
 * model with its formulas. */
#ifndef NIB_PLAN_PLANNER_H
#define NIB_PLAN_PLANNER_H

#include "plan/homes.h"
#include "plan/plan.h"
#include "profile/learned.h"
#include "weights/pager.h"

/* The share of the shorter time of a token, of reading and of computing, that does not overlap with the
 * longer one: the ring has 8 to 15 slots, and long runs of resident or of streamed pages exhaust it; the
 * reader needs a core too. Fitted to the runs of a sweep (docs/budget.md). */
#define PLAN_APART 0.5
/* Factor on the profile's reading time. The profile starts a new read when one completes. The pager reads
 * half of its ring at a time (pager_reader.c), while products read from memory. Fitted to runs of three
 * models under seven caps. */
#define PLAN_BY_HALVES 1.1

#define PLAN_ANY_LOSS   1e9
#define PLAN_SPEED_LOSS 1.0 /* nats: bound on the loss of --speed without --quality */
enum { PLAN_MAX_CHOICE = 13, PLAN_MAX_CACHE = 5 };

/* One option for the format of a block's matrices. */
typedef struct plan_choice {
    char format[PACK_NAME]; /* a recipe (numbers/recipe.h) */
    int bits;               /* 1..8; 0: floats */
    uint64_t bytes;         /* of its pages that products read */
    uint64_t chosen_bytes;  /* of `bytes`, those of experts, which a row reads if it has chosen them */
    uint64_t table_bytes;   /* of its pages that are only looked up by row */
    uint64_t second_bytes;  /* of both, the bytes of second slices, which come after first slices */
    uint64_t file_bytes;    /* bytes read from the model's files instead of `bytes`, without a packed file */
    uint64_t asym_bytes;    /* of `bytes`, in formats with minima */
    int more_op;            /* ops besides the block's n_op: products of second slices */
    double kl;              /* its loss in nats; negative: not measured, and so never chosen */
} plan_choice;

typedef struct plan_block_facts {
    char name[PLAN_NAME];
    bool is_layer;
    double importance;                    /* MCAP's score; negative: not measured */
    plan_choice choices[PLAN_MAX_CHOICE]; /* the file's own format first, without loss */
    int n_choice;
    double expert_share;              /* of its experts, those that a row uses */
    double kl_a8, kl_a4, kl_left_out; /* negative: not measured */
    double change;   /* relative change of the residual stream by the layer; negative: not measured */
    int place;       /* in the measured order of leaving layers out together, from 0; -1: not measured */
    double kl_fewer; /* joint loss without this layer and all before it in that order; meaningless if place is
                        -1 */
    int activation;  /* bits; 0: those of the question, or the planner decides */
    bool gone;       /* the layer is left out in any case */
    int only;        /* with only_fewest: its choice where it may be rounded */
    uint64_t macs;   /* of its matrices, for one row (those of a tied head belong to the embedding) */
    uint64_t cache_macs; /* the part of them for keys and values alone (op.fuse.feeds_cache) */
    int n_op;
} plan_block_facts;

/* One type of cache for the run's n_ctx positions. */
typedef struct plan_cache {
    plan_kv kv;
    char layers[PLAN_KV_LAYERS]; /* as plan.kv_layers */
    uint64_t bytes;              /* promised */
    uint64_t touched;            /* resident part of them with this workload */
    uint64_t position;           /* bytes of one position, of all layers */
    uint64_t on_disk;            /* of other bytes, on the disk (kv_formats.on_disk) */
    uint64_t position_on_disk;   /* those of one position */
} plan_cache;

typedef struct plan_question {
    const char *model, *content;
    const char
        *prompts; /* key of the prompts behind the costs and the formats with an imatrix; NULL: no costs */
    const plan_block_facts *blocks;
    int n_block;
    /* pages if every block has its first choice, in the image's order; NULL: unknown, then blocks are cut at
     * any multiple of 4096 */
    const pager_page *pages;
    int n_page;

    /* RAM */
    uint64_t held[NIB_N_OWNER];    /* promised, except for weights, the pager and the KV cache */
    uint64_t touched[NIB_N_OWNER]; /* the part of them that is resident at the peak of this workload */
    uint64_t more_rows;            /* promised in addition with streaming: for more rows of a prompt */
    uint64_t more_touched;         /* the resident part of them with this workload */
    uint64_t session;              /* tables of one session, beside its cache */
    uint64_t sampling;             /* promised for the sampler; the usual workload does not touch it */
    pager_need need;               /* for the first choice of each block */
    uint64_t spare;                /* left free under the cap */
    bool is_placed;                /* a given plan has placed the pages */
    bool placed_all;               /* with is_placed: all pages are in RAM */
    uint64_t placed;               /* with is_placed: bytes of the pages in RAM */
    const homes_question
        *device; /* the facts by which a GPU's memory is shared; NULL: the processor computes all */
    const homes_split *split; /* with device: the result */
    uint64_t opening;         /* peak of all bytes before the weights are loaded; 0: they are loaded */
    plan_cache caches[PLAN_MAX_CACHE]; /* the cache of the run first; the others are for alternatives only */
    int n_cache;

    /* work */
    uint64_t attention_macs; /* of one row for each position in the cache */
    plan_rates rates;
    const learned
        *learned; /* times of earlier runs, for predictions (expect.h), not for decisions; NULL: none */
    uint64_t device_packed,
        device_file; /* numbers of the disks that hold the packed file and the model's files; 0: unknown */
    int64_t n_ctx, n_batch, n_prompt, n_gen;
    int64_t n_batch_streamed;        /* rows of a pass with streaming; 0: n_batch */
    int64_t n_cell, n_cell_streamed; /* rows of a visit, likewise; 0: all of a pass */
    int n_sequence;        /* sequences that may decode together (the speed is that of one alone); 0: one */
    int n_best;            /* number of the largest logits that the head computes by its sketch; 0: all */
    uint64_t ahead_bytes;  /* weights of a head that predicts later tokens, which is not used, beside those
                              that it has in common with the model in memory; 0: none */
    uint64_t sketch_bytes; /* read for each token in addition to the blocks; included in `held` */
    int sketch_bits;
    double row_waits;  /* small reads that a token waits for, if its embedding is on disk */
    double best_waits; /* the same for rows of the head, if they are on disk */
    bool free_batch;   /* the rows of a pass were not requested, so the plan has none */

    /* the request */
    uint64_t cap[NIB_N_TIER];
    nib_cap_fn cap_of; /* NULL: errors name the engine's own caps */
    void *cap_user;
    char mode;          /* 'a', 'b', 'c' */
    bool stream;        /* weights may be streamed */
    bool residuals;     /* they are in RAM, which is why weights may not be streamed */
    bool packed;        /* pages may be streamed from a packed file, within the disk tier's cap */
    double max_loss;    /* nats; PLAN_ANY_LOSS: no bound */
    bool may_round;     /* other formats than the file's may be chosen */
    bool only_fewest;   /* blocks have the formats of plan_block_facts.only wherever they may be rounded */
    bool may_leave_out; /* in mode 'a': layers may be left out, if their joint cost was measured */
    double speed;   /* tokens a second: the plan with the least loss that is as fast; 0: the fastest plan */
    int activation; /* bits; 0: the planner decides */
    bool usual_activation; /* `activation` is a default; with --quality the planner may change it */
} plan_question;

/* The bound on the loss of --quality (lossless, high, balanced, small). False: an unknown name. */
bool plan_quality(const char *name, double *max_loss, bool *may_round);

/* Sets choice[n_block] to the choices with the fewest bytes whose measured losses, with those of the
 * requested activations or of 8 bits, add up to at most max_loss; *loss: those of the formats alone. All 0:
 * there are none. The only error is NIB_E_NOMEM. */
nib_status plan_fewest_bytes(const plan_question *q, double max_loss, int *choice, double *loss,
                             nib_error *err);

/* *out is set only on success. NIB_E_NOFIT: no plan keeps the caps, the loss or the speed; the message has
 * the smallest cap, or the best possible value. NIB_E_USAGE: the request needs a missing measurement. */
nib_status plan_make(const plan_question *q, plan *out, nib_error *err);
/* NIB_E_NOFIT, with the smallest cap, if the question's cap is below it. Decides nothing. */
nib_status plan_check_cap(const plan_question *q, nib_error *err);

/* ---- cost.c: the cost model, for the planner and for finished runs ---- */

/* A decision: for each block its choice (-1: left out), its activation, and the bytes of its resident
 * pages. */
typedef struct plan_decision {
    int *choice;     /* [n_block] */
    int *activation; /* [n_block] */
    uint64_t *kept;  /* [n_block]: resident bytes of plan_choice.bytes */
    bool streamed;   /* false: everything is resident, tables too */
    bool packed;
    const plan_cache *cache;
} plan_decision;

/* The loss by activations of so many bits in a block; not measured counts as 0. */
double plan_activation_loss(const plan_block_facts *f, int activation);
/* The loss that a plan states: `loss`, or negative if activations of a block with packed weights have fewer
 * than 16 bits and their loss is not measured. */
double plan_stated_loss(const plan_question *q, const plan_decision *d, double loss);
/* Seconds of a block's ops for one token, with its weights in RAM. */
double plan_block_seconds(const plan_question *q, int b, int choice, int activation);
/* ---- cost_device.c: where a GPU computes (q->split) ---- */
bool plan_is_on_gpu(const plan_question *q, int b); /* it computes the block's products of generated rows */
/* Of block b, which has `all` bytes: those that are resident on the GPU. */
uint64_t plan_bytes_on_gpu(const plan_question *q, int b, uint64_t all);
bool plan_is_resident_on_gpu(const plan_question *q, int b); /* and the block's weights are there */
/* Multiply-adds a second with many rows: of the products of a layer, and of attention. */
double plan_device_products(const plan_rates *r);
double plan_device_attention(const plan_rates *r);
/* What a GPU reaches with the rows of many answers and the prompts of others, a second. kv: a width of
 * plan_rates.attend. */
typedef struct plan_device_rows {
    double read, attend;      /* bytes of weights, and of keys and values, for rows of answers */
    double products, prompts; /* multiply-adds of answers' rows and of prompts' */
    double pass_rows;         /* rows for which a pass's prompts take time besides their own */
} plan_device_rows;
plan_device_rows plan_device_of_rows(const plan_rates *r, int kv);
/* Seconds of the embedding, or of a block that the GPU computes: for one token, and for the whole prompt. */
double plan_device_block_seconds(const plan_question *q, int b, int choice);
double plan_device_prompt_seconds(const plan_question *q, int b);
/* Fills speed, bytes, seconds and VRAM of a prediction. */
void plan_device_predict(const plan_question *q, const plan_decision *d, plan_prediction *out,
                         const char **binds);

/* ---- cost.c ---- */
/* seconds[n_block] gets the seconds of computing of each block, for all passes of the prompt. Returns how
 * often these passes read a streamed page, on average; 0: nothing is streamed. */
double plan_prompt_seconds(const plan_question *q, const plan_decision *d, double *seconds);
/* Seconds of a token besides the blocks' ops: attention over the cache, looked-up rows. */
double plan_fixed_seconds(const plan_question *q, const plan_cache *cache, bool streamed);
/* Seconds of the disk for each byte that is streamed. */
double plan_disk_seconds(const plan_question *q, bool packed);
/* Seconds that packing a byte that is streamed takes from the computing threads. */
double plan_stolen_seconds(const plan_rates *r, bool packed);
/* Bytes of RAM that are promised besides resident pages, for weights of `bytes` in all. */
uint64_t plan_ram_beside(const plan_question *q, const plan_cache *cache, bool streamed, bool packed,
                         uint64_t bytes);
/* The work of one token in the middle of the generation, and its seconds, including the part of reading and
 * computing that does not overlap. */
void plan_work_of(const plan_question *q, const plan_decision *d, learned_work *out);
double plan_work_seconds(const plan_rates *r, const learned_work *w, bool packed);
/* The prediction that decisions use: earlier runs are ignored (expect.h). */
void plan_predict(const plan_question *q, const plan_decision *d, plan_prediction *out, const char **binds);
/* Seconds of the whole workload: the prompt and all tokens after it. */
double plan_run_seconds(const plan_question *q, const plan_prediction *p);

/* ---- decide.c: the decision alone ---- */

typedef struct plan_outcome {
    bool found;
    plan_prediction predicted;
    const char *binds;
    double bound;          /* upper bound on the tokens a second of any decision */
    bool proved;           /* the decision is the best */
    double min_loss;       /* if not found, in modes b and c: the loss without one layer; negative: unknown */
    uint64_t min_ram;      /* the smallest cap with which there is a decision */
    uint64_t streamed_ram; /* the smallest cap with streaming, also if that is not allowed */
    uint64_t whole_ram;    /* the smallest cap with everything resident, in the file's own formats */
} plan_outcome;

/* ---- layer_order.c: layers that are left out ---- */
/* order[n_layer]: blocks of the layers, the first to go first. Returns n_layer. */
int plan_layer_order(const plan_question *q, int *order);
double plan_loss_without(const plan_question *q, const int *order,
                         int n);              /* its first n; negative: unknown */
bool plan_has_sweep(const plan_question *q);  /* leaving layers out together was measured */
bool plan_has_scores(const plan_question *q); /* MCAP's score of every layer is known */

/* ---- caps.c: the caps that would do, whatever the question's caps are ---- */
/* Fills only the caps of an outcome. */
void plan_needs(const plan_question *q, plan_outcome *out);

/* ---- decide.c ---- */
/* Makes the decision. d's arrays are the caller's, [n_block] each. */
nib_status plan_decide(const plan_question *q, plan_decision *d, plan_outcome *out, nib_error *err);

/* ---- write_down.c ---- */

/* Fills a zeroed plan from a decision, all but alternatives and notes; plan_clear after an error too. */
nib_status plan_write_down(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out,
                           nib_error *err);
void plan_write_notes(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out);

#endif
