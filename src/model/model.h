/* model.h - a container read through its architecture descriptor: blocks of weights and their programs.
 *
 * Opening reads headers only (a fraction of a second for any size) and checks every tensor's name, shape and
 * type against the configuration. Block 0 is the embedding, blocks 1..n_layer are the layers, and the last
 * one is the output head. Read-only afterwards: blocks are as in the file. A plan's formats, left-out layers
 * and derived programs belong to a layout (layout.h). */
#ifndef NIB_MODEL_MODEL_H
#define NIB_MODEL_MODEL_H

#include "base/log.h"
#include "formats/container.h"
#include "model/program.h"
#include "numbers/pack.h"

typedef struct hparams {
#define HP_I(field, meaning) int64_t field;
#define HP_F(field, meaning) double field;
#define HP_B(field, meaning) bool field;
#include "model/hparams.def"
#undef HP_I
#undef HP_F
#undef HP_B
} hparams;

/* A run of rows of one file tensor. A vector counts as rows of one element. */
typedef struct weight_piece {
    const container_tensor *tensor;
    int64_t first_row, n_row;
} weight_piece;

/* One resident matrix or vector: the rows of its pieces, one under the other. So loading splits fused
 * projections (or fuses split ones) and reorders interleaved rows, and kernels need not know. */
typedef struct weight {
    const char *name;          /* slot, as in the descriptor: "q", "attn_norm", ... */
    int64_t n, k;              /* rows (outputs) and columns; a vector is [1, k] in f32 */
    int64_t k_file, first_col; /* of a matrix: the file's rows have k_file columns, of which this one has k
                                  from first_col on (share.c); k_file 0: all */
    int64_t n_expert; /* > 1: a stack of the matrices of this many experts, n / n_expert rows each; packed,
                         each begins at a page (page_layout.h) */
    type_id type;     /* of the pieces, all of one type */
    pack_format format;
    uint64_t bytes; /* resident, pack_bytes */
    const weight_piece *pieces;
    int n_piece;
    pack_format over; /* bits > 0: the second slice of a stack: the residual of weight first_slice of its
                         block in this format; an op of its own adds its product */
    int first_slice;
    int64_t expert_n;  /* outputs of an expert; the rows behind them, up to a whole panel, are not used */
    bool exact;        /* stays in the file's format (a router) */
    uint8_t n8;        /* the file's advice for 4-bit activations: leading blocks of 128 inputs in 8 bits */
    bool uses_imatrix; /* rounding weights errors by an imatrix: a format with the suffix w */
    const float *imatrix; /* [k] mean squares of the inputs, owned by the engine; NULL: none (yet) */
    bool plain;           /* rounding does not search for scales (pack_from.plain) */
    bool vector;          /* norms, biases: resident as f32 */
    const float *times;   /* [k] of a vector: factors of its elements; NULL: none */
    bool minus_exp;       /* of a vector: the file has x, and -e^x is held */
    int64_t n_col;        /* of a vector that is a table in GGUF: its columns; 0: it has one dimension */
    bool transposed;      /* the file has [k, n] (GPT-2's Conv1D): pieces give columns first_row... */
    float add;            /* added to every element of a vector (Gemma's 1 + w in safetensors) */
    int shared_block; /* >= 0: this weight is weight shared_index of that block (a tied head); no bytes of its
                         own */
    int shared_index;
} weight;

/* Columns of a matrix's rows in the file. */
static inline int64_t weight_file_k(const weight *w) {
    return w->k_file ? w->k_file : w->k;
}
static inline bool weight_is_second(const weight *w) {
    return w->over.bits > 0;
}
/* Whether the matrix has another format than the packed format of the file's type: packed blocks keep their
 * type, and floats stay PACK_ROWS. */
static inline bool weight_is_rounded(const weight *w) {
    return !w->vector && w->format.layout == PACK_TILE && w->format.type == TYPE_F32;
}

typedef struct block {
    const char *name; /* "embed", "layer.0", ..., "head" */
    int layer;        /* -1: none */
    const weight *weights;
    int n_weight;
    program program;
    uint64_t bytes; /* resident bytes of its own weights, each rounded up to 64 */
} block;

typedef struct model model;

/* path: a .gguf file or a folder (names from the models folder are resolved above). NIB_E_MODEL names the
 * tensor or key with what was expected and found; an unknown architecture lists the known ones. */
nib_status model_open(const char *path, const logger *log, model **out, nib_error *err);
/* The same without the vocabulary (container_open_headers). wide: for a back end that lacks them, matrices
 * with integer zeros are held without them (pack_widen). */
nib_status model_open_headers(const char *path, const logger *log, const container_visitor *vocabulary,
                              bool wide, model **out, nib_error *err);
/* The same for one rank of several that share every layer (share.c). NIB_E_USAGE names a layer that cannot be
 * shared, or not by so many. */
typedef struct model_share {
    int rank, n; /* n 0 or 1: the whole model */
} model_share;
nib_status model_open_share(const char *path, const logger *log, const container_visitor *vocabulary,
                            bool wide, model_share share, model **out, nib_error *err);
/* Opens the head that predicts later tokens alone (model_ahead). NIB_E_USAGE: the model has none. */
nib_status model_open_ahead(const char *path, const logger *log, const container_visitor *vocabulary,
                            bool wide, model **out, nib_error *err);
void model_close(model *m); /* NULL is fine */

const char *model_arch(const model *m); /* the descriptor's name */
const char *model_name(const model *m);
const hparams *model_hparams(const model *m);
/* The head that predicts later tokens, as a model of one layer with the same container; NULL: there is none.
 * A pass of it gets the states of positions as its residual stream (ahead.c). */
const model *model_ahead(const model *m);
bool model_is_ahead(const model *m); /* the model is such a head */
/* Resident bytes of the head's weights; own: without those that are the model's too. 0: there is none. */
uint64_t model_ahead_bytes(const model *m, bool own);
const container *model_container(const model *m);
/* The same for the owner of the model, who may free the vocabulary (container_drop_vocab) when a tokenizer
 * has been built from it. Nothing else of a model changes after it was opened. */
container *model_files(model *m);
int model_n_block(const model *m);
const block *model_block(const model *m, int i);
int model_n_reg(const model *m);                /* registers of its programs: ids below it, at most REG_MAX */
int64_t model_reg_width(const model *m, reg r); /* the widest use in any block; 0: not used */
int model_n_kv_layer(const model *m);           /* layers that store keys and values */
/* Widths of one position's keys and values in KV layer i. */
void model_kv_widths(const model *m, int kv_layer, int64_t *k_width, int64_t *v_width);
uint64_t model_state_bytes(const model *m); /* of one sequence's recurrent state; 0: no layer has one */
uint64_t model_heap_bytes(const model *m);  /* for the ledger */
uint64_t model_n_param(const model *m);     /* number of weights */

/* Rotary tables. Frequencies may depend on how long the sequence is (dynamic NTK, longrope): `length` is the
 * number of positions of the whole pass, and all rows of that pass use its frequencies, as in HF
 * transformers. Writes n_rot/2 inverse frequencies and the factor for cos and sin. */
int model_n_rope(const model *m);                  /* number of tables */
int64_t model_rope_dim(const model *m, int table); /* n_rot */
void model_rope_freqs(const model *m, int table, int64_t length, float *inv_freq, float *factor);
/* Whether keys that were cached while a sequence had at most `longest` positions are still valid at `length`
 * positions. extends: the new rows follow the cached ones, rather than replacing their end. As in HF
 * transformers: longrope's keys are computed again when the sequence exceeds the original context; dynamic
 * NTK's stay as they were. */
bool model_rope_keeps(const model *m, int64_t longest, int64_t length, bool extends);
int64_t model_rope_behind(const model *m, int table); /* angles are of so many positions before the row */
bool model_rope_varies(const model *m, int table);    /* frequencies depend on length */

#endif
