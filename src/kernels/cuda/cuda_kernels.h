/* cuda_kernels.h - the CUDA kernels as a table of C functions, and the calls of the runtime that a back end
 * needs.
 *
 * libnibble-cuda.so is compiled by nvcc and exports one function, nib_cuda_kernels(); cuda_load.h finds the
 * library at run time, so no other part of nibble needs CUDA. Everything here is plain C. Pointers are device
 * pointers unless a comment says "host". Sizes are in elements unless they say "bytes". Every call returns 0
 * or a CUDA error number (`error_text` gives its text). A launch allocates nothing and does not wait for the
 * device, and all launches may be recorded in a graph.
 *
 * Launches on one stream run in order. Each launch lets the next one start early, read its weights, and then
 * wait (programmatic dependent launch, sm_90 and later). So a launch must not write weights, norms or tables
 * that another launch of the same graph reads. A launch must also not write a cache position that a later
 * `attend` of the same graph reads, unless that `attend` writes it itself. The first launch of a graph waits.
 *
 * Matrices are `view`s whose data is in the G-tile order (numbers/gtile.h), 64-byte aligned; `gtile` converts
 * between the Q-tile and this order. Matrices of floats (PACK_ROWS) are stored row by row, as on the host.
 * `linear` refuses the planes packing and integer zeros (PACK_SCALE_ZERO) with CUDA_UNSUPPORTED. `embed` has
 * the formats of cuda_embeds. Products omit the outliers of weights (pack_format.sparse); `sparse` adds them.
 *
 * Results: integer sums are those of kernels/cpu/ref. Floats are summed in one order that depends on the
 * format and k alone, so a row has the same bits alone and among others, and in every run. `wide`, `batch`
 * and `attend_prompt`, for many rows, also give a row the same bits every time, but other ones. There are no
 * float atomics. */
#ifndef NIB_KERNELS_CUDA_CUDA_KERNELS_H
#define NIB_KERNELS_CUDA_CUDA_KERNELS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/cuda/cuda_codes.h"
#include "kernels/cuda/cuda_experts.h"
#include "kernels/cuda/cuda_ranks.h"
#include "kernels/logit_change.h"
#include "kernels/strategy.h"
#include "model/program.h"
#include "numbers/pack.h"

enum { CUDA_KERNELS_VERSION = 26, CUDA_UNSUPPORTED = 801 /* cudaErrorNotSupported */ };
enum {
    CUDA_PAGE = 64 /* positions of a KV page */,
    CUDA_MAX_ROWS = 64 /* rows of `linear` and `batch` */,
    CUDA_MAX_FETCH = 16 /* rows of `residual` */,
    CUDA_MAX_WIDE = 65535 /* rows of `wide` and `attend_prompt` */,
    CUDA_MAX_CENTRED = 8192 /* k of cuda_linear.centred */
};
enum { CUDA_FETCH_HEAD = 256 /* bytes of the scratch of `residual` that are zeroed once */ };
enum { CUDA_MAX_SPLIT = 32, CUDA_MAX_TOP = 64 };
enum {
    CUDA_MAX_SHARED = 576 /* channels of keys that are the values too */,
    CUDA_SHARED_ROWS = 8 /* rows of a launch of their attention */,
    CUDA_SHARED_SPLIT = 64
};
enum {
    CUDA_MAX_SHORT = 8 /* rows of `shortlist` */,
    CUDA_SHORT_HEAD = 256 /* bytes of the scratch of `shortlist` that are zeroed once */
};

/* Parts in which blocks attend to a sequence at most. Heads of more than 128 channels have more of them,
 * because a warp has more work for each position. */
static inline int cuda_attend_split(int64_t d_head) {
    return d_head > 128 ? CUDA_MAX_SPLIT : CUDA_MAX_SPLIT / 2;
}

typedef struct cuda_device_info {
    char name[64];
    int major, minor; /* compute capability */
    int n_sm, shared_bytes /* of one block, at most */;
    size_t memory, l2; /* bytes */
    size_t driver;     /* bytes of `memory` that the process's context takes; 0: unknown */
} cuda_device_info;

typedef struct cuda_strategy cuda_strategy;

/* y = x . w^T for 1..CUDA_MAX_ROWS rows, with 8-bit activations in the groups of act_format_for(w, 8). With
 * matrices of floats, activations stay floats whatever act_bits and two are, and codes are neither read nor
 * left. Then a sum differs from the exact one by less than 2e-6 of the magnitudes that are summed
 * (linear_float.cu). */
typedef struct cuda_linear {
    /* The strategy. NULL, or one that cannot compute it: the rule decides. The bits are the same. */
    const cuda_strategy *by;
    view w[3]; /* matrices with one format and k; all multiply the same rows */
    int n_w;
    int64_t n_row;
    const float *x; /* [n_row, ldx], 16-byte aligned rows */
    int64_t ldx;
    const float *norm; /* [k], 16-byte aligned: the input is RMSNorm(x) * norm; NULL: x itself */
    float eps;
    bool centred;         /* the input is LayerNorm(x) * norm + shift instead; not `linear` of packed
                             matrices; k at most CUDA_MAX_CENTRED */
    const float *shift;   /* [k], 16-byte aligned; NULL: zeros */
    int act_bits;         /* bits of the activations: 8 (or 0), or 4, with codes -8..7 (act8.h) */
    int n8;               /* `mixed`: blocks of 128 channels, the first ones, whose activations have 8 bits */
    bool two;             /* 16-bit activations: a second row of 8 bits has the residual of the first */
    bool gated;           /* n_w = 2: y[0] = act(x . w[0]^T) * (x . w[1]^T) */
    bool acts;            /* n_w = 1: y[0] = act(x . w[0]^T); not `linear` of packed ones, nor with `adds` */
    act_kind act;         /* gated, acts; not ACT_SWIGLU_CLAMPED */
    bool adds;            /* y += instead of y = */
    bool exact;           /* `wide`, matrices of floats: rows stay floats, as in `linear` */
    const float *bias[3]; /* [w[i].n] or NULL */
    float *y[3];          /* [n_row, ldy[i]] */
    int64_t ldy[3];
    void *scratch; /* linear_scratch() bytes, 256-byte aligned; unused for one row of codes without `two` */
    const void *codes; /* the codes that the launch before left for x (all rows, this norm and these groups);
                          NULL: there are none. The bits are the same. For one row they are used with weights
                          in groups of 32, or of up to 7 bits in groups of 64 or 128; for several rows as
                          left_rows() says, by the rule. */
    cuda_codes leaves; /* codes of y[0] to leave; n_w = 1 or gated, and n is a multiple of 32; for several
                          rows by the rule */
    bool codes_whole;  /* `codes` has codes of wider groups: leaves_whole() is true for the launch before */
    cuda_ranks sum; /* the product is added over ranks, then to y, by the launch itself, if `sums` says so */
} cuda_linear;
/* Whether `mixed` has the format: 4 bits and one half-precision scale for each 32, 64 or 128. */
static inline bool cuda_mixes(const pack_format *f) {
    return f->layout == PACK_TILE && f->packing == PACK_PARTS && f->bits == 4 &&
           f->table == PACK_TABLE_NONE && f->scale == PACK_SCALE_F16 && !f->asym &&
           (f->group == 32 || f->group == 64 || f->group == 128);
}

/* Keys and values of one layer in pages of CUDA_PAGE positions. Those of page i begin at k + i * page and v +
 * i * page, 16-byte aligned; i may be negative.
 *
 * Halves: [n_kv_head][CUDA_PAGE][d_head] each.
 *
 * Codes of 8 and 4 bits (kernels/kv_layout.h has their meaning and sizes): a page is one block of codes for
 * each head, in an order of the device's own. d_pad is d_head rounded up to 32.
 *
 *     keys    [n_kv_head] of codes [CUDA_PAGE][d_pad], then scales [2][d_pad] and minima [2][d_pad] in halves
 *     values  [n_kv_head] of codes [2][d_pad][32 positions], then scales [d_pad / 32][CUDA_PAGE] and minima
 *
 * With 4 bits, code i of eight is at bit i / 2 * 4 + i % 2 * 16 of a dword. The newest block is halves, as
 * above, in a page of recent_k and recent_v. The entry of `pages` before the first one of a sequence has the
 * number of this page. */
typedef struct cuda_kv {
    void *k, *v; /* v NULL: the keys of one head are the values of all, and the cache has them once. Then q
                    and k are not rotated, and `attend` needs `stored` and leaves no codes */
    int64_t n_kv_head, d_head; /* d_head: a multiple of 8, at most 256; v NULL: at most CUDA_MAX_SHARED */
    int64_t page;              /* halves from one page to the next */
    void *recent_k, *recent_v; /* with codes: the newest block */
    int code_bits;             /* 8 or 4; 0: halves */
} cuda_kv;

/* Attention of one token of each of n_row sequences: rotates q and k, stores k and v at the row's position,
 * attends. If `store` has stored the rows before, they may belong to one sequence. With codes, a row sees its
 * own block of CUDA_PAGE positions in halves and earlier blocks in codes, and the rows of a sequence are in
 * one block; a launch that stores the last position of a block also packs the block. k NULL: the cache has
 * the row's own position too, because an earlier layer has stored it (not with codes, and `stored` is
 * true). */
typedef struct cuda_attend {
    cuda_kv kv;
    const float *q, *k, *v; /* [n_row, ld], before the rotation; rows of k and v are 16-byte aligned */
    int64_t ldq, ldk, ldv;
    float *out; /* [n_row, ldo]: n_head * d_head of each row */
    int64_t ldo, n_row, n_head;
    const int32_t *position;   /* [n_row] */
    const int32_t *pages;      /* page numbers, those of each sequence in order */
    const int32_t *first_page; /* [n_row]: index in `pages` of the first page of the row's sequence */
    const float *cos_sin;      /* [position, n_rot]: n_rot/2 cosines, then n_rot/2 sines; NULL: no rotation */
    bool cos_sin_by_row;       /* cos_sin is [n_row, n_rot] */
    bool many;   /* `attend`: rows of many sequences, so a block has more pages of a row. The last bits
                    are other ones (not of latents) */
    bool stored; /* `store` stored the rows, or the launches before wrote to the same sequences */
    /* [d_head]: heads of q and k are RMSNorm(head) * norm before they are rotated, with the bits of `norm`.
       `attend` only, if cuda_attend_norms(). NULL: both are used as they are. */
    const float *q_norm, *k_norm;
    float norm_eps;
    rope_style style;
    int64_t n_rot;
    int64_t window; /* positions; 0: all */
    bool chunked;   /* instead: positions are cut into chunks of `window`, and a row sees those of its own */
    float scale, softcap;
    float alibi_max_bias; /* 0: no ALiBi */
    float alibi_scale;    /* multiplies the slopes; 0 counts as 1 (attend_args, kernels/kernels.h) */
    const float *sinks;   /* [n_head] (attend_args), not written while the graph runs; NULL: none */
    void *scratch; /* attend_scratch() bytes, zeroed once before the first use; smaller launches share it */
    cuda_codes leaves; /* codes of `out` to leave; d_head is a multiple of 32; for as many rows as left_rows()
                          of the product */
} cuda_attend;

/* Whether `attend` can compute the norms of q and k. */
static inline bool cuda_attend_norms(const cuda_attend *a) {
    const int64_t d = a->kv.d_head;
    return !a->stored && a->style == ROPE_HALF && a->n_rot == d && (d == 64 || d == 128 || d == 256);
}

/* Copies pages of one layer's keys and values between the device's memory and the host's, in the order of the
 * host's kernels there (kernels/kv_layout.h). */
typedef struct cuda_move {
    cuda_kv here;
    void *host_k,
        *host_v; /* host memory, as device pointers of `map`; here.page halves from one page to the next */
    const int32_t *pairs; /* [n_page, 2]: a page of the device, a page of the host; 8-byte aligned */
    int64_t n_page;
    bool up; /* from the host to the device */
} cuda_move;

typedef struct cuda_norm {
    norm_kind kind;
    const float *x, *w, *b; /* w, b: [k / n_group], or [k] if w_full; or NULL */
    float *out;             /* may be x */
    int64_t n_row, ldx, ldo, k, n_group;
    bool w_full;
    float eps;
    /* a second norm of other rows, with groups of the same width; n_group2 0: none */
    const float *x2, *w2, *b2;
    float *out2;
    int64_t ldx2, ldo2, n_group2;
} cuda_norm;

/* One of OP_ACT, OP_GATE, OP_ADD, OP_SCALE, OP_CLAMP, OP_SOFTCAP, OP_XIELU, OP_SCALE_POS, OP_TIMES, OP_SHARE
 * and OP_SOFTPLUS (model/program.h) on n_row rows. */
typedef struct cuda_each {
    op_kind kind;
    act_kind act;       /* OP_ACT, OP_GATE */
    const float *x, *y; /* y: OP_GATE, OP_ADD, OP_SHARE; OP_TIMES: the factors, ldy is 0 */
    int64_t each;       /* OP_SHARE: values that share a factor */
    const float *z;     /* OP_ADD: [n_row, ldz], one column, whose sigmoid multiplies y; NULL: none */
    view by;            /* OP_ADD: F32, F16 or BF16 [1, k] in rows: the column is the product of z, k columns,
                           with it; data NULL: none */
    float value;
    float *out;   /* may be x or y */
    float *total; /* OP_ADD with `by`: [n_row, ldt], to which `out` is added; NULL: none */
    int64_t ldt;
    cuda_codes leaves; /* codes of `total`, or of `out`, to leave for `linear`; one row, n a multiple of 32 */
    int64_t n_row, n, ldx, ldy, ldz, ldo;
    xielu xielu;             /* OP_XIELU */
    const int32_t *position; /* OP_SCALE_POS: [n_row] */
    int64_t offset, every;
} cuda_each;

/* OP_COPY on n_row rows. */
typedef struct cuda_columns {
    const float *x;
    float *out; /* not x */
    int64_t n_row, ldx, ldo;
    int64_t n_group, n, at_in, step_in, at, step, n_zero;
} cuda_columns;

/* OP_ROPE on n_row rows, in place. */
typedef struct cuda_rope {
    float *x;             /* [n_row, ldx] */
    const float *cos_sin; /* [n_row, n_rot]: n_rot/2 cosines, then n_rot/2 sines */
    int64_t n_row, ldx, n_head, d_head, n_rot;
    rope_style style;
} cuda_rope;

/* Looks up rows of a matrix: out = row (row[i] + offset) of w, times factor; adds: out += that. The bits are
 * those of the host: pack_read_row, then a product, then a sum. If w does not have the row, out stays as it
 * is. */
typedef struct cuda_embed {
    view w; /* cuda_embeds */
    const int32_t *row;
    int64_t offset;
    int64_t column, n; /* which columns: n from `column` on, a multiple of 4 */
    float factor;
    bool adds;
    float *out; /* [n_row, ldo]: n of each row */
    int64_t ldo, n_row;
} cuda_embed;
/* Whether `embed` has the format. */
static inline bool cuda_embeds(const pack_format *f) {
    if (f->layout == PACK_ROWS)
        return f->type == TYPE_F32 || f->type == TYPE_F16 || f->type == TYPE_BF16;
    return f->table == PACK_TABLE_NONE && f->scale != PACK_SCALE_ZERO && !f->sparse;
}

/* Finds the `top` largest logits of each row, after its changes. The logits are not written to. */
typedef struct cuda_sample {
    const float *logits; /* [n_row, ld] */
    int64_t n_row, ld, n_vocab;
    const logit_row *rows;       /* [n_row]; NULL: nothing is changed */
    const logit_change *changes; /* the changes of all rows */
    int top;                     /* 1: the largest, among equals the first; up to CUDA_MAX_TOP */
    int32_t *top_ids;            /* [n_row, top], the largest first */
    float *top_logits;           /* the same shape */
    void *scratch;               /* sample_scratch() bytes, zeroed once before the first use */
} cuda_sample;

/* The second step of an output head in two steps (exec/shortlist.h). y[0] has estimates, the products of the
 * rows with the sketch. It gets the head's own logits in panels that may have one of the `top` largest, and
 * -infinity elsewhere. A panel of 16 logits is computed if one of them is changed later, or if an upper bound
 * in it reaches a limit that at least `top` lower bounds reach. The bits are those of `linear` with the whole
 * head. */
typedef struct cuda_shortlist {
    cuda_linear head;  /* n_w = 1, a matrix that sketch_takes accepts; up to CUDA_MAX_SHORT rows; `two` and
                          `adds` false, leaves nothing. `codes` of one row are in groups of 32 */
    const float *step; /* [rows of the head, rounded up to panels]: the standard deviation of an estimate's
                          error for a row of length 1 */
    int top;           /* 1..CUDA_MAX_TOP */
    const logit_row *rows;       /* [n_row]; NULL: nothing is changed */
    const logit_change *changes; /* those of all rows */
    void *scratch; /* shortlist_scratch() bytes, 256-byte aligned; the first CUDA_SHORT_HEAD are zeroed once.
                      Two counters (uint64_t) in bytes 8 to 24: rows, and the panels that were computed for
                      them */
} cuda_shortlist;

/* QDEC: the contribution of 4-bit residuals (numbers/residual.h) of up to three matrices that multiply the
 * same rows. Each row chooses its own channels, and only the residuals of these channels are fetched: rows
 * and scale are host memory, as device pointers of `map`. */
typedef struct cuda_residual {
    const uint8_t *rows[3]; /* [k, step[i]] bytes, 4-byte aligned; step 0: the matrix has no residual, and its
                               part is zeros */
    const float *scale[3];  /* [n[i]] */
    int64_t n[3], step[3];
    int n_w;
    int64_t n_row; /* at most CUDA_MAX_FETCH */
    const float *x;
    int64_t ldx, k, k_chunk;
    const float *norm; /* [k]: the input is RMSNorm(x) * norm; NULL: x itself */
    float eps;
    int n_tb;    /* thread blocks; no more than multiprocessors are used. The bits do not depend on it */
    float *part; /* [n_row, ldp]: the contributions to n[0] + n[1] + n[2] outputs */
    int64_t ldp;
    void *scratch; /* residual_scratch() bytes, 256-byte aligned, the first CUDA_FETCH_HEAD zeroed once; one
                      stream at a time */
} cuda_residual;

/* Adds the contributions of `residual` to finished products: y[i] += part i; gated: out = act(y[0] + part 0)
 * * (y[1] + part 1). */
typedef struct cuda_residual_add {
    const float *part;
    int64_t ldp;
    float *y[3];
    int64_t ldy[3], n[3];
    int n_w;
    int64_t n_row;
    bool gated;
    act_kind act;
    float *out;
    int64_t ldo;
} cuda_residual_add;

/* Adds the products of the outliers of up to three matrices (pack_format.sparse) to finished products of the
 * same rows: y[i] += outliers of w[i] . x; gated: out = act(y[0] + ...) * (y[1] + ...). Activations are
 * floats, also if the products quantize them. A row's bits depend neither on the other rows nor on their
 * number. */
typedef struct cuda_sparse {
    view w[3]; /* matrices with one format and k, a multiple of 4 */
    int n_w;
    int64_t n_row;  /* at most CUDA_MAX_WIDE */
    const float *x; /* [n_row, ldx], 16-byte aligned rows */
    int64_t ldx;
    const float *norm; /* [k], 16-byte aligned: the input is RMSNorm(x) * norm; NULL: x itself */
    float eps;
    float *y[3]; /* [n_row, ldy[i]] */
    int64_t ldy[3];
    bool gated; /* n_w = 2 */
    act_kind act;
    float *out; /* gated: [n_row, ldo]; may be y[0] or y[1] */
    int64_t ldo;
} cuda_sparse;

/* OP_GROUPS or OP_SPREAD: part g of each row by matrix g of n_group, which stand one under the other in w:
 * [n_group * n, k], or with `spread` [n_group * k, n], by whose transpose rows are multiplied. */
typedef struct cuda_groups {
    view w; /* not PACK_SCALE_ZERO, the planes packing or outliers */
    bool spread;
    bool many; /* prompt rows: halves are multiplied, unless w has floats of 32 bits */
    bool two;  /* activations have 16 bits; kernels multiply floats all the same */
    bool adds; /* y += */
    int64_t n_group, n, k, n_row;
    const float *x; /* [n_row, ldx]: k values at g * step_x */
    int64_t ldx, step_x;
    float *y; /* [n_row, ldy]: n values at g * step_y */
    int64_t ldy, step_y;
} cuda_groups;

/* OP_CONV, OP_SSD, OP_SCAN or OP_DELTA on n_row rows (kernels/kernels.h has the formulas). Rows of one
 * sequence follow each other in the order of their positions. A state begins at origin + number * unit + at
 * floats. It is read, unless the row's position is 0, and replaced by the state after the sequence's last
 * row. */
enum { CUDA_NO_STATE = INT32_MIN, CUDA_CONV_ROWS = 64 };
typedef struct cuda_recurrent {
    op_kind kind;
    bool together;            /* all rows belong to one sequence */
    const float *x, *x2, *x3; /* [n_row, ld]: the op's inputs */
    int64_t ldx, ldx2, ldx3;
    float *out; /* [n_row, ldo]; OP_CONV: may be x */
    int64_t ldo, n_row, n;
    const float *w, *b, *skip; /* the op's w, b and w2 */
    int64_t n_tap, n_head, n_group, d_head, d_state;
    float dt_min, dt_max;
    bool silu, by_channel, tiled;
    const int32_t *position;     /* [n_row] */
    const int32_t *state, *save; /* [n_row]: numbers of the row's state, and of a copy of the state after the
                                    row; CUDA_NO_STATE: there is no copy */
    uint8_t *origin;
    int64_t unit, at;
    void *scratch; /* cuda_recurrent_scratch() bytes */
    /* What comes before and after in place; NULL: nothing. OP_CONV: products of its input with `times`, and
     * of its output with `gate`. OP_DELTA: RMSNorm of each head, then OP_GATE by `gate`. */
    const float *times; /* [n_row, ldt] */
    const float *norm;  /* [d_head], which is a multiple of 32 up to 256 */
    const float *gate;  /* [n_row, ldg]; of OP_DELTA with `norm` */
    int64_t ldt, ldg;
    float eps;
    act_kind act;      /* of OP_DELTA */
    cuda_codes leaves; /* with `gate`: codes of `out` to leave for `linear`; one row, n a multiple of 32 */
} cuda_recurrent;
static inline int64_t cuda_recurrent_scratch(int64_t n_row, int64_t n, int64_t n_tap) {
    return n_row / CUDA_CONV_ROWS * (n_tap - 1) * n * (int64_t)sizeof(float);
}

/* OP_REDUCE on n_row rows: out is the sum of x of all ranks, or with `adds` that is added to out. */
typedef struct cuda_reduce {
    const float *x;             /* [n_row, ldx], 8-byte aligned rows */
    float *out;                 /* [n_row, ldo], likewise; may be x */
    int64_t ldx, ldo, n_row, n; /* n is even */
    bool adds;
    cuda_ranks of;
    cuda_codes leaves; /* codes of `out` to leave; n is a multiple of 64; for as many rows as left_rows() of
                          the product */
} cuda_reduce;

typedef void *cuda_stream, *cuda_graph, *cuda_event;

/* A strategy for `linear`, or for products of many rows (`wide`). `row` says which formats and numbers of
 * columns it can compute (columns: rows, or twice as many with `two`); row.run is NULL. The first strategy is
 * the rule, which `linear` uses if none is given. */
struct cuda_strategy {
    strategy row; /* the first member: a kernel_table lists it */
    int (*launch)(const cuda_linear *a,
                  cuda_stream s); /* CUDA_UNSUPPORTED: cannot compute this k, or on this device */
    int since, before; /* compute capability (75, 80, ...): from `since` on, below `before`; 0: all */
};

/* A unit of the device that multiplies slices of codes, w_bits by a_bits (kernels/dpr.h). */
typedef struct cuda_unit {
    const char *name;
    uint8_t w_bits, a_bits;
    int since; /* compute capability */
    /* Queues `rounds` rounds on every multiprocessor. *sink is never written in practice; it keeps the
     * compiler from removing the work. */
    int (*run)(int rounds, unsigned *sink, cuda_stream s);
    /* Products of slices in one round on all multiprocessors; 0 until a device was opened. */
    int64_t products;
} cuda_unit;

typedef struct cuda_kernels {
    int version; /* CUDA_KERNELS_VERSION */

    /* -- the runtime -- */
    const char *(*error_text)(int error);
    int (*device_count)(int *n);
    int (*device_open)(int device, cuda_device_info *info); /* makes it this thread's device */
    int (*memory_now)(size_t *free, size_t *total);         /* bytes of the device */
    int (*alloc)(void **p, size_t bytes);                   /* device memory; `release` frees it */
    int (*release)(void *p);
    /* Page-locks host memory: copies from it are asynchronous and faster. */
    int (*pin)(void *host, size_t bytes);
    int (*unpin)(void *host);
    int (*map)(void *host, size_t bytes,
               void **device); /* page-locks host memory and gives a device pointer to it; `unpin` ends it */
    /* Queue a copy on a stream, from or to host memory or within the device. */
    int (*to_device)(void *to, const void *host, size_t bytes, cuda_stream s);
    int (*to_host)(void *host, const void *from, size_t bytes,
                   cuda_stream s); /* waits if the host memory is not pinned */
    int (*on_device)(void *to, const void *from, size_t bytes, cuda_stream s);
    /* The same between pinned host memory and the device for n_row rows of `bytes`, which begin so many bytes
     * apart. by_kernel: a kernel reads or writes the host's memory; the copy engine would make the copy after
     * those of other streams that it has begun. */
    int (*copy_rows)(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t bytes,
                     size_t n_row, bool by_kernel, cuda_stream s);
    int (*fill)(void *to, int byte, size_t bytes, cuda_stream s);
    int (*stream_new)(cuda_stream *s);
    int (*stream_free)(cuda_stream s);
    int (*stream_sync)(cuda_stream s);
    /* Later work on s waits for e; while a graph is recorded, s becomes part of it. */
    int (*stream_wait)(cuda_stream s, cuda_event e);
    int (*event_new)(cuda_event *e);
    int (*event_free)(cuda_event e);
    int (*event_record)(cuda_event e, cuda_stream s);
    int (*event_ms)(float *ms, cuda_event from, cuda_event to); /* both events have happened */
    int (*graph_begin)(cuda_stream s);                          /* launches on s are recorded, not run */
    int (*graph_end)(cuda_stream s, cuda_graph *g);
    int (*graph_launch)(cuda_graph g, cuda_stream s);
    int (*graph_free)(cuda_graph g);
    /* Device memory for several processes, zeroed: `release` frees it. Others open it by its handle. */
    int (*share_new)(void **p, size_t bytes, cuda_handle *handle);
    int (*share_open)(void **p, const cuda_handle *handle);
    int (*share_close)(void *p);

    /* -- kernels -- */
    /* Converts a whole matrix from the Q-tile to the G-tile or back, in place. */
    int (*gtile)(const view *w, bool to_gpu, cuda_stream s);
    size_t (*linear_scratch)(int64_t n_row, int64_t k, bool two); /* bytes */
    int (*linear)(const cuda_linear *a, cuda_stream s);
    bool (*leaves_whole)(const cuda_linear *a); /* whether `linear` leaves codes of groups of 64 or 128 */
    bool (*sums)(const cuda_linear *a);         /* whether `linear` adds over ranks (a->sum) */
    int64_t (*left_rows)(const view *w); /* the number of rows (1 or more) whose codes `linear` reads, and
                                            leaves, with such a matrix */
    /* `linear` for many rows, up to CUDA_MAX_WIDE. Multiplies halves with sums in floats, whatever `two` is.
     * Rows are scaled by powers of two and rounded to halves. F16 and BF16 weights are exact (wide_float.cu
     * says from which magnitude on). With matrices of f32, rows stay floats, as in `linear`. Neither reads
     * nor leaves codes. scratch is wide_scratch() bytes for the largest k. A row's bits depend on neither the
     * number nor the positions of the other rows, but are not those of `linear`. */
    bool (*has_wide)(void);                           /* whether this device has `wide` and `attend_prompt` */
    size_t (*wide_scratch)(int64_t n_row, int64_t k); /* bytes */
    int (*wide)(const cuda_linear *a, cuda_stream s);
    /* `linear` for the rows of many sequences that decode together. Multiplies halves with sums in floats,
     * like `wide`, for up to CUDA_MAX_ROWS rows, which take nearly the time of one. Neither reads nor leaves
     * codes; scratch is wide_scratch() bytes. A row's bits depend on neither the number nor the positions of
     * the other rows, but are those of neither `linear` nor `wide`. Matrices of floats are computed as in
     * `linear`. */
    bool (*has_batch)(void);
    int (*batch)(const cuda_linear *a, cuda_stream s);
    /* Products with activations of 4 and 8 bits by block of 128 channels (n8), for up to CUDA_MAX_WIDE rows
     * and matrices that cuda_mixes() accepts. Codes, and the values that stay floats (act_extract_outliers),
     * are those of the processor for the same inputs. Neither reads nor leaves codes; scratch is
     * mixed_scratch() bytes. A row's bits depend neither on the other rows nor on the device. Compute
     * capabilities 7.5 to 8.9 have the instruction for 4 bits, and others emulate it. */
    size_t (*mixed_scratch)(int64_t n_row, int64_t k); /* bytes, for the largest k */
    int (*mixed)(const cuda_linear *a, cuda_stream s);
    int (*sparse)(const cuda_sparse *a, cuda_stream s);
    size_t (*codes_bytes)(int64_t k); /* bytes of cuda_codes.data for rows of k */
    size_t (*attend_scratch)(int64_t n_row, int64_t n_head, int64_t d_head); /* bytes */
    int (*attend)(const cuda_attend *a, cuda_stream s);
    /* `attend` for up to CUDA_MAX_WIDE rows of one sequence at successive positions. `store` must have stored
     * them; with codes, `pack` must have packed them and `store` must come after. Uses no scratch and leaves
     * no codes. A row's bits do not depend on the others, but are not those of `attend`. Needs sm_80. */
    int (*attend_prompt)(const cuda_attend *a, cuda_stream s);
    /* Rotates the keys of n_row rows and stores keys and values; q, scratch and out are unused. With codes,
     * stores a sequence's last block in the page of the newest one. */
    int (*store)(const cuda_attend *a, cuda_stream s);
    /* With codes: packs the blocks that end with one of the rows. Call it before `store`, which may overwrite
     * older positions that it reads; `attend_prompt` is called between the two. */
    int (*pack)(const cuda_attend *a, cuda_stream s);
    int (*move)(const cuda_move *a, cuda_stream s); /* sees all earlier writes of the host */
    int (*norm)(const cuda_norm *a, cuda_stream s);
    int (*each)(const cuda_each *a, cuda_stream s);
    int (*columns)(const cuda_columns *a, cuda_stream s);
    int (*rope)(const cuda_rope *a, cuda_stream s);
    int (*embed)(const cuda_embed *a, cuda_stream s);
    int (*reduce)(const cuda_reduce *a, cuda_stream s);
    int (*gather)(const cuda_gather *a, cuda_stream s);
    size_t (*residual_scratch)(int64_t n_row, int64_t k, int64_t k_chunk); /* bytes */
    int (*residual)(const cuda_residual *a, cuda_stream s);
    int (*residual_add)(const cuda_residual_add *a, cuda_stream s);
    size_t (*sample_scratch)(int64_t n_row); /* bytes */
    int (*sample)(const cuda_sample *a, cuda_stream s);

    /* Makes the sketch of a head that sketch_takes accepts: its weights rounded to 4 bits in groups of 32
     * (u4g32, in the G-tile order), and cuda_shortlist.step of each row. */
    bool (*sketch_takes)(const view *head);
    int (*sketch)(const view *head, const view *sketch, float *step, cuda_stream s);
    size_t (*shortlist_scratch)(void); /* bytes */
    int (*shortlist)(const cuda_shortlist *a, cuda_stream s);

    /* A row's bits depend on its role alone (`wide` is NULL or not, `many`), not on the other rows. */
    int (*route)(const cuda_route *a, cuda_stream s);
    int (*experts)(const cuda_experts *a, cuda_stream s);
    int (*hand_down)(const cuda_hand_down *a, cuda_stream s);
    int (*hand_up)(const cuda_hand_up *a, cuda_stream s);
    /* The host waits until *down (at the host's address) is `count`, or s has failed. */
    int (*handed_down)(const uint32_t *down, uint32_t count, cuda_stream s);
    int (*groups)(const cuda_groups *a, cuda_stream s);
    /* A row's bits do not depend on the other rows, and not on how a sequence is cut. */
    int (*recurrent)(const cuda_recurrent *a, cuda_stream s);

    /* -- for benchmarks -- */
    /* Reads bytes (a multiple of 16) once. *sink keeps the compiler from removing the reads; it is written
     * only if all bytes are equal. */
    int (*read_all)(const void *data, size_t bytes, unsigned *sink, cuda_stream s);
    /* Fills a PACK_TILE matrix with PACK_SCALE_F16 with random codes, and with scales near `scale`. */
    int (*random_matrix)(const view *w, float scale, uint64_t seed, cuda_stream s);

    /* -- strategies (ADAngel; docs/paper-adangel.md) -- */
    /* The strategies of all devices, the rule first; `since` and `before` tell which the device has. */
    const cuda_strategy *(*strategies)(int *n);
    const cuda_unit *(*units)(int *n);
} cuda_kernels;

/* The members of cuda_kernels that take arguments of their own type and a stream: X(member, type of its
 * arguments). */
#define CUDA_LAUNCHES(X)                                                                                     \
    X(linear, cuda_linear)                                                                                   \
    X(wide, cuda_linear)                                                                                     \
    X(batch, cuda_linear)                                                                                    \
    X(mixed, cuda_linear)                                                                                    \
    X(sparse, cuda_sparse)                                                                                   \
    X(attend, cuda_attend)                                                                                   \
    X(attend_prompt, cuda_attend)                                                                            \
    X(store, cuda_attend)                                                                                    \
    X(pack, cuda_attend)                                                                                     \
    X(move, cuda_move)                                                                                       \
    X(norm, cuda_norm)                                                                                       \
    X(each, cuda_each)                                                                                       \
    X(columns, cuda_columns)                                                                                 \
    X(rope, cuda_rope)                                                                                       \
    X(embed, cuda_embed)                                                                                     \
    X(reduce, cuda_reduce)                                                                                   \
    X(gather, cuda_gather)                                                                                   \
    X(residual, cuda_residual)                                                                               \
    X(residual_add, cuda_residual_add)                                                                       \
    X(sample, cuda_sample)                                                                                   \
    X(shortlist, cuda_shortlist)                                                                             \
    X(route, cuda_route)                                                                                     \
    X(experts, cuda_experts)                                                                                 \
    X(hand_down, cuda_hand_down)                                                                             \
    X(hand_up, cuda_hand_up)                                                                                 \
    X(groups, cuda_groups)                                                                                   \
    X(recurrent, cuda_recurrent)

/* The table of this library; never NULL, also without a device. */
const cuda_kernels *nib_cuda_kernels(void);

#ifdef __cplusplus
}
#endif
#endif
