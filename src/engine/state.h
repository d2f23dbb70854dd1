/* state.h - what the files of engine/ share about an engine. */
#ifndef NIB_ENGINE_STATE_H
#define NIB_ENGINE_STATE_H

#include "base/mem.h"
#include "engine/engine.h"
#include "model/layout.h"
#include "profile/columns.h"
#include "text/foresee.h"

#include <pthread.h>
#include <stdatomic.h>

/* What generating took so far, of what learn.h keeps. */
typedef struct learning {
    atomic_int n_running; /* generations now */
    atomic_bool mixed;    /* several were running at once: none of them says what a token takes */
    int64_t n_token;
    double seconds, positions; /* summed over the tokens */
} learning;

struct nib_engine {
    nib_engine_options options; /* defaults filled in */
    logger log;
    char *path;
    ledger *ledger;
    container *alone; /* vocab_only: a container without a model; else NULL */
    model *m;         /* NULL with vocab_only */
    layout *layout;   /* of it, under the plan; final when the pager is open; NULL with vocab_only */
    const container *container;
    tokenizer *tokenizer;    /* NULL: the checkpoint has none */
    grammar_store *grammars; /* NULL: no answers are made */
    bool cap_is_named;       /* what refused the engine has said which cap on RAM would do */
    bool text_is_open;       /* so that tokenizer is what it will be */
    tokenizer_need text;     /* while it is not, and headers are all that was read: what it will take */
    pool *threads;
    pager *pager;
    const backend_kind *kind; /* of back end */
    backend *backend;
    stepper step;
    bool has_sketch;      /* the back end's, of the output head */
    uint64_t sketch_read; /* bytes of the files that were read for it */
    int32_t n_best;       /* that the output head gives, in two steps; 0: it gives all */
    uint8_t *act_bits;    /* [n_block], of the activations: the options', or the plan's */
    uint64_t *kept;  /* [n_block], bytes of each block's matrices that a plan keeps in RAM; NIB_AUTO: all;
                        NULL: no plan */
    columns columns; /* of the weights whose rounding asks for them */
    char *kernels;   /* what decides among the strategies, for people */
    bool sizes_are_settled;
    bool free_batch; /* nobody said how many rows a pass has */
    uint64_t tables; /* charged for container, tokenizer and model */
    type_id kv_type;
    kv_pool *kv[TYPE_COUNT]; /* pages of keys and values, for each type that a session has asked for */
    nib_model_info info;
    nib_slice *slices; /* [n_slice], for nib_engine_placement */
    size_t n_slice;
    char (*formats)[PACK_NAME]; /* [n_format], names of uniform formats in slices */
    size_t n_format;
    char *name; /* for info */
    struct residuals *residuals; /* NULL: none */
    learning learned;
};

/* Another layout, from now on the engine's: charged, and the one before is freed. It is freed when there is
 * no room for it. Before the pager is open. */
nib_status engine_set_layout(nib_engine *e, layout *to, nib_error *err);

/* The pool of a type, made when it is first asked for; the engine's. Any thread. */
nib_status engine_kv_pool(nib_engine *e, type_id type, kv_pool **out, nib_error *err);
/* Its parts while there is no back end and no pager. */
engine_parts engine_early_parts(const nib_engine *e);
/* What the sessions that room is kept for (n_session) take: keys and values, logits, their lists of tokens.
 */
nib_status engine_sessions_bytes(const nib_engine *e, type_id kv_type, int64_t n_ctx, uint64_t *bytes,
                                 nib_error *err);
/* What a model of this kind is used with within reason: the context when nobody said and nothing is scarce.
 */
int64_t engine_usual_context(const model *m);
/* The context when nobody said: the usual one, or what the cap has room for. Of NIB_CTX_WHOLE all of it, or
 * what there is room for. */
int64_t engine_context(const nib_engine *e);
/* Rows of a pass, and of one cell, for a session that takes that many bytes. */
void engine_rows(const nib_engine *e, uint64_t session, int64_t *n_pass, int64_t *n_cell);
/* The same where weights are streamed. */
void engine_rows_streamed(const nib_engine *e, int n_thread, uint64_t cap, const pager_need *need,
                          int64_t *n_pass, int64_t *n_cell);
/* Half as many of the one or the other, where memory does not hold so many; false: they are as few as can be.
 */
bool engine_rows_halve(int64_t *n_pass, int64_t *n_cell);
/* Whether the output head goes in two steps, and for how many (e->n_best); the model's program follows. Once,
 * when sizes are settled; p: the plan that says it, NULL: the options and the cap do. NIB_E_USAGE: what the
 * options ask for and the plan disagree. */
nib_status engine_settle_shortlist(nib_engine *e, const plan *p, nib_error *err);
/* Once it is there: whether the rest fits beside it. */
bool engine_has_room(const nib_engine *e, uint64_t session);
/* What the engine will charge for it, and has not yet; staging: for a moment besides. */
uint64_t engine_shortlist_bytes(const nib_engine *e, uint64_t *staging);
/* Rows that go through a block together, and rows of logits. */
int64_t engine_cell_rows(const nib_engine_options *o);
int64_t engine_logits_rows(const nib_engine *e);
/* What the back end computes for, on so many threads. The engine's own are in it when it has so many. */
backend_setup engine_backend_setup(const nib_engine *e, int n_thread);
/* Everything from headers alone: container and model without the vocabulary, what that will take, and sizes,
 * in a ledger without a RAM cap. With a plan as it would be obeyed. The engine is to be closed. */
nib_status engine_open_headers(const char *model, const nib_engine_options *options, const plan *p,
                               nib_engine **out, nib_error *err);
/* NIB_E_NOFIT with the smallest cap on RAM that works, where that is known, for an engine that was refused
 * one (refuse.c); *err as it was where the cap is not what refused it. start: bytes that the process had
 * before it was opened. */
nib_status engine_refuse(const char *model, const nib_engine_options *options, const engine_want *want,
                         uint64_t start, nib_error *err);
/* Around what takes memory before it is known how much: no more than is free under the cap. The second turns
 * a refusal into NIB_E_NOFIT; gives the status otherwise. */
void engine_bound_set(const nib_engine *e, mem_bound *b);
nib_status engine_bound_end(const nib_engine *e, mem_bound *b, const char *what, nib_status status,
                            nib_error *err);
/* A plan for an engine whose weights are not open yet. */
nib_status engine_plan(const nib_engine *e, const nib_plan_options *how, plan *out, nib_error *err);
/* The pager, with everything loaded that stays under the cap beside `others`, which will be charged. Sets
 * e->cap_is_named. */
nib_status engine_open_weights(nib_engine *e, uint64_t others, nib_error *err);
/* Where packed weights are kept; NULL: nowhere. Caller frees with mem_free. */
char *engine_packed_folder(const nib_engine_options *o);
/* Whether what is streamed would come from a packed file: one that is there, or one that may be written. */
bool engine_packed_expected(const nib_engine *e);
uint64_t engine_placement_bytes(const layout *lay); /* charged for the list of slices */
void engine_fill_info(nib_engine *e);
/* The back end, with the options' kernel map, this machine's own, or none. */
nib_status engine_open_backend(nib_engine *e, nib_error *err);
/* The list of slices: its memory before the pager decides what stays, its content afterwards. */
nib_status engine_alloc_placement(nib_engine *e, nib_error *err);
void engine_fill_placement(nib_engine *e);

#endif
