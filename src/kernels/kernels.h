/* kernels.h - the op table: the functions that the interpreter calls, one row of function pointers for each
 * instruction set.
 *
 * kernels_table() is filled with the scalar reference first. Then each folder under cpu/ that this processor
 * can run overrides the rows that it implements, smallest set first (NIBBLE_ISA=NAME stops at that folder).
 * Kernels use views and rows of floats, never files, tiers or architectures. They allocate nothing; the
 * caller gives them scratch memory.
 *
 * Answers do not depend on how they were computed. For one table, the bits are the same for any split of rows
 * among threads, and for a row alone or in a batch. So integer sums are exact, and every float sum has one
 * order that does not depend on the number of rows.
 *
 * A NaN or an infinity in a row affects only that row's outputs. */
#ifndef NIB_KERNELS_KERNELS_H
#define NIB_KERNELS_KERNELS_H

#include "base/cpu.h"
#include "model/program.h"
#include "quant/pack.h"
#include "quant/residual.h"
#include "kernels/salient.h"

/* Activations as small integers: symmetric, `bits` 4 or 8, one float scale for each group of 32, 64 or 128 or
 * for the whole row (PACK_GROUP_ROW). 16 bits are two rows of 8: the second has the residual of the first.
 */
typedef struct act_format {
    uint8_t bits, group;
} act_format;
/* The activation format for PACK_TILE weights: groups of 32 for weights in groups of 16 and 32, else the same
 * groups; whole rows for PACK_SCALE_TWO. bits: 4 or 8. */
act_format act_format_for(const pack_format *f, int bits);
static inline bool act_format_equal(act_format a, act_format b) {
    return a.bits == b.bits && a.group == b.group;
}

/* Rows of quantized activations with the sums that zero points and minima need, computed once and shared by
 * every product that reads them. act8.h has the layout. */
typedef struct act8 {
    const void *data; /* n_row rows, each act_row_bytes(format, k) */
    int64_t n_row, k;
    act_format format; /* act_format_for() the weights */
} act8;
size_t act_row_bytes(act_format f, int64_t k); /* at most as many as in groups of 32 */

/* An outlier: a value of a row that is far larger than the others. It stays a float, and is zero among the
 * integers. */
typedef struct outlier {
    int32_t at;
    float value;
} outlier;
enum { ACT_OUTLIERS = 16 };

/* Applied to each finished element of a product, in this order: + bias[n], then stored. */
typedef struct kernel_choice kernel_choice; /* policy.h */
/* Memory that is read soon after a product. Kernels of many rows prefetch it meanwhile, some lines at each of
 * their steps, where their own weights leave the memory idle; others leave it alone. */
enum { MAX_SOON = 512, SOON_BYTES = 4 << 20 };
typedef struct soon_list {
    int n_run, run; /* how many, and the one that is being prefetched */
    int64_t done;   /* bytes of that one */
    struct {
        const uint8_t *at;
        int64_t bytes;
    } runs[MAX_SOON];
    int64_t bytes; /* of all runs, at most SOON_BYTES: what a cache holds until it is read */
} soon_list;

typedef struct linear_args {
    const view *w;
    const kernel_choice *choice; /* which strategy, by the number of rows (PACK_TILE); NULL: by the rule */
    const float *x;              /* [n_row, ldx] floats: PACK_ROWS */
    int64_t ldx;
    act8 q;            /* the same rows as integers: PACK_TILE */
    const float *bias; /* [w->n] or NULL */
    float *y;          /* [n_row, ldy] */
    int64_t ldy;
    int64_t n_row;
    bool sliced;     /* PACK_ROWS: by the table's linear_sliced where that is faster */
    void *scratch;   /* this thread's, 64-byte aligned; linear_scratch_bytes() */
    soon_list *soon; /* this thread's; NULL: none */
} linear_args;
/* For one thread, whatever the shape and the instruction set. sliced: linear_args.sliced may be set. */
size_t linear_scratch_bytes(bool sliced);
/* The part of it that a product of n_row rows over k writes, with the strategy that the rule chooses. */
size_t linear_scratch_touched(const pack_format *f, int64_t n_row, int64_t k, bool sliced);

/* Cached keys and values of one layer, in pages of KV_BLOCK positions. The layout within a page is internal
 * to the kernels (kv_layout.h; keys are in groups of 16 positions, transposed, so that lanes are positions):
 * a page has kv_page_bytes() for the keys and as many for the values, 64-byte aligned; write with kv_store,
 * read with attend.
 *
 * f16, f32: position p of a head can be written again at any time (a shorter prefix is kept simply by
 * continuing at its end).
 *
 * kv8, kv4 (KIVI, arXiv 2402.02750: keys in groups along the positions of a channel, values along the
 * channels of a position, each group with a scale and a minimum; the newest positions in f16): positions are
 * cut in blocks of KV_BLOCK. A row at position p sees its own block in f16 and all blocks before it in their
 * 8 or 4 bits, whenever and with whatever other rows it is computed, so its bits do not depend on that. In
 * f16 there are the block of the position written last and the one before it; so
 *   - rows that are stored before a call of attend are in at most two blocks (KV_BLOCK rows always do),
 *   - once a block's last position is stored, kv_pack turns it into codes before the next block's first row
 *     is computed,
 *   - continuing at the end of a shorter prefix is possible at a multiple of KV_BLOCK, or within those
 * two. */
typedef struct kv_view {
    uint8_t *const *pages;    /* [blocks]: page i holds positions [64 i, 64 i + 64) of every layer */
    int64_t key_at, value_at; /* bytes into a page: where this layer's keys and values begin */
    type_id type;             /* TYPE_F16, TYPE_F32, TYPE_KV8 or TYPE_KV4 */
    int64_t n_kv_head, d_head;
    /* kv8, kv4: the newest positions in f16, block b in page b % 2 */
    uint8_t *const *recent;
    int64_t recent_key_at, recent_value_at;
} kv_view;
enum { KV_BLOCK = 64, KV_WINDOW = 2 * KV_BLOCK };
enum { KV_POSITIONS = 16 }; /* of keys that lie together */
static inline bool kv_is_coded(type_id type) {
    return type == TYPE_KV8 || type == TYPE_KV4;
}
/* Bytes of one layer's keys, and of its values, in one page; false on overflow. */
bool kv_page_bytes(type_id type, int64_t n_kv_head, int64_t d_head, uint64_t *bytes);
/* The part of them that is resident after the page's first n positions were written, each head's run rounded
 * up to `page`. Not for kv8 and kv4, whose pages are written whole. */
uint64_t kv_page_touched(type_id type, int64_t n_kv_head, int64_t d_head, int64_t n, uint64_t page);
/* kv8, kv4: a packed position of one head back to d_head floats; for tests. */
void kv_read(const kv_view *kv, bool is_value, int64_t head, int64_t position, float *out);

typedef struct attend_args {
    kv_view kv;
    const float *q; /* [n_row, n_head * d_head] */
    float *out;     /* the same shape */
    int64_t n_row;
    int64_t first_position; /* row i is at first_position + i and sees positions 0..first_position + i */
    int64_t n_head;
    int64_t window;
    float scale, softcap;
    float
        alibi_max_bias; /* 0: no ALiBi; head h's slope is as published, also when n_head is no power of two */
    float alibi_scale;  /* multiplies the slopes; 0 counts as 1 (Falcon-RW scales them as q.k) */
    /* [n_head]: a logit of each head that takes part in the softmax as it is, without a position and without
     * a value: weights are e^s / (sum of e^s + e^sink). NULL: there are none */
    const float *sinks;
    void *scratch;    /* this thread's, 64-byte aligned; attend_scratch_bytes(d_head) */
    const void *next; /* keys of the caller's next call, prefetched meanwhile; NULL: unknown */
} attend_args;
size_t attend_scratch_bytes(int64_t d_head);

/* Positions are attended to in spans of ATTEND_SPAN, at multiples of it, whose results are joined in order;
 * so parts of one row can be computed by several threads. A part is attend_part_floats floats, 64-byte
 * aligned. */
enum { ATTEND_SPAN = 4 * KV_BLOCK };
int64_t attend_part_floats(int64_t d_head);

typedef struct strategy strategy; /* strategy.h */
enum { KERNELS_MAX_STRATEGY = 64 };

typedef struct kernel_table {
    const char *isa; /* "ref", "avx2", "avx512", "amx": the richest folder that filled a row */
    /* Products with PACK_ROWS weights by sums of bf16 products: as exact as linear_rows, but not its bits, so
     * used only where linear_args asks for it. NULL: not in this table. */
    void (*linear_sliced)(const linear_args *a, int64_t n0, int64_t n1);
    /* Whether that is faster than linear_rows. */
    bool (*sliced_suits)(type_id type, int64_t n_row);
    size_t sliced_scratch; /* bytes of linear_args.scratch that it uses */

    /* Estimates of rows [n0, n1) of a product, from the upper half of each code (PACK_TILE, 8 bits). error
     * [n1 - n0, rounded up to 16]: the standard deviation of an estimate's error for activations of length 1.
     * NULL: not in this table, since it would be no faster than the product. */
    void (*estimate)(const linear_args *a, int64_t n0, int64_t n1, float *error);
    bool (*estimate_can)(const pack_format *f, int64_t n_row);
    /* Of each 16 of n y's (n is a multiple of 16) the largest y + reach * error. */
    void (*upper_bounds)(const float *y, const float *error, float reach, int64_t n, float *out);

    /* One row of k floats -> act_row_bytes(f, k) bytes. */
    void (*act_quantize)(act_format f, const float *x, int64_t k, void *out);
    /* The values of a row that have more than `share` of the sum of their squares each, in their order;
     * returns how many: the first ACT_OUTLIERS, where there are more. */
    int (*outliers)(const float *x, int64_t k, float share, outlier *out);
    /* Rows [n0, n1) of column k of a PACK_TILE matrix as floats, the bits of pack_read_row; n0 is a multiple
     * of 16.
     */
    void (*column)(const view *w, int64_t k, int64_t n0, int64_t n1, float *out);
    /* QDEC (salient.h): `want` channels of a chunk of n, first..., by 32 buckets of magnitude, ascending. */
    void (*salient_of)(const float *x, int n, int want, int32_t first, int32_t *out);
    /* Adds the residuals' part to outputs [n0, n1) of a product, y [n1 - n0]: the sum over the channels in
     * their order, each step a fused multiply-add, times the output's scale, added with one rounding more. n0
     * is a multiple of 16. */
    void (*residual_add)(const residual *r, const salient *from, int64_t n_from, int64_t n0, int64_t n1,
                         float *y);
    /* Rows [n0, n1) of w against all n_row rows of x. n0 and n1 are multiples of 16 (or the end). */
    void (*linear_rows)(const linear_args *a, int64_t n0, int64_t n1); /* PACK_ROWS: f32, f16, bf16 */
    /* One row of k in groups of k / n_group; w and b are f32, b may be NULL, w may be NULL (no affine part);
     * w_full: w has k entries, else k / n_group. out may be in. */
    void (*norm)(norm_kind kind, const float *x, const float *w, const float *b, float *out, int64_t k,
                 int64_t n_group, bool w_full, float eps);
    /* Rotates n_head heads of one row in place. cos_sin: n_rot/2 cosines, then n_rot/2 sines (factor
     * included). */
    void (*rope)(rope_style style, float *x, int64_t n_head, int64_t d_head, int64_t n_rot,
                 const float *cos_sin);
    /* Row of k or v ([n_kv_head * d_head] floats) into the cache at a position. */
    void (*kv_store)(const kv_view *kv, bool is_value, int64_t position, const float *row);
    /* kv8, kv4: keys or values of one head and one whole block, from f16 to codes. */
    void (*kv_pack)(const kv_view *kv, bool is_value, int64_t head, int64_t block);
    /* Heads [h0, h1) of rows [r0, r1): causal softmax attention. */
    void (*attend)(const attend_args *a, int64_t h0, int64_t h1, int64_t r0, int64_t r1);
    /* One span of a row, heads [h0, h1) of one kv head: a part for each, behind each other. The row must see
     * a position of the span. */
    void (*attend_part)(const attend_args *a, int64_t h0, int64_t h1, int64_t row, int64_t span,
                        float *parts);
    /* One part more of a head joins `total`, a part too, the spans in order; the last one writes a->out. The
     * bits are attend's. */
    void (*attend_join)(const attend_args *a, int64_t head, int64_t row, const float *part, bool is_first,
                        bool is_last, float *total);
    void (*act)(act_kind kind, const float *x, float *out, int64_t n);
    void (*gate)(act_kind kind, const float *g, const float *u, float *out, int64_t n); /* act(g) * u */
    void (*add)(const float *x, const float *y, float scale, float *out, int64_t n);    /* x + y * scale */
    void (*scale)(const float *x, float scale, float *out, int64_t n);
    void (*clamp)(const float *x, float limit, float *out, int64_t n);
    void (*softcap)(const float *x, float cap, float *out, int64_t n);

    /* How products with PACK_TILE weights can be computed, the richest folder's rows first; call linear_run.
     */
    const strategy *strategies[KERNELS_MAX_STRATEGY];
    const char *strategy_isa[KERNELS_MAX_STRATEGY]; /* the folder of each */
    int n_strategy;
} kernel_table;

/* Extracts the outliers of a row of k floats that will be quantized to `bits` bits, in ascending order.
 * Returns their number and, if there are any, writes the row without them to `without`. Depends on the row
 * alone, so the answer does not depend on the batch. */
int act_extract_outliers(const kernel_table *t, int bits, const float *x, int64_t k, float *without,
                         outlier *out);

/* The table for this processor, chosen once (NIBBLE_ISA overrides). */
const kernel_table *kernels_table(void);
/* The table as one instruction set fills it ("ref", "avx2", ...); NULL: unknown or not possible here. For
 * tests and benchmarks. */
const kernel_table *kernels_table_for(const char *isa);
const char *kernels_isa_at(int i); /* the names that can run here, poorest first; NULL after the last */

#endif
