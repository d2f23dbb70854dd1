/* homes.h - decides where bytes live: which blocks, or which matrices of every block, a GPU has, and which
 * keys and values; then which pages of the other weights are in RAM, and which on the disk. No other code
 * decides it. Planning calls it with predicted capacities, and the engine with its free memory, unless a plan
 * of the user has placed the bytes already.
 *
 * Two steps, because what RAM has left for weights follows from the first (keys and values in host memory,
 * rows of the processor), and because the second is made for each format that planning tries. Pure functions.
 */
#ifndef NIB_PLAN_HOMES_H
#define NIB_PLAN_HOMES_H

#include "plan/rates.h"
#include "weights/pager.h"

/* ---- blocks on a GPU (homes_device.c) ----
 * Streamed blocks come into two slots that hold the largest of them. Of every streamed layer the same share
 * of its bytes, as whole matrices, may be resident too. Then the slots are smaller, so fewer bytes cross the
 * link, and no layer can be computed in place, because prompts would stream it as a whole. What takes a pass
 * of generated rows the shortest time is chosen.
 *
 * A pass of generated rows is limited by the rate at which weights are read. So the processor computes some
 * layers where their weights are, while others are streamed: memory and link work at the same time. Prompt
 * rows stream all of these layers, however few rows there are, because a row's bits may not depend on the
 * number of other rows. Of a layer of experts it computes only those that are not resident: a row reads few
 * of its bytes there, the most popular ones are read on the GPU, and the layer's other matrices are resident.
 * No layer is computed in place if more sequences may decode together than the processor can serve in the
 * time in which the link brings all layers. */

/* A layer that is not resident; all of them are taken to be equal. */
typedef struct homes_layer {
    uint64_t bytes;  /* of its matrices */
    uint64_t chosen; /* of these, the bytes of experts; the processor reads those that rows have chosen, the
                        link copies all */
    double share;    /* of the experts, those that a row chooses */
    uint64_t macs;   /* multiply-adds of one row */
    int bits;        /* of its weights; 0: floats */
    bool two;        /* activations have 16 bits */
} homes_layer;

typedef struct homes_division {
    int n_streamed;   /* layers streamed for every pass; the others are computed in place */
    int64_t max_rows; /* rows for which the processor is ready before the link has brought all layers */
    double seconds;   /* of one row through all layers */
} homes_division;

/* Bytes that n_row rows read of `bytes`, of which `chosen` are experts, if each row chooses this share of
 * them and independently of the others. */
double homes_read_bytes(double bytes, double chosen, double share, double n_row);

/* Layers of which some are resident, and the others to be divided. */
typedef struct homes_layers {
    homes_layer each;
    int n, n_resident; /* to be divided; resident */
    uint64_t more;     /* bytes that the GPU reads besides: of the head, of vectors */
} homes_layers;

/* Divides the layers that are not resident. max_rows: limit of out->max_rows. */
void homes_divide(const plan_rates *r, const homes_layers *of, int64_t max_rows, homes_division *out);

typedef enum home_kind {
    HOME_RESIDENT, /* the weights are in the GPU's memory */
    HOME_STREAMED, /* copied over the link for every pass, all of it or a part (block_home.away) */
    HOME_IN_PLACE  /* computed by the processor for generated rows; streamed for prompt rows */
} home_kind;

/* Seconds for which a layer's attention on the processor lasts longer than its bytes: the GPU is computing
 * what goes down and what comes up, and the first and the last of two cells do not overlap. */
#define HOMES_ATTEND_TURN 2e-4

/* Where a block's bytes are. */
typedef struct block_home {
    home_kind kind;
    bool staged; /* the layer's keys and values are in host memory, and come to the GPU, which computes it */
    bool attended; /* or of a staged layer: the processor attends for generated rows, while the GPU computes
                      all else */
    bool apart;    /* of a streamed layer of experts: all else is resident, and the processor computes for
                      generated rows the experts that are not; only prompt rows stream these */
    uint64_t away; /* bytes that cross the link in a pass that computes the block on the GPU */
} block_home;

/* The kind of each layer, into out[n_layer]; n_resident + n_streamed <= n_layer. Streamed layers are spread
 * evenly among those computed in place, and a share of the resident ones follows each streamed layer: so the
 * link also works while the GPU computes. */
void homes_order(int n_layer, int n_resident, int n_streamed, block_home *out);

enum {
    HOMES_SLOTS = 2,   /* slots for streamed blocks */
    HOMES_SHARES = 32, /* the resident share of a streamed layer is a multiple of its 32th */
    HOMES_PAGE = 4096, /* bytes; granularity of memory on the GPU */
    HOMES_STAGE_BYTES =
        64 << 20, /* most of a slot of the stage (state/kv_stage.h), unless one sequence has more: over the
                     fastest link a millisecond, many times what starting a copy and attention takes */
    HOMES_STAGE_SHARE = 64, /* and the part of the capacity that it is at most */
    HOMES_NAME = 64
};

typedef struct homes_block {
    uint64_t bytes; /* of the matrices that only this block reads on the GPU; of the embedding's block: of the
                       tables that the GPU can look up */
    int first_matrix;   /* of these matrices in homes_question.matrices */
    uint64_t cache;     /* its part of a KV page, in bytes */
    uint64_t newest;    /* with codes: its part of a page of a sequence's newest positions (kv_table.h) */
    int n_launch;       /* kernel launches with one row */
    bool apart;         /* the processor can compute the block's experts apart from its other ops */
    int n_expert;       /* 0: it has none */
    uint64_t expert;    /* bytes of one expert's matrices */
    uint64_t kept_more; /* bytes that resident experts take besides, at most */
    bool slides;        /* on the GPU the cache is in a page's part for windows (state/kv_slide.h) */
} homes_block;

/* The facts on which the decision depends. */
typedef struct homes_question {
    homes_block *blocks; /* [n_block]: the embedding, layers, the head. Freed by homes_question_clear */
    int n_block;
    uint64_t *matrices; /* [n_matrix]: bytes of each of the blocks' matrices. Freed as `blocks` */
    int n_matrix;
    bool *stack;       /* [n_matrix]: it has experts. Freed as `blocks` */
    double *hits;      /* [most experts + 1]: the share of rows' choices that the first so many experts by
                          popularity have; NULL: all are as popular. Freed as `blocks` */
    uint64_t fixed;    /* bytes of vectors, and of matrices that several blocks read: always resident */
    uint64_t sketch;   /* bytes of the head's sketch (exec/shortlist.h); 0: it has none */
    bool needs_sketch; /* true: the sketch is made even if fewer layers are resident; false: only if all
                          blocks are resident beside it */
    homes_layer layer;
    uint64_t capacity;            /* bytes of VRAM for all of the following */
    char capacity_of[HOMES_NAME]; /* for messages: "the cap", or the device's name */
    bool capped;                  /* the capacity is the cap's */
    uint64_t driver;              /* bytes of VRAM that the driver takes besides */
    bool absent;                  /* there is no GPU: driver and activations are guesses */
    gpu_rates like;               /* rates of GPUs like this one, for plan_rates_like */
    uint64_t activations;         /* bytes */
    uint64_t n_page, page;        /* KV pages of all layers, and bytes of one */
    uint64_t n_part, part;        /* their parts for layers with a window, likewise */
    uint64_t n_page_each;         /* pages of the longest sequence; 0: all */
    bool stages;                  /* layers that the GPU computes may have their keys and values in host
                                     memory, from where they come for each pass */
    int kv;                       /* PLAN_KV_: their width */
    bool attends;                 /* or where the processor attends for generated rows */
    uint64_t session;             /* bytes of sequences besides their pages */
    uint64_t n_table, newest;     /* with codes: sequences that have memory, and bytes of a page of the newest
                                     positions of each, which is part of `session` */
    int n_cpu_experts;            /* of so many first layers with experts the processor computes all of them,
                                     and all else is resident; 0: decide */
    int max_layers;               /* maximum number of resident layers; 0: as many as fit */
    int64_t max_rows;             /* of a pass in the processor's workspace */
    int n_sequence;               /* maximum number of sequences that decode together; 0: one */
    int many_from;                /* n_sequence from which on generated rows have other kernels, which are
                                     faster for many sequences and slower for one; 0: never */
    bool one_cache;               /* KV pages of a sequence are on one device, so no layer is computed in
                                     place */
    block_home *given; /* [n_block], of a plan, which are followed: their kind, and `away`; NULL: decide.
                          Freed as `blocks` */
    int n_attended;    /* with `given`: homes_split.n_attended, of at most n_staged layers */
    int n_kept;        /* and homes_split.n_kept */
} homes_question;

/* The decision. */
typedef struct homes_split {
    block_home *of; /* [n_block]; the embedding is in place if the first layer is */
    int n_block;
    bool *comes;   /* [n_matrix]: the matrices that are away */
    int share;     /* of HOMES_SHARES: at most this share of every streamed layer is resident */
    int n_in_part; /* streamed blocks of which a part is resident */
    bool tables;   /* the embedding's tables are resident; only if all blocks are and memory is left */
    int n_not_resident, n_in_place; /* blocks, without the embedding's; the second is part of the first */
    int n_staged, n_attended;       /* layers */
    int n_apart, n_kept;            /* layers of block_home.apart; resident experts of each */
    int64_t max_rows;               /* maximum sequences that decode together with layers in place; 0: none */
    uint64_t resident, slot;        /* bytes of resident weights, of one slot for streamed blocks */
    uint64_t host;                  /* bytes of keys and values in host memory, of layers computed in place or
                                       staged */
    uint64_t device_kv;             /* bytes of sequences and KV pages on the GPU */
    uint64_t stage_page, stage_newest; /* of the stage for their pages, and for those of layers computed in
                                          place in prompts: bytes of a page of one layer; 0: there is none.
                                          With codes: of a page of newest positions */
    uint64_t n_stage_page, n_stage_newest, n_stage_list; /* pages of one of its slots, sequences with newest
                                                            positions there, pages in its lists */
    bool has_sketch;                                     /* with a resident head only */
    uint64_t weights, others; /* total bytes of VRAM: weights; activations, keys and values */
} homes_split;

/* Makes as many layers resident as fit beside two slots for the largest of the others; if none fits, the head
 * is streamed too. If the keys and values of all sequences do not fit beside that, those of some layers are
 * staged. The processor attends in those in which it is faster than the link. Of all
 * splits the one is taken in which a pass of generated rows is fastest; also if all would fit, but for
 * several sequences weights would cross the link instead. NIB_E_NOFIT: the message says
 * how much memory is needed at least. NIB_E_USAGE: q->given is impossible. The caller clears *out in any
 * case (homes_split_clear). */
nib_status homes_split_make(const homes_question *q, const plan_rates *r, homes_split *out, nib_error *err);
void homes_split_clear(homes_split *s); /* zeroed is fine */
void homes_question_clear(homes_question *q);

/* The share of rows' choices that so many resident experts of a layer have. */
double homes_hit(const homes_question *q, int n_kept);
/* Seconds of handing a layer's rows to the processor's experts and back, besides their products (measured on
 * an H200: docs/gpu.md). */
#define HOMES_APART_TURN 3e-5

/* Whether generated rows have the kernels for many sequences. */
bool homes_is_for_many(const homes_question *q);

/* Bytes of VRAM that a resident block takes, rounded as the driver rounds. */
uint64_t homes_block_bytes(uint64_t bytes);
/* Bytes of VRAM with which all blocks are resident, driver included. */
uint64_t homes_all_resident(const homes_question *q);

/* ---- pages in RAM and on the disk (homes.c) ----
 * The first pages of every block are in the fastest place, so the resident part of a matrix is contiguous. A
 * dense model visits its pages in a fixed cycle, so any resident set of the same size reads the same number
 * of bytes. Resident pages are spread evenly over the blocks, so that the disk works while they are
 * computed.
 *
 * Experts are chosen by data, so their pages are not read by every pass: they get what the others leave,
 * whole experts, as many of each block, by rank. The pager exchanges them while the model runs
 * (weights/expert_table.h). */

enum { HOME_OPEN = UINT8_MAX }; /* not decided */

/* Assigns a place to each page of home_of [n_page] that is HOME_OPEN; the others stay. left: bytes that each
 * place has for them; the disk gets all that the faster places cannot hold. */
void homes_spread(const pager_page *pages, int n_page, const uint64_t left[PLACES], uint8_t *home_of);
/* Before the pages are known: resident bytes of each block, as homes_spread would choose them. bytes,
 * kept: [n_block]. */
void homes_share(const uint64_t *bytes, int n_block, uint64_t capacity, uint64_t *kept);

/* Bytes of the pages in a place. */
uint64_t homes_bytes(const pager_page *pages, int n_page, const uint8_t *home_of, int place);

/* RAM that the pager needs beside its tables if every page is resident, and if none is; `others`: bytes that
 * are charged when it is open. UINT64_MAX: overflow. */
uint64_t homes_whole(const pager_need *need, uint64_t others);
uint64_t homes_min(const pager_need *need, uint64_t others);

#endif
