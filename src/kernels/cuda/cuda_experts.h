/* cuda_experts.h - mixtures of experts: the arguments of `route`, `experts`, `hand_down` and `hand_up` of
 * cuda_kernels.h, and the memory that they need. A row's experts are computed by the GPU, or those that it
 * does not hold by the host. */
#ifndef NIB_KERNELS_CUDA_CUDA_EXPERTS_H
#define NIB_KERNELS_CUDA_CUDA_EXPERTS_H

#include "kernels/cuda/cuda_codes.h"
#include "model/program.h"
#include "numbers/pack.h"

/* The rows of a launch by expert: which pairs (row, place among the row's experts, as number row * n_used +
 * place) each expert has. `route` writes it and `experts` reads it. A tile is up to CUDA_EXPERT_FEW pairs of
 * one expert, or half as many if their activations have 16 bits. For many rows there is a second list, whose
 * tiles have up to CUDA_EXPERT_WIDE pairs, and whose experts begin at multiples of WIDE's images. */
enum { CUDA_EXPERT_FEW = 8, CUDA_EXPERT_WIDE = 256, CUDA_EXPERT_ALIGN = 64 };
typedef struct cuda_expert_tile {
    int32_t expert, first, n, none; /* its pairs are those from `first` of the list on */
} cuda_expert_tile;
/* The list's dimensions and place in memory. */
typedef struct cuda_expert_list {
    int64_t max_tile, max_pair; /* at most, whatever the choice is; pairs with padding */
    int64_t tiles, pairs, end;  /* byte offsets; at 0 are the numbers of tiles, and of pairs, int32_t */
} cuda_expert_list;
static inline cuda_expert_list cuda_expert_list_of(int64_t n_pair, int64_t n_expert, int64_t tile,
                                                   int64_t align) {
    cuda_expert_list l;
    const int64_t most = n_pair < n_expert ? n_pair : n_expert; /* experts that have pairs */
    l.max_tile = most + n_pair / tile;
    l.max_pair = n_pair + most * (align - 1);
    l.tiles = 256;
    l.pairs = l.tiles + (l.max_tile * (int64_t)sizeof(cuda_expert_tile) + 255) / 256 * 256;
    l.end = l.pairs + (l.max_pair * (int64_t)sizeof(int32_t) + 255) / 256 * 256;
    return l;
}
static inline cuda_expert_list cuda_expert_few_of(int64_t n_pair, int64_t n_expert, bool two) {
    return cuda_expert_list_of(n_pair, n_expert, CUDA_EXPERT_FEW / (two ? 2 : 1), 1);
}
static inline cuda_expert_list cuda_expert_wide_of(int64_t n_pair, int64_t n_expert) {
    return cuda_expert_list_of(n_pair, n_expert, CUDA_EXPERT_WIDE, CUDA_EXPERT_ALIGN);
}

/* The number of counters of cuda_route.ended: of rows, or for one row a pair for each expert. */
static inline int64_t cuda_route_ended(int64_t n_row) {
    return n_row < 2 * ROUTE_MAX_EXPERT ? 2 * ROUTE_MAX_EXPERT : n_row + 1;
}
/* OP_ROUTE: chooses the experts of n_row rows, and lists the rows by expert. Differs from route_row
 * (kernels/route.h) by rounding only. With a router w it computes the logits first, in floats. */
typedef struct cuda_route {
    view w;              /* [n_expert, k] floats; data NULL: the logits are there */
    const float *w_bias; /* [n_expert] or NULL */
    const float *x;      /* [n_row, ld_row]: the router's input */
    const float *norm;   /* [k]: the input is RMSNorm(x) * norm; NULL: x itself. Not with `many` */
    float eps;
    float *normed; /* [n_row, ld_normed]: with `norm`, receives the input */
    int64_t ld_row, ld_normed;
    void *codes;        /* receives codes of the input, for `experts`; NULL: none. Not with `many` */
    unsigned *ended;    /* with w, [n_row + 1], zeroed once */
    bool many;          /* prompt rows */
    float *logits;      /* [n_row, ldx] */
    const float *bias;  /* [n_expert] or NULL */
    const float *times; /* [n_expert]: factors of the weights; or NULL */
    float *out;         /* [n_row, ldo]: ids, then weights */
    int64_t n_row, ldx, ldo, n_expert, n_used;
    score_kind score;
    int64_t n_group, group_used;
    int group_best;
    bool normalise, two; /* two: the activations of the experts' products have 16 bits */
    float scale;
    void *few;  /* cuda_expert_few_of(n_row * n_used, n_expert, two).end bytes, 256-byte aligned; NULL: not
                   needed */
    void *wide; /* cuda_expert_wide_of(...).end bytes; NULL: no `wide` reads it */
} cuda_route;

/* OP_EXPERTS: each row by the matrices of its experts. Matrices have n rows, padded to whole panels, one
 * under the other. */
typedef struct cuda_experts {
    view w[2]; /* all experts' matrices, of one format and shape */
    int n_w;
    int64_t n_expert, n_used, n, n_row;
    const float *x; /* [n_row, ldx]: k values, or with `each` n_used parts of k */
    int64_t ldx;
    const float *chosen; /* [n_row, ldc]: cuda_route.out */
    int64_t ldc;
    const void *few, *wide; /* cuda_route's; `wide` not NULL: halves are multiplied, as in cuda_kernels.wide,
                               unless the matrices have floats */
    bool each, sum, weighted, two;
    bool gated;           /* n_w = 2: y[0] = act(x . w[0]) * (x . w[1]) */
    bool adds;            /* y += */
    act_kind act;         /* gated */
    const float *bias[2]; /* [n_expert, n] or NULL; not with `weighted` unless `sum` */
    float *y[2];          /* [n_row, ldy]: n_used parts of n, or with `sum` their sum, n */
    int64_t ldy[2];
    void *scratch; /* cuda_experts_scratch() bytes, 256-byte aligned */
    /* Codes of x that the `experts` or `route` before left, or codes of y[0] that this one leaves for the
     * next; NULL: none. cuda_experts_codes() bytes. Not with `wide`. */
    const void *codes;
    void *leaves;
    cuda_codes row_leaves; /* codes of y[0] to leave for `linear`; one row, `sum`, n a multiple of 32 */
    view next; /* the matrices by which the same experts multiply y next, if `sum` does so: a launch for one
                  row brings them to the L2 cache; data NULL: there are none */
    /* [n_expert]: an expert's place among the matrices in w, of which some are missing; negative: its pairs
     * are left out. NULL: all are there. Not with `wide`. */
    const int16_t *here;
    bool apart; /* with `sum`: nothing is added up; pair i's output is at cuda_experts_part() + i * n floats,
                   for `hand_up` */
} cuda_experts;
/* Bytes of the codes of a row of k, and of those that a launch leaves. */
static inline int64_t cuda_expert_row(int64_t k) {
    const int64_t k_pad = (k + 255) / 256 * 256;
    return (k_pad + k_pad / 2 + 16 + 127) / 128 * 128;
}
static inline int64_t cuda_experts_codes(int64_t n_row, int64_t n_used, int64_t k) {
    return n_row * n_used * cuda_expert_row(k);
}
/* Whether `experts` (or `route`) can leave codes for a product with this matrix, and that product read
 * them. */
static inline bool cuda_experts_leave(const view *next, bool two) {
    const pack_format *f = &next->format;
    return f->layout == PACK_TILE && f->scale != PACK_SCALE_TWO && f->group == 32 && next->k % 64 == 0 &&
           !two;
}
/* Whether a sum makes codes of floats as fast as it reads codes, so that none need be left for it. */
enum { CUDA_EXPERTS_ONE = 16 };
static inline bool cuda_experts_quantize(int64_t n_row, int64_t n_used) {
    return n_row == 1 && n_used <= CUDA_EXPERTS_ONE;
}
/* Bytes of the input's codes or images, to a multiple of 256. */
static inline int64_t cuda_experts_input(const cuda_experts *a) {
    const int64_t n_pair = a->n_row * a->n_used, k = a->w[0].k;
    int64_t bytes = (a->each ? n_pair : a->n_row) * cuda_expert_row(k) * (a->two ? 2 : 1);
    if (a->wide)
        bytes = cuda_expert_wide_of(n_pair, a->n_expert).max_pair * ((k + 63) / 64 * 128 + 4) + 256;
    return a->w[0].format.layout == PACK_TILE ? (bytes + 255) / 256 * 256 : 0;
}
/* Where the outputs of pairs are in `scratch` before they are added up. */
static inline float *cuda_experts_part(const cuda_experts *a) {
    return (float *)(void *)((uint8_t *)a->scratch + cuda_experts_input(a));
}
static inline int64_t cuda_experts_scratch(const cuda_experts *a) {
    return cuda_experts_input(a) + (a->sum ? a->n_row * a->n_used * a->n * (int64_t)sizeof(float) : 0);
}

/* Two counters by which the GPU and the host hand rows to each other: `down` counts what the GPU has handed
 * down, and is written by it; `up` what the host has handed up. They are in host memory (device pointers of
 * `map`), in cache lines of their own. One stream uses them. here: device memory, zeroed once, when both
 * counters are 0. */
enum { CUDA_MAIL_BYTES = 16 /* of `here`, and of cuda_hand_down.ended behind it */ };
typedef struct cuda_mail {
    uint32_t *down;
    const uint32_t *up;
    uint32_t
        *here; /* [2]: how often `hand_down` was run; and the last count for which `hand_up` saw the host's */
} cuda_mail;

/* Hands the inputs of experts down: copies n_row rows of x and of the router's choice to host memory (device
 * pointers of `map`), where they follow each other, then counts. */
typedef struct cuda_hand_down {
    cuda_mail mail;
    const float *x, *chosen; /* [n_row, ldx]: k of each row; [n_row, ldc]: 2 * n_used of each */
    float *to_x, *to_chosen; /* [n_row, k], [n_row, 2 * n_used] */
    int64_t ldx, ldc, k, n_used, n_row;
    unsigned *ended; /* zeroed once */
    bool two;        /* for the host: the activations of the products have 16 bits */
} cuda_hand_down;

/* Waits until the host has handed up what the last `hand_down` asked for, and adds up the outputs of each
 * row's experts in the order of its choice: those of experts that are here (cuda_experts.apart), and those of
 * the others, which the host has written. The bits are those of `experts` with all of them. */
typedef struct cuda_hand_up {
    cuda_mail mail;
    const float *part;   /* [n_row * n_used, n]: of pairs whose experts are here; NULL: none is */
    const float *host;   /* [n_row * n_used, n]: of the others, in host memory */
    const int16_t *here; /* cuda_experts.here; NULL: none is here */
    const float *chosen; /* [n_row, ldc] */
    float *y;            /* [n_row, ldy] */
    int64_t ldc, ldy, n, n_used, n_row;
    bool weighted, adds;
    cuda_codes leaves; /* codes of y to leave for `linear`; one row, n a multiple of 32 */
} cuda_hand_up;

#endif
