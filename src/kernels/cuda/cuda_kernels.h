/* cuda_kernels.h - the CUDA kernels as a C table, and the few calls of the runtime that a back end needs.
 *
 * libnibble-cuda.so is compiled by nvcc and exports one function, nib_cuda_kernels(); cuda_load.h finds it at
 * run time, so nothing else of nibble needs CUDA. Everything here is plain C: pointers are device pointers
 * unless a comment says "host", sizes are elements unless they say "bytes", and every call returns 0 or a
 * CUDA error number (`error_text` has its words). Nothing is allocated by a launch, nothing waits for the
 * device, and all launches may be recorded in a graph.
 *
 * Launches on one stream run in order. Each lets the next one start early, read its weights, and then wait
 * (programmatic dependent launch, sm_90 and later): so weights, norms and tables must not be written by a
 * launch of the same graph, and a cache position must not be written by an earlier launch of the same graph
 * than the one that attends to it, unless `attend` wrote it itself. The first launch of a graph waits.
 *
 * Matrices are `view`s whose data is in the G-tile order (quant/gtile.h), 64-byte aligned; `gtile` makes it
 * from the Q-tile and undoes it. Matrices of floats (PACK_ROWS) lie row by row, as on the host. The planes
 * packing and integer zeros (PACK_SCALE_ZERO) are refused by `linear` with CUDA_UNSUPPORTED; `embed` has the
 * formats of cuda_embeds. Products leave the outliers of weights (pack_format.sparse) out: `sparse` adds
 * them.
 *
 * Answers: integer parts are those of kernels/cpu/ref. Floats are summed in one order that depends on the
 * format and k alone: a row has the same bits alone and among others, and in every run; only `wide`,
 * `batch` and `attend_prompt`, for many rows, have bits of their own. No float atomics. */
#ifndef NIB_KERNELS_CUDA_CUDA_KERNELS_H
#define NIB_KERNELS_CUDA_CUDA_KERNELS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "kernels/logit_change.h"
#include "kernels/strategy.h"
#include "model/program.h"
#include "quant/pack.h"

enum { CUDA_KERNELS_VERSION = 17, CUDA_UNSUPPORTED = 801 /* cudaErrorNotSupported */ };
enum {
    CUDA_PAGE = 64 /* positions */,
    CUDA_MAX_ROWS = 64,
    CUDA_MAX_FETCH = 16 /* rows of a residual */,
    CUDA_MAX_WIDE = 65535 /* rows */
};
enum { CUDA_FETCH_HEAD = 256 /* bytes of a residual's scratch that are zeroed once */ };
enum { CUDA_MAX_SPLIT = 16, CUDA_MAX_TOP = 64 };
enum {
    CUDA_MAX_SHORT = 8 /* rows of a head in two steps */,
    CUDA_SHORT_HEAD = 256 /* bytes: cuda_shortlist */
};

typedef struct cuda_device_info {
    char name[64];
    int major, minor, n_sm, shared_bytes /* of one block */;
    size_t memory, l2;
    size_t driver; /* bytes of `memory` that opening it took: its context; 0: not known */
} cuda_device_info;

/* What a launch leaves beside its floats for the product that reads them: of one row, and of as many as
 * `left_rows` says of both products' matrices. In groups of 32 these are the codes. A wider group mostly has
 * outputs of several blocks, so what is left is what its codes are made of: the floats times the norm's
 * weights, and the largest size of each 32. Where each block has whole groups (`leaves_whole`), codes are
 * left of these too. */
typedef struct cuda_codes {
    void *data;        /* codes_bytes(length of a row), 256-byte aligned, zeroed once; NULL: none is left */
    const float *norm; /* of the product that takes it; not written while the graph runs */
    int64_t group;     /* of that product's activations: 32, 64 or 128 */
} cuda_codes;

typedef struct cuda_strategy cuda_strategy;

/* y = x . w^T for 1..CUDA_MAX_ROWS rows, with activations of 8 bits quantized per group as
 * act_format_for(w, 8) says. With matrices of floats activations are floats, whatever act_bits and two say,
 * and nothing is taken or left: sums differ from exact ones by less than 2e-6 of the magnitudes that are
 * summed (linear_float.cu). */
typedef struct cuda_linear {
    const cuda_strategy *by; /* the strategy; NULL, or one that cannot compute it: the rule decides. The bits
                                are the same */
    view w[3];               /* of one format and k; all read the same rows */
    int n_w;
    int64_t n_row;
    const float *x; /* [n_row, ldx], 16-byte aligned rows */
    int64_t ldx;
    const float *norm; /* [k], 16-byte aligned: x stands for RMSNorm(x) * norm; NULL: for itself */
    float eps;
    int act_bits;         /* of the activations: 8 (or 0), or 4, whose codes are -7..7 */
    bool two;             /* 16-bit activations: a second row of 8 bits holds what the first left over */
    bool gated;           /* n_w = 2: y[0] = act(x . w[0]^T) * (x . w[1]^T) */
    act_kind act;         /* gated */
    bool adds;            /* y += instead of y = */
    const float *bias[3]; /* [w[i].n] or NULL */
    float *y[3];          /* [n_row, ldy[i]] */
    int64_t ldy[3];
    void *scratch; /* linear_scratch() bytes, 256-byte aligned; not read or written with one row of integers
                      and !two */
    const void *codes; /* what the launch before left of x, as many rows, for this norm and these groups;
                          NULL: the rows are all that there is. The bits are the same. Of one row weights in
                          groups of 32, or of up to 7 bits in groups of 64 or 128, make use of it; of several
                          those that left_rows() names, by the rule. */
    cuda_codes leaves; /* of y[0], when n_w = 1 or gated; n a multiple of 32; of several rows by the rule */
    bool codes_whole;  /* `codes` has the codes of wider groups: leaves_whole() of the launch before */
} cuda_linear;

/* Keys and values of one layer in pages of CUDA_PAGE positions; those of page i begin at k + i * page and
 * v + i * page, 16-byte aligned; i may be negative.
 *
 * Halves: [n_kv_head][CUDA_PAGE][d_head] each.
 *
 * Codes of 8 and 4 bits (kernels/kv_layout.h has their meaning and sizes): a page is whole blocks of codes,
 * in an order of its own, where d_pad is d_head rounded up to 32: keys    [n_kv_head] of codes
 * [CUDA_PAGE][d_pad], then scales [2][d_pad] and minima [2][d_pad] in halves values  [n_kv_head] of codes
 * [2][d_pad][32 positions], then scales [d_pad / 32][CUDA_PAGE] and minima Of 4 bits, code i of eight is at
 * bit i / 2 * 4 + i % 2 * 16 of a dword. The newest positions are halves, as above, in pages of recent_k and
 * recent_v: block b of a sequence is in the page whose number stands b % 2 - 2 places behind (so before) the
 * sequence's first one. */
typedef struct cuda_kv {
    void *k, *v;
    int64_t n_kv_head, d_head; /* d_head: a multiple of 8, at most 256 */
    int64_t page;              /* halves */
    void *recent_k, *recent_v; /* of codes */
    int code_bits;             /* 8 or 4; 0: halves */
} cuda_kv;

/* One token of each of n_row sequences: rotates q and k, stores k and v at the row's position, attends. Where
 * `store` stored the rows before, they may be of one sequence. Of codes a row sees its own block of
 * CUDA_PAGE positions in halves and those before it in codes; a launch that stores the last position of a
 * block packs it too. */
typedef struct cuda_attend {
    cuda_kv kv;
    const float *q, *k, *v; /* [n_row, ld], before the rotation */
    int64_t ldq, ldk, ldv;
    float *out; /* [n_row, ldo]: n_head * d_head of each */
    int64_t ldo, n_row, n_head;
    const int32_t *position;   /* [n_row] */
    const int32_t *pages;      /* sequences' pages in order */
    const int32_t *first_page; /* [n_row]: where in `pages` those of the row's sequence begin */
    const float *cos_sin;      /* [position, n_rot]: n_rot/2 cosines, then n_rot/2 sines; NULL: no rotation */
    bool cos_sin_by_row;       /* [n_row, n_rot] instead */
    bool stored;               /* by `store`, or the launches before wrote to the same sequences */
    rope_style style;
    int64_t n_rot;
    int64_t window; /* 0: all */
    float scale, softcap;
    float alibi_max_bias; /* 0: no ALiBi */
    float alibi_scale;    /* multiplies the slopes; 0 counts as 1 (attend_args, kernels/kernels.h) */
    const float *sinks;   /* [n_head] (attend_args), not written while the graph runs; NULL: none */
    void *scratch; /* attend_scratch() bytes, zeroed once before the first use; smaller launches may use it */
    cuda_codes leaves; /* of out; d_head a multiple of 32; of as many rows as left_rows says of the product */
} cuda_attend;

/* Pages of one layer's keys and values between the device's memory and the host's, where the host's kernels
 * have them (kernels/kv_layout.h). */
typedef struct cuda_move {
    cuda_kv here;
    void *host_k,
        *host_v;          /* host memory as the device sees it (`map`), laid out in pages as here.page says */
    const int32_t *pairs; /* [n_page, 2]: a page here, a page there; 8-byte aligned */
    int64_t n_page;
    bool up; /* from the host */
} cuda_move;

typedef struct cuda_norm {
    norm_kind kind;
    const float *x, *w, *b; /* w, b: [k / n_group] or [k] when w_full, or NULL */
    float *out;             /* may be x */
    int64_t n_row, ldx, ldo, k, n_group;
    bool w_full;
    float eps;
} cuda_norm;

/* One of OP_ACT, OP_GATE, OP_ADD, OP_SCALE, OP_CLAMP and OP_SOFTCAP (model/program.h) on n_row rows. */
typedef struct cuda_each {
    op_kind kind;
    act_kind act;       /* OP_ACT, OP_GATE */
    const float *x, *y; /* y: OP_GATE, OP_ADD */
    float value;
    float *out; /* may be x or y */
    int64_t n_row, n, ldx, ldy, ldo;
} cuda_each;

/* Rows of a matrix that are looked up: out = row (row[i] + offset) of w, times factor; adds: out += that. The
 * bits are those of the host: pack_read_row, then a product, then a sum. A row that w does not have is left
 * out. */
typedef struct cuda_embed {
    view w; /* cuda_embeds */
    const int32_t *row;
    int64_t offset;
    float factor;
    bool adds;
    float *out; /* [n_row, ldo]: w.k of each */
    int64_t ldo, n_row;
} cuda_embed;
/* Whether `embed` has the format. */
static inline bool cuda_embeds(const pack_format *f) {
    if (f->layout == PACK_ROWS)
        return f->type == TYPE_F32 || f->type == TYPE_F16 || f->type == TYPE_BF16;
    return f->table == PACK_TABLE_NONE && f->scale != PACK_SCALE_ZERO && !f->sparse;
}

/* The k largest logits of each row, after its changes, and one of them drawn. The logits stay as they are. */
typedef struct cuda_sample {
    const float *logits; /* [n_row, ld] */
    int64_t n_row, ld, n_vocab;
    const logit_row *rows;       /* [n_row]; NULL: nothing is changed */
    const logit_change *changes; /* those of all rows */
    int top;                     /* 1: the largest, the first of equals; else at most CUDA_MAX_TOP */
    float temperature;           /* top > 1 */
    float top_p, min_p;          /* 1 and 0: all of the top */
    const float *uniform;        /* [n_row] in [0, 1): top > 1 */
    int32_t *token;              /* [n_row] */
    int32_t *position;           /* [n_row], one is added; or NULL */
    int32_t *top_ids;            /* [n_row, top] from the largest on, or NULL */
    float *top_logits;           /* the same shape, or NULL */
    void *scratch;               /* sample_scratch() bytes, zeroed once before the first use */
} cuda_sample;

/* The second step of an output head in two (exec/shortlist.h): y[0] has the rows' products with the sketch,
 * estimates, and gets the head's own logits where one of the `top` largest may be, else -infinity. A panel of
 * 16 logits is computed if one of them is changed later, or if its estimate reaches the top-th largest of
 * what others have at least. The bits are those of `linear` with all of the head. */
typedef struct cuda_shortlist {
    cuda_linear head;  /* n_w 1, one matrix that sketch_takes; up to CUDA_MAX_SHORT rows, !two, adds nothing
                          and leaves nothing. `codes` of one row: in groups of 32 */
    const float *step; /* [rows of the head, rounded up to panels]: the standard deviation of an estimate's
                          error by a row of length 1 */
    int top;           /* 1..CUDA_MAX_TOP */
    const logit_row *rows;       /* [n_row]; NULL: nothing is changed */
    const logit_change *changes; /* those of all rows */
    void *scratch; /* shortlist_scratch() bytes, 256-byte aligned; its first CUDA_SHORT_HEAD zeroed once. Of
                      them bytes 8 to 24 count (uint64_t): rows, panels that were computed for them */
} cuda_shortlist;

/* QDEC: what residuals of 4 bits (quant/residual.h) give back of up to three matrices that read the same
 * rows. rows and scale are host memory as the device sees it (`map`): only what the chosen channels have is
 * fetched. Each row has channels of its own. */
typedef struct cuda_residual {
    const uint8_t *rows[3]; /* [k, step[i]], 4-byte aligned; step 0: it has none, and gets zeros */
    const float *scale[3];  /* [n[i]] */
    int64_t n[3], step[3];
    int n_w;
    int64_t n_row; /* at most CUDA_MAX_FETCH */
    const float *x;
    int64_t ldx, k, k_chunk;
    const float *norm; /* [k]: x stands for RMSNorm(x) * norm; NULL: for itself */
    float eps;
    int n_tb;    /* blocks, at most one a multiprocessor: more are cut; the bits do not depend on it */
    float *part; /* [n_row, ldp]: the parts of n[0] + n[1] + n[2] outputs */
    int64_t ldp;
    void *scratch; /* residual_scratch() bytes, 256-byte aligned, its first CUDA_FETCH_HEAD zeroed once; not
                      for two streams at once */
} cuda_residual;

/* The second pass, when both are there: y[i] += its part; gated: out = act(y[0] + part) * (y[1] + part). */
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

/* What the outliers of up to three matrices (pack_format.sparse) add to their products of the same rows, once
 * these are there: y[i] += outliers of w[i] . x; gated: out = act(y[0] + ...) * (y[1] + ...). Rows are floats
 * whatever the products make of them. A row's bits depend neither on the other rows nor on their number. */
typedef struct cuda_sparse {
    view w[3]; /* of one format and k, which is a multiple of 4 */
    int n_w;
    int64_t n_row;  /* at most CUDA_MAX_WIDE */
    const float *x; /* [n_row, ldx], 16-byte aligned rows */
    int64_t ldx;
    const float *norm; /* [k], 16-byte aligned: x stands for RMSNorm(x) * norm; NULL: for itself */
    float eps;
    float *y[3]; /* [n_row, ldy[i]] */
    int64_t ldy[3];
    bool gated; /* n_w = 2 */
    act_kind act;
    float *out; /* [n_row, ldo], gated: may be y[0] or y[1] */
    int64_t ldo;
} cuda_sparse;

typedef void *cuda_stream, *cuda_graph, *cuda_event;

/* A strategy for `linear`, or for products of many rows (`wide`). `row` says which formats and numbers of
 * columns it can compute (columns: rows, or twice as many for `two`); row.run is NULL. The first strategy is
 * the rule: `linear` computes so when no strategy is given. */
struct cuda_strategy {
    strategy row; /* the first member: a kernel_table lists it */
    int (*launch)(const cuda_linear *a,
                  cuda_stream s); /* CUDA_UNSUPPORTED: not with this k, or on this device */
    int since, before; /* compute capability (75, 80, ...): from `since` on, below `before`; 0: all */
};

/* What multiplies slices of codes on the device (kernels/dpr.h): w_bits by a_bits. */
typedef struct cuda_unit {
    const char *name;
    uint8_t w_bits, a_bits;
    int since; /* compute capability */
    /* Queues `rounds` rounds on every multiprocessor; *sink is written only if a sum is odd beyond reason. */
    int (*run)(int rounds, unsigned *sink, cuda_stream s);
    int64_t products; /* of slices: of one round, on all multiprocessors; 0 until a device was opened */
} cuda_unit;

typedef struct cuda_kernels {
    int version; /* CUDA_KERNELS_VERSION */

    /* -- the runtime -- */
    const char *(*error_text)(int error);
    int (*device_count)(int *n);
    int (*device_open)(int device, cuda_device_info *info); /* makes it this thread's device */
    int (*memory_now)(size_t *free, size_t *total);
    int (*alloc)(void **p, size_t bytes);
    int (*release)(void *p);
    int (*pin)(void *host, size_t bytes); /* copies from there wait for nothing, and are faster */
    int (*unpin)(void *host);
    int (*map)(void *host, size_t bytes,
               void **device); /* the device reads it where it is; `unpin` ends it */
    int (*to_device)(void *to, const void *host, size_t bytes, cuda_stream s);
    int (*to_host)(void *host, const void *from, size_t bytes,
                   cuda_stream s); /* pageable host memory: waits */
    int (*on_device)(void *to, const void *from, size_t bytes, cuda_stream s);
    int (*fill)(void *to, int byte, size_t bytes, cuda_stream s);
    int (*stream_new)(cuda_stream *s);
    int (*stream_free)(cuda_stream s);
    int (*stream_sync)(cuda_stream s);
    int (*stream_wait)(cuda_stream s, cuda_event e); /* what comes on s waits; in a graph s is part of it */
    int (*event_new)(cuda_event *e);
    int (*event_free)(cuda_event e);
    int (*event_record)(cuda_event e, cuda_stream s);
    int (*event_ms)(float *ms, cuda_event from, cuda_event to); /* both have happened */
    int (*graph_begin)(cuda_stream s);                          /* launches on s are recorded, not run */
    int (*graph_end)(cuda_stream s, cuda_graph *g);
    int (*graph_launch)(cuda_graph g, cuda_stream s);
    int (*graph_free)(cuda_graph g);

    /* -- kernels -- */
    /* A whole matrix between the Q-tile and the G-tile, in place. */
    int (*gtile)(const view *w, bool to_gpu, cuda_stream s);
    size_t (*linear_scratch)(int64_t n_row, int64_t k, bool two); /* bytes */
    int (*linear)(const cuda_linear *a, cuda_stream s);
    bool (*leaves_whole)(const cuda_linear *a); /* `linear` leaves codes of groups of 64 or 128 */
    int64_t (*left_rows)(const view *w); /* rows whose codes `linear` takes with such a matrix, and leaves: 1
                                            or more */
    /* `linear` for many rows, up to CUDA_MAX_WIDE: in halves with sums in floats, whatever `two` says. Rows
     * are scaled by powers of two and rounded to halves. F16 and BF16 weights are exact (wide_float.cu says
     * from which size on); with matrices of f32 rows stay floats, as `linear` has them. Leaves and takes no
     * codes; scratch is wide_scratch() bytes, with the largest k. A row's bits depend on neither the number
     * nor the place of the others, but are not those of `linear`. */
    bool (*has_wide)(void);                           /* this device has it, and `attend_prompt` */
    size_t (*wide_scratch)(int64_t n_row, int64_t k); /* bytes */
    int (*wide)(const cuda_linear *a, cuda_stream s);
    /* `linear` for the rows of many sequences that decode together: in halves with sums in floats, as `wide`,
     * for up to CUDA_MAX_ROWS rows, which take nearly the time of one. Leaves and takes no codes; scratch is
     * wide_scratch() bytes. A row's bits depend on neither the number nor the place of the others, but are
     * those of neither `linear` nor `wide`. With matrices of floats as `linear` does. */
    bool (*has_batch)(void);
    int (*batch)(const cuda_linear *a, cuda_stream s);
    int (*sparse)(const cuda_sparse *a, cuda_stream s);
    size_t (*codes_bytes)(int64_t k);
    size_t (*attend_scratch)(int64_t n_row, int64_t n_head, int64_t d_head); /* bytes */
    int (*attend)(const cuda_attend *a, cuda_stream s);
    /* The same for rows of one sequence, one position after the other, that `store` stored (codes: that
     * `pack` packed and `store` has not stored yet): n_row up to CUDA_MAX_WIDE. Uses no scratch and leaves no
     * codes. A row's bits do not depend on the others, but are not those of `attend`. Needs sm_80. */
    int (*attend_prompt)(const cuda_attend *a, cuda_stream s);
    /* Rotates the keys of n_row rows and stores keys and values. Looks at no q, no scratch and no out. Of
     * codes: into the newest pages, of a sequence's last two blocks. */
    int (*store)(const cuda_attend *a, cuda_stream s);
    /* Codes: blocks that the rows end, in codes. Before `store`, which may write over what is older than
     * the rows; `attend_prompt` likewise stands between the two. */
    int (*pack)(const cuda_attend *a, cuda_stream s);
    int (*move)(const cuda_move *a, cuda_stream s); /* what the host wrote before is there */
    int (*norm)(const cuda_norm *a, cuda_stream s);
    int (*each)(const cuda_each *a, cuda_stream s);
    int (*embed)(const cuda_embed *a, cuda_stream s);
    size_t (*residual_scratch)(int64_t n_row, int64_t k, int64_t k_chunk); /* bytes */
    int (*residual)(const cuda_residual *a, cuda_stream s);
    int (*residual_add)(const cuda_residual_add *a, cuda_stream s);
    size_t (*sample_scratch)(int64_t n_row); /* bytes */
    int (*sample)(const cuda_sample *a, cuda_stream s);

    /* Of a head that sketch_takes: the same weights in 4 bits, rounded to the nearest code of each 32 (u4g32,
     * in the G-tile order), and each row's `step`. */
    bool (*sketch_takes)(const view *head);
    int (*sketch)(const view *head, const view *sketch, float *step, cuda_stream s);
    size_t (*shortlist_scratch)(void); /* bytes */
    int (*shortlist)(const cuda_shortlist *a, cuda_stream s);

    /* -- for benchmarks -- */
    /* Reads bytes (a multiple of 16) once; *sink is written only if they are all alike. */
    int (*read_all)(const void *data, size_t bytes, unsigned *sink, cuda_stream s);
    /* Random codes and scales near `scale` for a PACK_TILE matrix with PACK_SCALE_F16. */
    int (*random_matrix)(const view *w, float scale, uint64_t seed, cuda_stream s);

    /* -- strategies (ADAngel; docs/paper-adangel.md) -- */
    /* Those of every device, the rule first; `since` and `before` say which are not this one's. */
    const cuda_strategy *(*strategies)(int *n);
    const cuda_unit *(*units)(int *n);
} cuda_kernels;

/* Those of its members that take arguments of their own type and a stream: X(member, type of its arguments).
 */
#define CUDA_LAUNCHES(X)                                                                                     \
    X(linear, cuda_linear)                                                                                   \
    X(wide, cuda_linear)                                                                                     \
    X(batch, cuda_linear)                                                                                    \
    X(sparse, cuda_sparse)                                                                                   \
    X(attend, cuda_attend)                                                                                   \
    X(attend_prompt, cuda_attend)                                                                            \
    X(store, cuda_attend)                                                                                    \
    X(pack, cuda_attend)                                                                                     \
    X(move, cuda_move)                                                                                       \
    X(norm, cuda_norm)                                                                                       \
    X(each, cuda_each)                                                                                       \
    X(embed, cuda_embed)                                                                                     \
    X(residual, cuda_residual)                                                                               \
    X(residual_add, cuda_residual_add)                                                                       \
    X(sample, cuda_sample)                                                                                   \
    X(shortlist, cuda_shortlist)

const cuda_kernels *nib_cuda_kernels(void);

#ifdef __cplusplus
}
#endif
#endif
