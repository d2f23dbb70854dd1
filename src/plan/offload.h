/* offload.h - what a GPU keeps, and what becomes of layers whose weights have no room there. A pass of
 * generated rows is limited by how fast weights are read: some layers are computed by the processor where
 * they are, and meanwhile others come over the link, so that memory and link are both at work. For prompt
 * rows all of them come, however few rows there are: a row's bits do not depend on the number of others. No
 * layer is in place where more sequences may decode together than the processor has done with before the link
 * has brought all layers. Pure: a plan and the back end ask the same function with the same facts. */
#ifndef NIB_PLAN_OFFLOAD_H
#define NIB_PLAN_OFFLOAD_H

#include "base/status.h"

struct plan_rates;

/* One of the layers without room; they are taken as alike. */
typedef struct offload_layer {
    uint64_t bytes; /* of its matrices */
    uint64_t macs;  /* of one row */
    int bits;       /* of its weights; 0: floats */
    bool two;       /* 16-bit activations */
} offload_layer;

typedef struct offload {
    int n_come;       /* of the layers, those that come for every pass; the others are computed in place */
    int64_t max_rows; /* that the processor has done with before the link has brought all of them */
    double seconds;   /* of one row through all these layers */
} offload;

/* max_rows: what the processor has room for. */
void offload_choose(const struct plan_rates *r, const offload_layer *each, int n_layer, int64_t max_rows,
                    offload *out);
typedef enum offload_place {
    OFFLOAD_STAYS,   /* on the GPU */
    OFFLOAD_COMES,   /* for every pass */
    OFFLOAD_IN_PLACE /* computed by the processor in passes of generated rows; for prompts it comes */
} offload_place;

/* Each layer's place, into out[n_layer]; n_stay + n_come <= n_layer. Layers that come stand evenly among
 * those that are computed meanwhile; behind each of them, where the GPU has the pass anyway, stands its share
 * of those that stay: so the link has work in passes of prompts too. */
void offload_place_all(int n_layer, int n_stay, int n_come, offload_place *out);

/* ---- the whole decision ---- */

enum {
    OFFLOAD_SLOTS = 2,      /* for blocks on their way */
    OFFLOAD_PAGE = 4096,    /* bytes that memory on the GPU is rounded up to */
    OFFLOAD_MOVE_LIST = 20, /* bytes of lists, of a page of keys and values that moves (moves.c) */
    OFFLOAD_NAME = 64
};

typedef struct offload_block {
    uint64_t bytes; /* of the matrices that this block alone reads on the GPU */
    uint64_t cache; /* of a page of keys and values, its part */
    int n_launch;   /* of kernels, with one row */
} offload_block;

/* What is decided with. */
typedef struct offload_question {
    offload_block *blocks; /* [n_block]: the embedding, which is looked up on the host; layers; the head.
                              mem_free */
    int n_block;
    uint64_t always; /* bytes of vectors, and of matrices that several blocks read: they stay */
    offload_layer each;
    uint64_t room;               /* bytes of VRAM for all that follows */
    char whose[OFFLOAD_NAME];    /* whose room it is, for messages: "the cap", or the device's name */
    bool capped;                 /* it is the cap's */
    uint64_t driver;             /* bytes of VRAM that the driver takes beside it */
    bool absent;                 /* there is no GPU: driver and activations are guesses */
    uint64_t beside;             /* bytes of activations */
    uint64_t n_page, page;       /* of keys and values of all layers: pages, and bytes of one */
    uint64_t session;            /* bytes of sequences beside their pages */
    int max_layers;              /* that keep their weights on the GPU, at most; 0: as many as fit */
    int64_t max_rows;            /* of a pass that the processor has room for */
    int n_sequence;              /* that may decode together, at most; 0: one */
    bool one_cache;              /* a sequence's keys and values are in one place, so no layer is computed in
                                    place */
    const offload_place *places; /* [n_block], a plan's, which is obeyed; NULL: decide */
} offload_question;

typedef struct offload_split {
    offload_place *place; /* [n_block]; of the embedding: in place where the first layer is */
    int n_block;
    int n_away, n_in_place;   /* blocks that do not stay; layers of them that are computed in place */
    int64_t max_rows;         /* sequences that may decode together for layers to be in place; 0: none */
    uint64_t stay, slot;      /* bytes of weights that stay, of one of the slots for the others */
    uint64_t caches;          /* of a page of keys and values, on the GPU */
    uint64_t on_host;         /* of a page, in host memory: of layers that are computed in place */
    uint64_t layer;           /* of a page, the most that one such layer has; 0: there is none */
    uint64_t weights, others; /* of VRAM, in all: weights; activations, keys and values */
} offload_split;

/* As many layers stay as have room beside two slots for the largest of the others; where not even none has,
 * the head comes too. NIB_E_NOFIT says what is needed at least. NIB_E_USAGE: q->places are not possible.
 * offload_split_clear in any case. */
nib_status offload_split_make(const offload_question *q, const struct plan_rates *r, offload_split *out,
                              nib_error *err);
void offload_split_clear(offload_split *s); /* zeroed is fine */
void offload_question_clear(offload_question *q);

/* Of VRAM, what a block takes that stays, the driver's rounding included. */
uint64_t offload_block_room(uint64_t bytes);
/* Of VRAM, for so many pages of a layer's keys and values that move; stride: bytes of one. */
uint64_t offload_moves_room(uint64_t stride, uint64_t n_page);
/* What all blocks need to stay, with the driver. */
uint64_t offload_whole(const offload_question *q);

#endif
