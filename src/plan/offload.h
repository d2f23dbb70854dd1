/* offload.h - how a GPU's memory is shared when not all weights fit: which blocks are resident there, which
 * are streamed over the link for every pass, and which the processor computes in place.
 *
 * Streamed blocks come into two slots that hold the largest of them. Of every streamed layer the same share
 * of its bytes, as whole matrices, may be resident too. Then the slots are smaller, so fewer bytes cross the
 * link, and no layer can be computed in place, because prompts would stream it as a whole. What takes a pass
 * of generated rows the shortest time is chosen.
 *
 * A pass of generated rows is limited by the rate at which weights are read. So the processor computes some
 * layers where their weights are, while others are streamed: memory and link work at the same time. Prompt
 * rows stream all of these layers, however few rows there are, because a row's bits may not depend on the
 * number of other rows. No layer is computed in place if more sequences may decode together than the
 * processor can serve in the time in which the link brings all layers.
 *
 * Pure functions: the planner and the back end call them with the same facts. */
#ifndef NIB_PLAN_OFFLOAD_H
#define NIB_PLAN_OFFLOAD_H

#include "base/status.h"

struct plan_rates;

/* A layer that is not resident; all of them are taken to be equal. */
typedef struct offload_layer {
    uint64_t bytes;  /* of its matrices */
    uint64_t chosen; /* of these, the bytes of experts; the processor reads those that rows have chosen, the
                        link copies all */
    double share;    /* of the experts, those that a row chooses */
    uint64_t macs;   /* multiply-adds of one row */
    int bits;        /* of its weights; 0: floats */
    bool two;        /* activations have 16 bits */
} offload_layer;

typedef struct offload {
    int n_streamed;   /* layers streamed for every pass; the others are computed in place */
    int64_t max_rows; /* rows for which the processor is ready before the link has brought all layers */
    double seconds;   /* of one row through all these layers */
} offload;

/* Bytes that n_row rows read of `bytes`, of which `chosen` are experts, if each row chooses this share of
 * them and independently of the others. */
double offload_read_bytes(double bytes, double chosen, double share, double n_row);

/* Divides n_layer layers that are not resident. max_rows: limit of out->max_rows. */
void offload_choose(const struct plan_rates *r, const offload_layer *each, int n_layer, int64_t max_rows,
                    offload *out);

typedef enum offload_place {
    OFFLOAD_RESIDENT, /* the weights are in the GPU's memory */
    OFFLOAD_STREAMED, /* copied over the link for every pass, all of it or a part (offload_split.away) */
    OFFLOAD_IN_PLACE  /* computed by the processor for generated rows; streamed for prompt rows */
} offload_place;

/* The place of each layer, into out[n_layer]; n_resident + n_streamed <= n_layer. Streamed layers are spread
 * evenly among those computed in place, and a share of the resident ones follows each streamed layer: so the
 * link also works while the GPU computes. */
void offload_place_all(int n_layer, int n_resident, int n_streamed, offload_place *out);

/* ---- the whole decision ---- */

enum {
    OFFLOAD_SLOTS = 2,   /* slots for streamed blocks */
    OFFLOAD_SHARES = 32, /* the resident share of a streamed layer is a multiple of its 32th */
    OFFLOAD_PAGE = 4096, /* bytes; granularity of memory on the GPU */
    OFFLOAD_STAGE_BYTES =
        64 << 20, /* most of a slot of the stage (state/kv_stage.h), unless one sequence has more: over the
                     fastest link a millisecond, many times what starting a copy and attention takes */
    OFFLOAD_STAGE_SHARE = 64, /* and the part of the capacity that it is at most */
    OFFLOAD_NAME = 64
};

typedef struct offload_block {
    uint64_t bytes; /* of the matrices that only this block reads on the GPU; of the embedding's block: of the
                       tables that the GPU can look up */
    int first_matrix; /* of these matrices in offload_question.matrices */
    uint64_t cache;   /* its part of a KV page, in bytes */
    uint64_t newest;  /* with codes: its part of a page of a sequence's newest positions (kv_table.h) */
    int n_launch;     /* kernel launches with one row */
    bool slides;      /* on the GPU the cache is in a page's part for windows (state/kv_slide.h) */
} offload_block;

/* The facts on which the decision depends. */
typedef struct offload_question {
    offload_block *blocks; /* [n_block]: the embedding, layers, the head. Freed by offload_question_clear */
    int n_block;
    uint64_t *matrices; /* [n_matrix]: bytes of each of the blocks' matrices. Freed as `blocks` */
    int n_matrix;
    uint64_t fixed;    /* bytes of vectors, and of matrices that several blocks read: always resident */
    uint64_t sketch;   /* bytes of the head's sketch (exec/shortlist.h); 0: it has none */
    bool needs_sketch; /* true: the sketch is made even if fewer layers are resident; false: only if all
                          blocks are resident beside it */
    offload_layer layer;
    uint64_t capacity;              /* bytes of VRAM for all of the following */
    char capacity_of[OFFLOAD_NAME]; /* for messages: "the cap", or the device's name */
    bool capped;                    /* the capacity is the cap's */
    uint64_t driver;                /* bytes of VRAM that the driver takes besides */
    bool absent;                    /* there is no GPU: driver and activations are guesses */
    uint64_t activations;           /* bytes */
    uint64_t n_page, page;          /* KV pages of all layers, and bytes of one */
    uint64_t n_part, part;          /* their parts for layers with a window, likewise */
    uint64_t n_page_each;           /* pages of the longest sequence; 0: all */
    bool stages;                    /* layers that the GPU computes may have their keys and values in host
                                       memory, from where they come for each pass */
    bool attends;                   /* or where the processor attends for generated rows */
    uint64_t session;               /* bytes of sequences besides their pages */
    uint64_t n_table, newest; /* with codes: sequences that have memory, and bytes of a page of the newest
                                 positions of each, which is part of `session` */
    int max_layers;           /* maximum number of resident layers; 0: as many as fit */
    int64_t max_rows;         /* of a pass in the processor's workspace */
    int n_sequence;           /* maximum number of sequences that decode together; 0: one */
    int many_from;            /* n_sequence from which on generated rows have other kernels, which are
                                 faster for many sequences and slower for one; 0: never */
    bool one_cache;           /* KV pages of a sequence are on one device, so no layer is computed in
                                 place */
    offload_place *places;    /* [n_block], a plan's, which are followed; NULL: decide. Freed as `blocks` */
    int n_attended;           /* with `places`: offload_split.n_attended, of at most n_staged layers */
    uint64_t *kept; /* with places: [n_block], resident bytes of streamed blocks. Freed as `blocks` */
} offload_question;

/* The decision. */
typedef struct offload_split {
    offload_place *place; /* [n_block]; the embedding's is in place if the first layer's is */
    int n_block;
    uint64_t
        *away;   /* [n_block]: bytes of the block that cross the link in a pass that computes it on the GPU */
    bool *comes; /* [n_matrix]: the matrices that these are */
    int share;   /* of OFFLOAD_SHARES: at most this share of every streamed layer is resident */
    int n_in_part; /* streamed blocks of which a part is resident */
    bool tables;   /* the embedding's tables are resident; only if all blocks are and memory is left */
    int n_not_resident, n_in_place; /* blocks, without the embedding's; the second is part of the first */
    int64_t max_rows;               /* maximum sequences that decode together with layers in place; 0: none */
    uint64_t resident, slot;        /* bytes of resident weights, of one slot for streamed blocks */
    uint64_t host;                  /* bytes of keys and values in host memory, of layers computed in place or
                                       staged */
    uint64_t device_kv;             /* bytes of sequences and KV pages on the GPU */
    bool *staged;                   /* [n_block]: the layer's keys and values are in host memory, and come to
                                       the GPU, which computes it */
    int n_staged;                   /* number of such layers */
    bool *attended;                 /* [n_block]: of these, the layers in which the processor attends for
                                       generated rows, while the GPU computes all else */
    int n_attended;                 /* number of such layers */
    uint64_t stage_page, stage_newest; /* of the stage for their pages, and for those of layers computed in
                                          place in prompts: bytes of a page of one layer; 0: there is none.
                                          With codes: of a page of newest positions */
    uint64_t n_stage_page, n_stage_newest, n_stage_list; /* pages of one of its slots, sequences with newest
                                                            positions there, pages in its lists */
    bool has_sketch;                                     /* with a resident head only */
    uint64_t weights, others; /* total bytes of VRAM: weights; activations, keys and values */
} offload_split;

/* Makes as many layers resident as fit beside two slots for the largest of the others; if none fits, the head
 * is streamed too. If the keys and values of all sequences do not fit beside that, those of some layers are
 * staged. The processor attends in those in which it is faster than the link. Of all
 * splits the one is taken in which a pass of generated rows is fastest; also if all would fit, but for
 * several sequences weights would cross the link instead. NIB_E_NOFIT: the message says
 * how much memory is needed at least. NIB_E_USAGE: q->places are impossible. The caller clears *out in any
 * case (offload_split_clear). */
nib_status offload_split_make(const offload_question *q, const struct plan_rates *r, offload_split *out,
                              nib_error *err);
void offload_split_clear(offload_split *s); /* zeroed is fine */
void offload_question_clear(offload_question *q);

/* Whether generated rows have the kernels for many sequences. */
bool offload_is_for_many(const offload_question *q);

/* Bytes of VRAM that a resident block takes, rounded as the driver rounds. */
uint64_t offload_block_bytes(uint64_t bytes);
/* Bytes of VRAM with which all blocks are resident, driver included. */
uint64_t offload_all_resident(const offload_question *q);

#endif
