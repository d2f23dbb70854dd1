/* planner.h - from facts to a plan: what is kept in RAM, at which precision each block is computed, and how
 * fast that will be. A pure function of what it is given: no files, no clock, no machine. docs/budget.md has
 * the cost model with its formulas. */
#ifndef NIB_PLAN_PLANNER_H
#define NIB_PLAN_PLANNER_H

#include "plan/offload.h"
#include "plan/plan.h"
#include "plan/residency.h"
#include "profile/learned.h"
#include "tiers/pager.h"

#define PLAN_ANY_LOSS   1e9
#define PLAN_SPEED_LOSS 1.0 /* nats that --speed may cost where no --quality says less */
enum { PLAN_BITS = 9, PLAN_MAX_CHOICE = 13, PLAN_MAX_CACHE = 4, PLAN_DISK = 8 };

/* What the machine moves and computes with the plan's threads. All are above 0. */
typedef struct plan_rates {
    int n_thread, n_core;
    bool guessed;     /* nothing was measured on this machine */
    double ram_read;  /* bytes a second */
    double disk_read; /* bytes a second, as the pager reads a packed file: whole pages */
    double disk_file; /* the same from the model's files: parts of pages */
    struct {
        double size, rate;
    } disk[PLAN_DISK]; /* what the two above come from: bytes a second with reads of that size, by size */
    int n_disk;        /* 0: only the two are known */
    double
        disk_turn; /* seconds that the reader's thread takes for each read, while that read's place is idle */
    double disk_wait;            /* seconds of one small read that nothing overlaps */
    double link;                 /* bytes a second from RAM to a GPU */
    double vram_read;            /* bytes a second of the GPU's memory */
    double vram_macs;            /* multiply-adds a second of a GPU, with many rows */
    double vram_launch;          /* seconds of a launch besides its bytes */
    bool vram_guessed;           /* none of these four was measured */
    double pack;                 /* bytes a second that one thread packs from the files' order */
    double one_row[PLAN_BITS];   /* by bits of the weights; [0]: floats. Bytes of weights a second in products
                                    with one row */
    double many_rows[PLAN_BITS]; /* multiply-adds a second in products with many rows */
    double two_slices; /* how much longer a product takes with 16-bit activations than with 8-bit ones */
    double asym; /* how much longer one takes with weights that have minima beside their scales; below 1: 1 */
    double op_s; /* seconds of an op besides its work: the barrier */
} plan_rates;

/* One way to have a block's matrices. */
typedef struct plan_choice {
    char format[PACK_NAME]; /* a recipe (quant/recipe.h) */
    int bits;               /* 1..8; 0: floats */
    uint64_t bytes;         /* of its pages that products read */
    uint64_t table_bytes;   /* of its pages that are only looked up by row */
    uint64_t second_bytes;  /* of both, of second slices, which stand behind the first ones */
    uint64_t file_bytes;    /* that are read instead of `bytes` when there is no packed file */
    uint64_t asym_bytes;    /* of `bytes`, in formats with minima */
    int more_op;            /* ops besides the block's n_op: products of second slices */
    double kl;              /* what it costs, in nats; negative: not measured, so it is not chosen */
} plan_choice;

typedef struct plan_block_facts {
    char name[PLAN_NAME];
    bool is_layer;
    double importance;                    /* MCAP's score; negative: not measured */
    plan_choice choices[PLAN_MAX_CHOICE]; /* the file's own first: it costs nothing */
    int n_choice;
    double kl_a8, kl_left_out; /* negative: not measured */
    double
        change; /* how much the layer changes the residual stream, relative to it; negative: not measured */
    int place;  /* in the order in which layers were left out together, from 0; -1: not measured */
    double kl_fewer; /* what it cost without this layer and all before it in that order; place -1: nothing */
    int activation;  /* bits; 0: the question's, or the planner decides */
    bool gone;       /* this layer is left out, whatever the mode */
    uint64_t macs;   /* of its matrices for one row (a tied head's belong to the embedding) */
    uint64_t cache_macs; /* of them, what keys and values alone take (op.fuse.feeds_cache) */
    int n_op;
} plan_block_facts;

/* One type of cache for the run's n_ctx positions. */
typedef struct plan_cache {
    plan_kv kv;
    uint64_t bytes;    /* promised */
    uint64_t touched;  /* of them, by the workload */
    uint64_t position; /* bytes of one position */
} plan_cache;

typedef struct plan_question {
    const char *model, *content;
    const char *prompts; /* that costs, and formats ending in w, come from; NULL: no costs */
    const plan_block_facts *blocks;
    int n_block;
    /* pages when every block has its first choice, in the image's order; NULL: not known, blocks are cut at
       any multiple of 4096 */
    const pager_page *pages;
    int n_page;

    /* RAM */
    uint64_t held[NIB_N_OWNER];    /* promised beside weights, the pager's own and the cache */
    uint64_t touched[NIB_N_OWNER]; /* of them, expected to be resident at the peak of this workload */
    uint64_t more_rows;          /* promised besides where weights are streamed: for more rows of a prompt */
    uint64_t more_touched;       /* of them, by this workload */
    uint64_t session;            /* tables of one session, beside its cache */
    pager_need need;             /* for the first choice of each block */
    uint64_t spare;              /* left free under the cap */
    const residency_block *kept; /* [n_block], by a plan that was given; NULL: none was */
    const offload_question
        *device;                /* what a GPU's memory is shared among; NULL: the processor computes all */
    const offload_split *split; /* with device: how */
    uint64_t opening;           /* all that is there for a moment before weights are, 0 when that is over */
    plan_cache caches[PLAN_MAX_CACHE]; /* the one to take first; the others are alternatives only */
    int n_cache;

    /* work */
    uint64_t attention_macs; /* of one row for each position in the cache */
    plan_rates rates;
    const learned
        *learned; /* what runs took, for what is expected (expect.h), not for decisions; NULL: nothing */
    uint64_t device_packed,
        device_file; /* numbers of the disks of the packed file and of the model's; 0: unknown */
    int64_t n_ctx, n_batch, n_prompt, n_gen;
    int64_t n_batch_streamed;        /* rows of a pass where weights are streamed; 0: as many as n_batch */
    int64_t n_cell, n_cell_streamed; /* rows of a visit, likewise; 0: all of a pass */
    visit_next_fn order;             /* of a prompt's passes; NULL: visits_by_block */
    int n_sequence;                  /* that may decode together; the speed is of one alone; 0: one */
    int n_best;                      /* of the logits, that the output head gives by its sketch; 0: all */
    uint64_t sketch_bytes;           /* read for each token beside the blocks' weights; held has them */
    int sketch_bits;
    double row_waits;  /* how often a token waits for its own row, where that is on disk */
    double best_waits; /* and for rows of the head, where they are */
    bool free_batch;   /* nobody said how many: the plan does not either */

    /* what is asked */
    uint64_t cap[NIB_N_TIER];
    char mode;          /* 'a', 'b', 'c' */
    bool stream;        /* weights may be streamed */
    bool packed;        /* what is streamed may come from a packed file, within the disk tier's cap */
    double max_loss;    /* nats; PLAN_ANY_LOSS: no bound */
    bool may_round;     /* formats besides the file's may be chosen */
    bool may_leave_out; /* in mode 'a': layers too, where it was measured what they cost together */
    double speed;       /* tokens a second: what loses least of the plans that are as fast; 0: the fastest */
    int activation;     /* bits; 0: the planner decides */
    bool usual_activation; /* nobody asked for it: with a request for quality the planner would decide */
} plan_question;

/* --quality: lossless, high, balanced, small -> the most that may be lost. False: no such name. */
bool plan_quality(const char *name, double *max_loss, bool *may_round);

/* *out is set only on success. NIB_E_NOFIT: no plan fits the caps, the loss or the speed; the message has the
 * smallest cap that works, or what can be had. NIB_E_USAGE: what is asked needs a measurement that is not
 * there. */
nib_status plan_make(const plan_question *q, plan *out, nib_error *err);
/* Without a decision: NIB_E_NOFIT with the smallest cap, where the question's is below it. */
nib_status plan_check_cap(const plan_question *q, nib_error *err);

/* ---- cost.c: the cost model, for the planner and for what a run was ---- */

/* A decision: for each block its choice (-1: left out), its activation, and bytes of its pages that stay. */
typedef struct plan_decision {
    int *choice;     /* [n_block] */
    int *activation; /* [n_block] */
    uint64_t *kept;  /* [n_block], of `bytes` */
    bool streamed;   /* false: everything is resident, tables too */
    bool packed;
    const plan_cache *cache;
} plan_decision;

/* Seconds of one token's products and other ops of a block, its weights being in RAM. */
double plan_block_seconds(const plan_question *q, int b, int choice, int activation);
/* Of the prompt's products with a block, in all its rows. */
double plan_block_prompt_seconds(const plan_question *q, int b, int choice, int activation);
/* ---- cost_device.c: where a GPU computes (q->split) ---- */
bool plan_is_on_gpu(const plan_question *q, int b);          /* its products, of generated rows */
bool plan_is_resident_on_gpu(const plan_question *q, int b); /* and its weights */
/* As plan_block_seconds and plan_block_prompt_seconds, of a block that the GPU computes, and of the
 * embedding.
 */
double plan_device_block_seconds(const plan_question *q, int b, int choice);
double plan_device_prompt_seconds(const plan_question *q, int b);
/* Speed, bytes and seconds of a prediction, and the VRAM that it takes. */
void plan_device_predict(const plan_question *q, const plan_decision *d, plan_prediction *out,
                         const char **binds);

/* ---- cost.c ---- */
/* Seconds of what every token takes besides: attention over the cache, rows looked up. */
double plan_fixed_seconds(const plan_question *q, const plan_cache *cache, bool streamed);
/* The tiers that weights can be on, the fastest first, with the cost of a byte on each: RAM with `capacity`
 * bytes, and the disk where weights may be streamed. Another tier is another row: all that decides reads this
 * list. */
enum { PLAN_MAX_TIER = NIB_N_TIER };
int plan_tiers(const plan_question *q, uint64_t capacity, bool streamed, bool packed,
               residency_tier out[PLAN_MAX_TIER]);
/* Seconds of the disk for each byte that is streamed. */
double plan_disk_seconds(const plan_question *q, bool packed);
/* Of each byte that is packed, the share of computing threads that it takes. */
double plan_stolen_share(const plan_rates *r, bool packed);
/* RAM beside kept pages: what is promised, with weights of `bytes` in all. */
uint64_t plan_ram_beside(const plan_question *q, const plan_cache *cache, bool streamed, bool packed,
                         uint64_t bytes);
/* The work of one token in the middle of the generation, and the seconds that it takes, with what does not
 * overlap of reading and computing. */
void plan_work_of(const plan_question *q, const plan_decision *d, learned_work *out);
double plan_work_seconds(const plan_rates *r, const learned_work *w, bool packed);
/* As decisions are made: with reading and computing overlapping wholly, without what was learned (expect.h).
 */
void plan_predict(const plan_question *q, const plan_decision *d, plan_prediction *out, const char **binds);
/* The whole workload: the prompt and all tokens after it. */
double plan_run_seconds(const plan_question *q, const plan_prediction *p);

/* ---- decide.c: the decision alone ---- */

typedef struct plan_outcome {
    bool found;
    plan_prediction predicted;
    const char *binds;
    double bound;     /* no decision is faster than this, in tokens a second */
    bool proved;      /* there is no better one */
    double min_loss;  /* not found, in modes b and c: what leaving out one layer costs; negative: unknown */
    uint64_t min_ram; /* the smallest cap with which there is a decision */
    uint64_t streamed_ram; /* the smallest with which weights are streamed, were that allowed */
    uint64_t whole_ram;    /* the smallest with which everything stays, in the file's own formats */
} plan_outcome;

/* d's arrays are the caller's, [n_block] each. */
/* Of what a plan keeps that was given (q->kept); *all: nothing is left to stream. */
uint64_t plan_kept_bytes(const plan_question *q, bool *all);
/* The caps of an outcome alone. */
void plan_needs(const plan_question *q, plan_outcome *out);
nib_status plan_decide(const plan_question *q, plan_decision *d, plan_outcome *out, nib_error *err);

/* ---- write_down.c ---- */

/* Fills a zeroed plan from a decision, all but alternatives and notes; plan_clear after an error too. */
nib_status plan_write_down(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out,
                           nib_error *err);
void plan_write_notes(const plan_question *q, const plan_decision *d, const plan_outcome *o, plan *out);

#endif
