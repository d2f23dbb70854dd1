/* binder.h - binding of one block's slots to tensors; shared by tensors.c and experts.c. Internal to
 * model/. */
#ifndef NIB_MODEL_BINDER_H
#define NIB_MODEL_BINDER_H

#include "model/internal.h"

enum { BIND_NAME = 200 };

/* The first tensor that was looked for and is in a file that is not there. */
typedef struct gap {
    char tensor[BIND_NAME + 32];
    const char *file; /* NULL: none */
} gap;

/* The state of one call. */
typedef struct binder {
    const model *m;
    const config_source src;
    int layer;
    bound *out;
    gap *gap;
    bool of_router; /* the current matrix is a router's */
} binder;

/* The descriptor's row of the slot whose condition holds; NULL: none. */
const arch_tensor *bind_row(const binder *b, slot_id slot);
/* The first existing tensor of the row's names; number: the second %d of a name. NULL: none, also if row is
 * NULL. */
const container_tensor *bind_find(const binder *b, const arch_tensor *row, int number, const char *suffix);
/* NIB_E_MODEL. */
nib_status bind_missing(const binder *b, const arch_tensor *row, const char *suffix, nib_error *err);
/* cols < 0: a vector was expected. NIB_E_MODEL. */
nib_status bind_wrong_shape(const container_tensor *t, int64_t rows, int64_t cols, nib_error *err);
bool bind_has_shape(const container_tensor *t, int64_t rows, int64_t cols);

/* Begins the next weight of the block, with memory for its pieces. Set these, then call one of the other
 * two. */
nib_status bind_new_weight(binder *b, const char *name, int n_piece, weight **out, weight_piece **pieces,
                           nib_error *err);
nib_status bind_finish_matrix(binder *b, weight *w, const container_tensor *t, int64_t n, int64_t k,
                              bool transposed, nib_error *err);
nib_status bind_finish_vector(binder *b, weight *w, const container_tensor *t, int64_t k, nib_error *err);
/* name: of the weight. *index: its index. */
nib_status bind_vector(binder *b, const char *name, const container_tensor *t, int64_t k, int *index,
                       nib_error *err);
/* Binds a projection to its own tensor, or to a part of a fused one. fused_slot: SLOT_COUNT for none. */
nib_status bind_linear(binder *b, slot_id slot, int64_t n, int64_t k, slot_id fused_slot, int64_t n_all,
                       nib_error *err);
const char *bind_bias_name(slot_id slot);
/* width: of the row; n_head: groups that may be normed one by one, 1 for the norms of the stream. */
nib_status bind_norm(binder *b, slot_id slot, int64_t width, int64_t n_head, nib_error *err);

/* Which rows of a fused tensor belong to one part: n_run runs of `run` rows, `stride` apart, from `first` on.
 */
typedef struct row_runs {
    int64_t first, run, stride;
    int n_run;
} row_runs;
/* Binds these runs of rows of slot `whole`'s tensor, which must be there, as slot `part`: group by group, of
 * each the run of runs[0] first, then that of runs[1] (n of them, with as many groups each). */
nib_status bind_rows(binder *b, slot_id whole, slot_id part, int64_t n_all, int64_t k, const row_runs *runs,
                     int n, nib_error *err);

/* ---- ahead.c ---- */
nib_status bind_ahead_in(binder *b, nib_error *err);
/* Binds the norm and the head that such a model has of its own, as SLOT_OUT_NORM and SLOT_HEAD. */
nib_status bind_ahead_out(binder *b, nib_error *err);

/* ---- latent.c ---- */
nib_status bind_latent_attention(binder *b, nib_error *err);
/* Compressed attention, without its sinks. */
nib_status bind_compressed_attention(binder *b, nib_error *err);

/* All elements of a tensor, and a vector of these. */
int64_t bind_count(const container_tensor *t);
nib_status bind_elements(binder *b, const char *name, const container_tensor *t, int64_t k, int *index,
                         nib_error *err);
/* A vector whose rows of n_col belong together; GGUF has it as a table if n_col > 0. */
nib_status bind_table(binder *b, slot_id slot, int64_t n, int64_t n_col, nib_error *err);
/* The elements of vector `index` are multiplied by `factor`; nothing, if index is -1 or factor 1. */
nib_status bind_factor(binder *b, int index, double factor, nib_error *err);
/* The bias of a weight, if it exists. */
nib_status bind_bias(binder *b, const arch_tensor *row, int64_t n, nib_error *err);

/* ---- mixer.c ---- */
/* Whether a slot is a part of a mixer's fused projection: its rows [first, first + n). */
bool mixer_part(const model *m, slot_id slot, int64_t *first, int64_t *n);
/* The mixer of a recurrent layer. */
nib_status bind_mixer(binder *b, nib_error *err);

/* ---- streams.c ---- */
/* A matrix of a slot that stays in the file's format. */
nib_status bind_exact(binder *b, slot_id slot, int64_t n, int64_t k, nib_error *err);
/* The weights of one layer's streams, of the embedding's, or of the head's; nothing, if there is one. */
nib_status bind_streams(binder *b, block_part part, nib_error *err);

/* ---- experts.c ---- */
/* Whether this layer has a router. */
bool bind_is_mixture(const binder *b);
/* Binds the router, the experts and the shared expert. */
nib_status bind_mixture(binder *b, nib_error *err);

#endif
