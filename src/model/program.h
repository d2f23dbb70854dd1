/* program.h - a block as a short program: op records over a few named registers.
 *
 * The architecture descriptor and the configuration become these rows (10-25 a block), which back ends
 * execute (exec/backend.h). After this point no code depends on an architecture. A register holds one row of
 * floats for each row of the batch: [n_row, width]. The program has the registers and their widths, so
 * scratch is laid out before the first token. Every op declares the bytes and multiply-adds of one row:
 * planner, trace and benchmark read these. */
#ifndef NIB_MODEL_PROGRAM_H
#define NIB_MODEL_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

/* These registers are the same in all models. A model's programs may use more: they are declared while the
 * programs are built, and have the ids from REG_OWN on (model_n_reg). */
typedef enum reg {
    REG_X,      /* the residual stream [d_model], or several [n_stream * d_model] */
    REG_H,      /* a normed copy */
    REG_H2,     /* a second one (parallel blocks with two norms) */
    REG_Q,      /* [n_head * d_head] */
    REG_K,      /* [n_kv_head * d_head] */
    REG_V,      /* [n_kv_head * d_head] */
    REG_A,      /* attention's output, before the projection [n_head * d_head] */
    REG_O,      /* a sub-layer's output [d_model] */
    REG_G,      /* gate [d_ff] */
    REG_U,      /* up [d_ff] */
    REG_E,      /* the embedding, if its width is not d_model */
    REG_LOGITS, /* [n_vocab]; only for the rows that need it */
    REG_OWN,    /* the first that a model declares */
    REG_MAX = 32,
    REG_NONE = -1
} reg;

typedef enum op_kind {
    OP_EMBED,     /* out = row `token` of w, times scale */
    OP_EMBED_POS, /* out += row (position + pos_offset) of w */
    OP_NORM,   /* out = norm(in) * w + b, each of n_group groups of the row on its own (q/k norms: heads) */
    OP_LINEAR, /* out = in . w^T + b */
    OP_SHORTLIST, /* as OP_LINEAR for outputs that may be among the largest; the others are -infinity
                     (exec/shortlist.h) */
    OP_ROPE,      /* out = in rotated, head by head */
    OP_ATTENTION, /* out = attention(q = in, k = in2, v = in3): stores k and v in the cache, then attends.
                     in2 and in3 REG_NONE: an earlier layer has stored them */
    OP_ACT,       /* out = act(in) */
    OP_GATE,      /* out = act(in) * in2 */
    OP_ADD,       /* out = in + in2 * scale, times the sigmoid of in3, one column, if there is one */
    OP_SCALE,     /* out = in * scale */
    OP_CLAMP,     /* out = clamp(in, -limit, limit) */
    OP_SOFTCAP,   /* out = cap * tanh(in / cap) */
    OP_XIELU,     /* out = xIELU(in) (arXiv 2411.13010) */
    OP_COPY,      /* out = columns of in, group by group (u.copy); other columns of out stay */
    OP_SCALE_POS, /* out = in * (1 + value * log(1 + floor((position + offset) / every))) */
    /* Ops on whole rows (kernels/row_op.h has their formulas). */
    OP_MIX,      /* out = parts of in, mixed by the factors in2 (u.mix) */
    OP_LIKE,     /* out = each of n_group groups of in, scaled to the magnitude of in2 */
    OP_TIMES,    /* out = in * w */
    OP_SHARE,    /* out = in2 * in: one factor for each of k equal parts */
    OP_SOFTPLUS, /* out = log(1 + e^in) */
    OP_SPARSIFY, /* out = relu(in - (mean + value * standard deviation)) of the row */
    OP_CONNECT,  /* out = the factors of hyper-connections from the logits in, scales w and biases b */
    /* Ops with a recurrent state (kernels.h has their formulas). */
    OP_CONV,   /* out = short convolution of in, with the taps w */
    OP_SSD,    /* out = Mamba-2's state space of in = x|B|C and in2 = dt; w = a, b = bias of dt */
    OP_SCAN,   /* out = Mamba-1's of in = x, in2 = dt, in3 = B|C; w = a */
    OP_DELTA,  /* out = gated delta rule of in = q|k|v, in2 = beta, in3 = decay; w = a, b = bias of decay */
    OP_POOL,   /* out = entry of the n_tap positions that end at the row: in, pooled by the softmax of in2 + w
                  (kernels/entries.h); zeros at other positions */
    OP_SELECT, /* out = the chosen entries of the row: their number, then theirs in ascending order; by
                  queries in, keys in2, which it stores, and weights in3 (u.select) */
    OP_ROUTE,  /* out = the chosen experts of the row by their scores in, and their weights; b is added to
                  the scores for the choice only; w2 multiplies the weights (kernels/route.h). w: the experts
                  of each token are listed, [n_vocab, n_used] */
    OP_EXPERTS, /* out = in . w[e]^T + b[e] for the chosen experts e = in2 (u.experts) */
    OP_GROUPS,  /* out part g = in part g . w[g]^T for all n_expert groups; w[g] are n rows of w */
    OP_SPREAD,  /* out part g = in part g . w[g] for all n_expert groups; w[g] are k rows of w */
    OP_REDUCE,  /* out = in, added over all ranks in their order (exec/sums.h), in place */
    OP_COUNT
} op_kind;

typedef enum norm_kind { NORM_RMS, NORM_LAYER } norm_kind;
/* How the scores of experts come from their logits. */
typedef enum score_kind {
    SCORE_SOFTMAX = 1,
    SCORE_SIGMOID = 2,
    SCORE_SOFTMAX_LATE = 3, /* the logits choose; the softmax is over the chosen ones */
    SCORE_SQRT_SOFTPLUS = 4,
    SCORE_SIGMOID_LATE = 5 /* the logits choose; the weights are their sigmoids */
} score_kind;
typedef enum act_kind {
    ACT_SILU,
    ACT_GELU /* erf */,
    ACT_GELU_TANH,
    ACT_GELU_QUICK,
    ACT_RELU,
    ACT_RELU2,
    ACT_SWIGLU_CLAMPED, /* OP_GATE only: g = min(in, limit); g * sigmoid(alpha * g) * (clamp(in2) + 1) */
    ACT_XIELU,          /* has parameters: OP_XIELU; never the kind of OP_ACT or OP_GATE */
    ACT_NONE,           /* x itself */
    ACT_SIGMOID
} act_kind;
/* x > 0: positive * x^2 + linear * x; else negative * (expm1(min(x, limit)) - x) + linear * x. */
typedef struct xielu {
    float positive, negative, linear, limit;
} xielu;

#define SWIGLU_LIMIT 7.0f /* gpt-oss's */
#define SWIGLU_ALPHA 1.702f
typedef enum rope_style {
    ROPE_HALF,       /* pairs (i, i + n_rot/2): GPT-NeoX */
    ROPE_INTERLEAVED /* pairs (2i, 2i + 1): GPT-J */
} rope_style;

typedef struct op {
    op_kind kind;
    reg out, in, in2, in3; /* REG_NONE where not used */
    int w, b;              /* indices into the block's weights; -1: none. OP_ATTENTION: w are its sinks */
    int w2;                /* another vector: OP_SSD and OP_SCAN's d, OP_ROUTE's factors; -1: none */
    bool adds; /* OP_LINEAR, OP_EMBED, OP_MIX: adds to out instead of replacing it (second slices) */
    int64_t n; /* width of out */
    int64_t k; /* width of in */
    union {
        struct {
            norm_kind kind;
            int64_t n_group; /* 1: the whole row; n_head: each head (w is [k/n_group], or [k] when w_full) */
            bool w_full;     /* the weight has k entries although the groups are normed one by one (cohere) */
            float eps;
        } norm;
        struct {
            int table; /* which of the model's frequency tables */
            rope_style style;
            int64_t n_head, d_head, n_rot;
            int64_t at; /* the first rotated column of a head */
            bool back;  /* by the negative angle */
        } rope;
        struct {
            int layer; /* which KV layer */
            int64_t n_head, n_kv_head, d_head;
            int64_t window; /* attends to positions > p - window; 0: all */
            bool chunked;   /* instead: to those of its own chunk of `window` positions */
            float scale, softcap;
            float alibi_max_bias; /* 0: no ALiBi */
            float alibi_scale;    /* factor of the slopes; 0 means 1 */
            bool shared; /* values are the keys: only these are stored, and in3 is not read for values */
            /* Compressed attention: beside the window a row sees entries, one for `every` positions, which
             * are both keys and values. in3 has the entry that ends at the row, and values are the keys. */
            int64_t every;   /* 0: there are none */
            int64_t d_index; /* width of the keys by which OP_SELECT chooses entries; 0: a row sees all */
            reg chosen;      /* OP_SELECT's output [1 + n_chosen]; unused if d_index is 0 */
            int64_t n_chosen;
        } attn;
        struct {
            int layer; /* of the attention whose entries are chosen */
            int64_t n_head, d_head, n_used;
            float scale;
        } select;
        struct {
            act_kind kind;
        } act;
        struct {
            int64_t at;    /* floats into the sequence's state where that of the op begins */
            int64_t n_tap; /* OP_CONV */
            bool silu;     /* OP_CONV: an activation follows the sum */
            int64_t n_head, n_group, d_head, d_state; /* of values; of B and C, or q and k; of both */
            float dt_min, dt_max;                     /* OP_SSD */
            bool by_channel, tiled;                   /* OP_DELTA (delta_args) */
        } rec;
        struct {
            float value;    /* OP_EMBED, OP_ADD, OP_SCALE, OP_SCALE_POS, OP_SPARSIFY: factor; OP_CLAMP,
                               OP_SOFTCAP: limit; OP_LIKE: least mean square of a group of in; OP_CONNECT:
                               epsilon */
            int64_t offset; /* OP_EMBED_POS: see there; OP_LIKE: width of in2; OP_EMBED: first column of the
                               row, which has k columns if k is not 0; OP_CONNECT: streams */
            int64_t every;  /* OP_SCALE_POS; OP_LIKE: groups of in; OP_CONNECT: iterations */
        } num;
        xielu xielu;
        struct { /* out: [2 * n_used], the ids of the chosen experts in ascending order, then their weights */
            score_kind score;
            int64_t n_used;
            int64_t n_group, group_used; /* only experts of the best group_used groups are chosen */
            int group_best;              /* a group counts as the sum of its best group_best experts */
            bool normalise;              /* the weights have the sum 1 */
            float scale;
        } route;
        struct { /* w: the matrices of all experts one under the other, each [n, k], padded to whole panels */
            int64_t n_expert, n_used;
            int64_t n, k; /* outputs and inputs of one expert, or of one group */
            bool each;    /* in has n_used parts of k, one for each chosen expert; else all read the same k */
            bool sum;     /* out is the sum over the chosen experts; else it has n_used parts of n */
            bool weighted; /* an expert's output is multiplied by its weight */
        } experts;
        struct { /* parts of d columns: out[first + i] = sum over j < n_in of f(i, j) * in[j], with f(i, j) =
                    plus + in2[at + i * step_out + j * step_in], in2 REG_NONE: plus; adds: and out[first + i]
                  */
            int64_t n_out, n_in, d, first;
            int64_t at, step_out, step_in, width; /* width: of in2 */
            float plus;
        } mix;
        struct { /* n columns of each group, from in's at_in + i * step_in to out's at + i * step; then zeros
                  */
            int64_t n_group, n;
            int64_t at_in, step_in, at, step;
            int64_t n_zero;
        } copy;
    } u;
    struct {         /* rewrites (fuse.c): hints that change no answer; an interpreter may ignore them */
        int n_codes; /* OP_NORM: the next n_codes ops are products and the only readers of `out`; if they read
                        quantized rows, the floats need not be stored. 0: store them */
        int n_join;  /* OP_LINEAR: the next n_join products, this one included, read the same input; 0: only
                        this one */
        int n_tail;  /* OP_LINEAR: number of element-wise ops after those products, with the same columns: the
                        thread that computes some columns executes all of them for these columns */
        bool feeds_cache; /* the op contributes to the KV cache or to a recurrent state, or is OP_ATTENTION;
                             cache_only rows need only these ops */
    } fuse;
    struct {
        uint64_t weight_bytes; /* in the resident format, for one row; op_weight_bytes: for several */
        uint64_t macs;      /* multiply-adds for one row (attention: for one row and one cached position) */
        uint64_t act_bytes; /* activations read and written for one row (attention: KV bytes a position) */
    } cost;
} op;

enum { PROGRAM_MAX_OP = 128 }; /* of one block, second slices included */

typedef struct program {
    const op *ops;
    int n_op;
} program;

/* Whether the op writes all columns of its output. */
static inline bool op_writes_all(const op *o) {
    return !o->adds && o->kind != OP_EMBED_POS && o->kind != OP_COPY && o->kind != OP_MIX;
}
/* Whether the op stores keys, or keys and values. */
static inline bool op_stores(const op *o) {
    return (o->kind == OP_ATTENTION && o->in2 != REG_NONE) || o->kind == OP_SELECT;
}
void op_copy_row(const op *o, const float *in, float *out); /* OP_COPY */
/* OP_SCALE_POS: the factor at a position, in single precision like the reference implementations. */
float op_position_scale(const op *o, int64_t position);
/* Width of in2 of an op with a recurrent state or on whole rows; of in3 with a recurrent state. */
static inline int64_t op_width2(const op *o) {
    switch (o->kind) {
    case OP_SSD:
    case OP_DELTA: return o->u.rec.n_head;
    case OP_POOL: return o->k;
    case OP_SELECT: return o->u.select.d_head;
    case OP_MIX: return o->u.mix.width;
    case OP_LIKE: return o->u.num.offset;
    default: return o->n;
    }
}
static inline int64_t op_width3(const op *o) {
    return o->kind == OP_SCAN ? 2 * o->u.rec.d_state
                              : o->u.rec.n_head * (o->u.rec.by_channel ? o->u.rec.d_state : 1);
}
/* Whether the op has a part of a sequence's recurrent state, and how many floats it has. */
static inline bool op_is_recurrent(op_kind kind) {
    return kind == OP_CONV || kind == OP_SSD || kind == OP_SCAN || kind == OP_DELTA || kind == OP_POOL;
}
static inline int64_t op_state(const op *o) {
    switch (o->kind) {
    case OP_CONV: return (o->u.rec.n_tap - 1) * o->n;
    case OP_SSD:
    case OP_SCAN:
    case OP_DELTA: return o->n * o->u.rec.d_state;
    case OP_POOL: return 3 * o->k; /* of each sum its largest logit, its weight and the sum itself */
    default: return 0;
    }
}
enum { ENTRY_PAGE = 64 }; /* positions of a page of keys and values (KV_BLOCK) */
/* Bounds of a mixture, and of OP_MIX's parts. */
enum { ROUTE_MAX_EXPERT = 1024, ROUTE_MAX_USED = 64, MIX_MAX = 16, ROPE_MAX = 1 << 10 };

/* Whether the op multiplies by a matrix, which is read as a whole or expert by expert. */
static inline bool op_is_product(const op *o) {
    return o->kind == OP_LINEAR || o->kind == OP_EXPERTS || o->kind == OP_GROUPS || o->kind == OP_SPREAD;
}
/* Whether its inputs and outputs are those of several matrices (u.experts). */
static inline bool op_is_stacked(const op *o) {
    return o->kind == OP_EXPERTS || o->kind == OP_GROUPS || o->kind == OP_SPREAD;
}
/* The bytes of weights that the op reads for n_row rows together. Most ops read the same for any number. Of
 * experts the number is expected, for choices without preference. */
double op_weight_bytes(const op *o, double n_row);

const char *op_name(op_kind kind); /* static; "linear", "attention", ... */

#endif
