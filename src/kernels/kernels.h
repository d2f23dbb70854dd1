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
#include "numbers/pack.h"
#include "numbers/residual.h"
#include "kernels/salient.h"

/* Activations as small integers: symmetric, `bits` 4 or 8, one float scale for each group of 32, 64 or 128 or
 * for the whole row (PACK_GROUP_ROW). 16 bits are two rows of 8: the second has the residual of the first.
 * With 4 bits the first n8 blocks of 128 channels have 8 (COMET's FMPQ, section 3.2). */
typedef struct act_format {
    uint8_t bits, group;
    uint8_t n8;      /* 4 bits: number of leading blocks of ACT_BLOCK channels that have 8 */
    uint8_t rotated; /* as pack_format.rotated: the row is transformed before it is quantized */
} act_format;
enum { ACT_BLOCK = 128 };
/* The activation format for PACK_TILE weights: groups of 32 for weights in groups of 16 and 32, else the same
 * groups; whole rows for PACK_SCALE_TWO. bits: 4 or 8. */
act_format act_format_for(const pack_format *f, int bits, int n8);
static inline bool act_format_equal(act_format a, act_format b) {
    return a.bits == b.bits && a.group == b.group && a.n8 == b.n8 && a.rotated == b.rotated;
}

/* Rows of quantized activations with the sums that zero points and minima need, computed once and shared by
 * every product that reads them. act8.h has the layout. */
typedef struct act8 {
    const void *data; /* n_row rows, each act_row_bytes(format, k) */
    int64_t n_row, k;
    act_format format; /* act_format_for() the weights */
} act8;
size_t act_row_bytes(act_format f, int64_t k); /* bytes of a row of k; never more than in groups of 32 */

/* An outlier: element `at` of a row is far larger than the others. It stays a float, and its code is 0. */
typedef struct outlier {
    int32_t at;
    float value;
} outlier;
enum { ACT_OUTLIERS = 16 };

typedef struct kernel_choice kernel_choice; /* kernel_map.h */
/* Ranges of memory to prefetch during products, because a later op reads them. Kernels for many rows prefetch
 * two lines at each of their steps (a group of the weights): one of the list, and one of the next weights as
 * far as there are any. Other kernels ignore it. */
enum { MAX_PREFETCH_RANGES = 512, PREFETCH_BYTES = 4 << 20 };
typedef struct prefetch_list {
    int n_run, run; /* number of ranges; the range that is being prefetched */
    int64_t done;   /* bytes of that range that are prefetched already */
    struct {
        const uint8_t *at;
        int64_t bytes;
    } runs[MAX_PREFETCH_RANGES];
    int64_t bytes; /* of ranges `run` and later; at most PREFETCH_BYTES */
    bool twice;    /* two of the list, where no weights are left to prefetch */
} prefetch_list;

/* One product: y = x . w^T + bias. */
typedef struct linear_args {
    const view *w;
    const kernel_choice *choice; /* PACK_TILE: the strategy for each number of rows; NULL: by the rule */
    const float *x;              /* PACK_ROWS: [n_row, ldx] floats */
    int64_t ldx;
    act8 q;            /* PACK_TILE: the same rows as integers */
    const float *bias; /* [w->n], added last; NULL: none */
    float *y;          /* [n_row, ldy] */
    int64_t ldy;
    int64_t n_row;
    bool sliced;             /* PACK_ROWS: may use the table's linear_sliced, if that is faster */
    void *scratch;           /* this thread's own, 64-byte aligned, of linear_scratch_bytes() */
    prefetch_list *prefetch; /* this thread's own list; NULL: none */
    int64_t ahead; /* kernels for few rows: bytes from the weights that are read to those that are prefetched;
                      0: a distance for the maker of the processor */
} linear_args;
/* Activations for kernel_table.estimate: their format, with codes plus 128. estimate_row writes
 * act_row_bytes(ESTIMATE_ACT, k) bytes from a row of codes of 8 bits. It returns the length for which the
 * errors of estimates are those of this row: its own length, and more for the rounding of its new codes. NaN:
 * the row has a scale that is not finite. */
#define ESTIMATE_ACT ((act_format){.bits = 8, .group = PACK_GROUP_ROW})
float estimate_row(act_format f, const void *row, int64_t k, void *out);
/* Bytes of scratch for one thread, enough for every shape and instruction set. sliced: linear_args.sliced may
 * be set. */
size_t linear_scratch_bytes(bool sliced);
/* Bytes of the scratch that a product of n_row rows over k writes with the strategy that the rule chooses. */
size_t linear_scratch_touched(const pack_format *f, int64_t n_row, int64_t k, bool sliced);

/* Cached keys and values of one layer, in pages of KV_BLOCK positions. The layout within a page is internal
 * to the kernels (kv_layout.h): keys are in groups of 16 positions, transposed, so that lanes are positions.
 * A page has kv_page_bytes() for the keys and as many for the values, 64-byte aligned; if these are the keys
 * (kv_view.shared), for the keys only. kv_store writes it,
 * attend reads it.
 *
 * f16, f32: a position of a head may be written again at any time. So a caller that keeps a shorter prefix
 * just continues at its end.
 *
 * kv8, kv4 (KIVI, arXiv 2402.02750): keys have groups along the positions of a channel, values along the
 * channels of a position. Each group has a scale and a minimum. The newest positions are in f16. Positions
 * are cut into blocks of KV_BLOCK. A row sees its own block in f16 and all earlier blocks in 8 or 4 bits, at
 * whatever time and with whatever other rows it is computed, so these do not change its bits. The cache has
 * one block in f16: that of the position written last. So
 *   - rows that are stored before a call of attend are in one block,
 *   - once a block's last position is stored, kv_pack turns it into codes before the next block's first row
 *     is stored,
 *   - continuing at the end of a shorter prefix is possible at a multiple of KV_BLOCK, or within that
 *     block. */
typedef struct kv_view {
    uint8_t *const *pages;    /* [blocks]: page i holds positions [64 i, 64 i + 64) of every layer */
    int64_t key_at, value_at; /* bytes into a page: where this layer's keys and values begin */
    type_id type;             /* TYPE_F16, TYPE_F32, TYPE_KV8 or TYPE_KV4: a kv_code_type */
    int64_t n_kv_head, d_head;
    bool shared;  /* values are the keys; value_at is key_at */
    bool rotated; /* kv8h, kv4h: values are transformed (kv_layout.h) before they are stored, and outputs are
                     transformed back. The processor's kernels only */
    bool first;   /* kv4s: page 0 has position 0 in f16 (kv_layout.h). The processor's kernels only */
    uint8_t *recent; /* kv8, kv4: the newest block in f16, a page of its own */
    int64_t recent_key_at, recent_value_at;
    /* Compressed attention (kernels/entries.h): the layer's entries and their index keys */
    uint8_t *const
        *entry_pages; /* [blocks]; other memory than `pages` if that has a window's positions only */
    int64_t entry_at, index_at; /* bytes into a page */
    int64_t every, d_index;     /* positions of an entry, 0: there are none; width of an index key */
} kv_view;
enum { KV_BLOCK = 64 };
enum { KV_POSITIONS = 16 }; /* positions whose keys are stored together */
/* Rows of a layer with a window are stored and attended to at most so many at a time (state/kv_slide.h). */
enum { KV_ROWS = 2 * KV_BLOCK };
static inline bool kv_is_coded(type_id type) {
    return type >= TYPE_KV8 && type <= TYPE_KV4S;
}
/* Codes that the processor's kernels alone read. */
static inline bool kv_is_hosted(type_id type) {
    return kv_is_coded(type) && type != TYPE_KV8 && type != TYPE_KV4;
}
/* Whether values are rotated (kv_view.rotated), and the type of the codes. */
static inline bool kv_is_rotated(type_id type) {
    return type == TYPE_KV8H || type == TYPE_KV4H;
}
static inline type_id kv_code_type(type_id type) {
    return type == TYPE_KV8H ? TYPE_KV8 : type == TYPE_KV4H || type == TYPE_KV4S ? TYPE_KV4 : type;
}
/* Gives the bytes that one layer's keys take in a page; its values take as many. false: the number
 * overflows. */
bool kv_page_bytes(type_id type, int64_t n_kv_head, int64_t d_head, uint64_t *bytes);
/* The bytes of a layer's keys, or of its values, that are resident after the first n positions of a KV page
 * were written. Each head's bytes are rounded up to `page`, the system's page size. Not for kv8 and kv4,
 * whose pages are written as a whole. */
uint64_t kv_page_touched(type_id type, int64_t n_kv_head, int64_t d_head, int64_t n, uint64_t page);

typedef struct attend_args {
    kv_view kv;
    const float *q; /* [n_row, n_head * d_head] */
    float *out;     /* the same shape */
    int64_t n_row;
    int64_t first_position; /* row i is at first_position + i and sees positions 0..first_position + i */
    int64_t n_head;
    int64_t window;
    bool chunked; /* positions are cut into chunks of `window`: a row sees those of its own chunk */
    float scale, softcap;
    float alibi_max_bias; /* 0: no ALiBi. A head's slope is the published one, also if n_head is no power of
                             two */
    float alibi_scale;    /* multiplies the slopes; 0 counts as 1 (Falcon-RW scales them like q.k) */
    /* [n_head]: one logit for each head, which takes part in the softmax without a position and without a
     * value: weights are e^s / (sum of e^s + e^sink). NULL: there are no sinks */
    const float *sinks;
    /* Sparse attention (FlexGen, section 5): a row reads the values of its newest position and of those with
     * the largest weights, this share of all that it sees, rounded up; of equal ones the earlier. 0: of all.
     * For `attend` alone, and values that are not the keys */
    float top;
    bool top_raw;     /* the weights are those among all positions; false: those among the chosen ones */
    void *scratch;    /* this thread's, 64-byte aligned; attend_scratch_bytes, and with `top`
                         attend_top_bytes of the positions */
    const void *next; /* keys that the caller's next call reads; they are prefetched. NULL: unknown */
} attend_args;
size_t attend_scratch_bytes(int64_t d_head, bool coded); /* coded: a cache in codes */
size_t attend_top_bytes(int64_t n_position);

/* Attention cuts the positions into spans of ATTEND_SPAN, at multiples of it, and joins the results of the
 * spans in order. So several threads can compute parts of one row. A part is the result of one span and one
 * head: attend_part_floats() floats, 64-byte aligned. */
enum { ATTEND_SPAN = 4 * KV_BLOCK };
int64_t attend_part_floats(int64_t d_head);

/* Ops with a recurrent state. A call has rows of one sequence in the order of their positions. `state` is the
 * op's part of the sequence's state; it is read and then replaced by the state after the last row. begins:
 * the first row is at position 0, so the state counts as zeros and is not read. Rows have the same bits in
 * one call or in several. */
enum { CONV_MAX = 8, SCAN_MAX_STATE = 256, DELTA_MAX = 512 };

/* A causal convolution of each channel with its own k taps: out = sum of the last k inputs, weighted. */
typedef struct conv_args {
    const float *x; /* [n_row, ldx], n channels */
    float *out;     /* [n_row, ldo] */
    int64_t ldx, ldo, n_row, n;
    int k;             /* taps, at most CONV_MAX */
    const float *w;    /* [n, k], the tap of the newest input last */
    const float *bias; /* [n]; NULL: none */
    bool silu;         /* out = silu(sum) */
    bool begins;
    float *state; /* [k - 1, n]: the last inputs, the newest last */
} conv_args;

/* Mamba-2 (Dao and Gu 2024, section 2): for each head, with dt = softplus(dt + dt_bias) limited to
 * [dt_min, dt_max]: S = e^(a dt) S + dt x B^T, out = S C + d x. */
typedef struct ssd_args {
    const float *x;  /* [n_row, ldx]: x [n_head, d_head], then B and C [n_group, n_state] */
    const float *dt; /* [n_row, ld_dt]: [n_head] */
    float *out;      /* [n_row, ldo]: [n_head, d_head] */
    int64_t ldx, ld_dt, ldo, n_row, n_head, n_group, d_head, n_state;
    const float *a, *dt_bias, *d; /* [n_head]; a is negative */
    float dt_min, dt_max;
    bool begins;
    float *state; /* [n_head, n_state, d_head] */
} ssd_args;

/* Mamba-1 (Gu and Dao 2023, algorithm 2): as SSD, but each channel has its own dt and a [n_state]. */
typedef struct scan_args {
    const float *x, *dt, *b, *c; /* [n_row, ld]: [n], [n] with its bias, [n_state], [n_state] */
    float *out;                  /* [n_row, ldo]: [n] */
    int64_t ldx, ld_dt, ld_b, ld_c, ldo, n_row, n, n_state;
    const float *a, *d; /* [n, n_state], negative; [n] */
    bool begins;
    float *state; /* [n_state, n] */
} scan_args;

/* The gated delta rule (Yang et al. 2024, equation 10): for each head, with k and q of length 1 (q times
 * 1/sqrt(d_k)), beta = sigmoid(beta) and g = e^(a softplus(decay + dt_bias)): S = g S, then
 * S += k (beta (v - S^T k))^T, out = S^T q. by_channel (KDA): each row of S has its own g. */
typedef struct delta_args {
    const float *x;            /* [n_row, ldx]: q and k [n_k_head, d_k], then v [n_head, d_v] */
    const float *beta, *decay; /* [n_row, ld_beta]: [n_head]; [n_row, ld_decay]: [n_head] or [n_head, d_k] */
    float *out;                /* [n_row, ldo]: [n_head, d_v] */
    int64_t ldx, ld_beta, ld_decay, ldo, n_row, n_head, n_k_head, d_k, d_v;
    const float *a, *dt_bias; /* [n_head], negative; as decay */
    bool by_channel;
    bool tiled; /* head h has the q and k of h % n_k_head; otherwise of h / (n_head / n_k_head) */
    bool begins;
    float *state; /* [n_head, d_k, d_v] */
} delta_args;

typedef struct strategy strategy; /* strategy.h */
enum { KERNELS_MAX_STRATEGY = 64 };

typedef struct kernel_table {
    const char *isa; /* "ref", "avx2", "avx512", "amx", ...: the largest instruction set that filled a row */
    /* Products with PACK_ROWS weights by sums of bf16 products. They are as exact as linear_rows but have
     * other bits, so linear_args.sliced must ask for them. NULL: not in this table. */
    void (*linear_sliced)(const linear_args *a, int64_t n0, int64_t n1);
    /* Whether linear_sliced is faster than linear_rows. */
    bool (*sliced_suits)(type_id type, int64_t n_row);
    size_t sliced_scratch; /* bytes of linear_args.scratch that linear_sliced uses */

    /* Estimates of rows [n0, n1) of a product, from the upper half of each code (PACK_TILE, 8 bits) and from
     * activations that estimate_row wrote. error [n1 - n0, rounded up to 16]: the standard deviation of an
     * estimate's error, for activations of length 1. NULL: not in this table, since it would be no faster
     * than the product. */
    void (*estimate)(const linear_args *a, int64_t n0, int64_t n1, float *error);
    bool (*estimate_can)(const pack_format *f, int64_t n_row);
    /* out[i] is the largest y + reach * error among y[16 i] to y[16 i + 15]. n is a multiple of 16. Returns
     * the largest of all. */
    float (*upper_bounds)(const float *y, const float *error, float reach, int64_t n, float *out);

    /* Quantizes one row of k floats to act_row_bytes(f, k) bytes. */
    void (*act_quantize)(act_format f, const float *x, int64_t k, void *out);
    /* Writes the values of a row that each have more than `share` of the row's sum of squares, in ascending
     * order of `at`. Returns how many. If there are more than ACT_OUTLIERS, only the first of them count. */
    int (*outliers)(const float *x, int64_t k, float share, outlier *out);
    /* Rows [n0, n1) of column k of a PACK_TILE matrix as floats, with the bits of pack_read_row. n0 is a
     * multiple of 16. */
    void (*column)(const view *w, int64_t k, int64_t n0, int64_t n1, float *out);
    /* QDEC (salient.h): selects `want` of the n channels of a chunk by 32 buckets of magnitude. Writes their
     * numbers to out, ascending; the chunk's first channel has the number `first`. */
    void (*salient_of)(const float *x, int n, int want, int32_t first, int32_t *out);
    /* Adds the contribution of the residuals to outputs [n0, n1) of a product, y [n1 - n0]. It is the sum
     * over the channels in their order, by fused multiply-adds, times the output's scale. Adding it to y
     * rounds once more. n0 is a multiple of 16. */
    void (*residual_add)(const residual *r, const salient *from, int64_t n_from, int64_t n0, int64_t n1,
                         float *y);
    /* Rows [n0, n1) of w against all n_row rows of x. n0 and n1 are multiples of 16 (or the end). */
    void (*linear_rows)(const linear_args *a, int64_t n0, int64_t n1); /* PACK_ROWS */
    /* Normalises one row of k in n_group groups. w and b are f32. b may be NULL, and w may be NULL (no affine
     * part). w_full: w has k entries, otherwise k / n_group. out may be x. */
    void (*norm)(norm_kind kind, const float *x, const float *w, const float *b, float *out, int64_t k,
                 int64_t n_group, bool w_full, float eps);
    /* Rotates n_head heads of one row in place. cos_sin: n_rot/2 cosines, then n_rot/2 sines, with the
     * attention factor included. */
    void (*rope)(rope_style style, float *x, int64_t n_head, int64_t d_head, int64_t n_rot,
                 const float *cos_sin);
    /* Stores a row of k or v ([n_kv_head * d_head] floats) in the cache at a position. */
    void (*kv_store)(const kv_view *kv, bool is_value, int64_t position, const float *row);
    /* kv8, kv4: quantizes the keys or values of one head and one whole block from f16 to codes. */
    void (*kv_pack)(const kv_view *kv, bool is_value, int64_t head, int64_t block);
    /* Heads [h0, h1) of rows [r0, r1): causal softmax attention. */
    void (*attend)(const attend_args *a, int64_t h0, int64_t h1, int64_t r0, int64_t r1);
    /* Computes one span of a row for heads [h0, h1), which share a KV head. Writes one part for each head,
     * one after the other. The row must see a position of the span. */
    void (*attend_part)(const attend_args *a, int64_t h0, int64_t h1, int64_t row, int64_t span,
                        float *parts);
    /* Joins a part of a head to `total`, which is also a part. Spans are joined in order; the last one writes
     * a->out. The bits are those of attend. */
    void (*attend_join)(const attend_args *a, int64_t head, int64_t row, const float *part, bool is_first,
                        bool is_last, float *total);
    void (*act)(act_kind kind, const float *x, float *out, int64_t n);
    void (*gate)(act_kind kind, const float *g, const float *u, float *out, int64_t n); /* act(g) * u */
    void (*add)(const float *x, const float *y, float scale, float *out, int64_t n);    /* x + y * scale */
    void (*scale)(const float *x, float scale, float *out, int64_t n);
    void (*clamp)(const float *x, float limit, float *out, int64_t n);
    void (*softcap)(const float *x, float cap, float *out, int64_t n);
    void (*xielu)(const xielu *by, const float *x, float *out, int64_t n);
    /* Channels [c0, c1), or heads [h0, h1), of all rows. */
    void (*conv)(const conv_args *a, int64_t c0, int64_t c1);
    void (*ssd)(const ssd_args *a, int64_t h0, int64_t h1);
    void (*scan)(const scan_args *a, int64_t c0, int64_t c1);
    void (*delta)(const delta_args *a, int64_t h0, int64_t h1);

    /* The strategies for products with PACK_TILE weights, those of the largest instruction set first. Call
     * linear_run. */
    const strategy *strategies[KERNELS_MAX_STRATEGY];
    const char *strategy_isa[KERNELS_MAX_STRATEGY]; /* the folder of each strategy */
    int n_strategy;
} kernel_table;

/* Finds the outliers of a row of k floats that will be quantized to `bits` bits, in ascending order. Returns
 * their number. If there are any, writes the row with zeros in their place to `without`, which may be x. The
 * result depends on the row alone, so an answer does not depend on the batch. */
int act_extract_outliers(const kernel_table *t, int bits, const float *x, int64_t k, float *without,
                         outlier *out);

/* The table for this processor, chosen once (NIBBLE_ISA overrides). */
const kernel_table *kernels_table(void);
/* The table as one instruction set fills it ("ref", "avx2", ...); NULL: unknown or not possible here. For
 * tests and benchmarks. */
const kernel_table *kernels_table_for(const char *isa);
/* The instruction sets that can run here, smallest first; NULL after the last. */
const char *kernels_isa_at(int i);

#endif
