/* generation.h - one answer as a state machine: it takes logits and returns a token, until the answer ends. A
 * session, or a batch of many sequences, computes the logits and drives it. */
#ifndef NIB_SEQUENCE_GENERATION_H
#define NIB_SEQUENCE_GENERATION_H

#include "grammar/grammar.h"
#include "sequence/dry.h"
#include "sequence/sampler.h"
#include "sequence/stop.h"
#include "tokenizer/tokenizer.h"
#include "memory/ledger.h"

/* The setup of an answer. Everything is borrowed and outlives the answers. */
typedef struct generation_setup {
    ledger *ledger;
    const tokenizer *tokenizer; /* NULL: the answer has ids only, no text */
    grammar_store *grammars;    /* NULL: grammars are not supported */
    int64_t n_vocab;
    int32_t n_best; /* number of the largest logits in each step; 0: all */
} generation_setup;

typedef struct generation {
    generation_setup with;
    const nib_generate_options *options;
    nib_result *result;
    sampler sampler;
    dry dry;
    constraint limit;     /* the grammar */
    float *changed;       /* [n_vocab]: logits after bias and grammar; NULL: neither is used */
    nib_logit_bias *bias; /* [n_bias]: the options' bias, each token once, sorted by token */
    int64_t n_bias;
    uint64_t charged; /* bytes on the ledger, the sampler's included */
    stop_list stop;
    decode_state decode;
    text_buffer text; /* the whole answer */
    size_t shown;     /* bytes given to on_text */
    int64_t n_max;    /* tokens that may be generated */
    int64_t n_scored; /* rows of the prompt whose logits generation_score got */
    bool done;        /* no token follows; result->finish or `failed` has the reason */
    nib_error failed; /* why the answer cannot continue (a grammar, memory); NIB_OK: it did not fail */
} generation;

/* NIB_E_USAGE for invalid options, or options that the engine was not opened for. */
nib_status generation_check(const generation_setup *with, const nib_generate_options *o, nib_error *err);

/* Allocates all memory of the generation. n_ctx: positions of the sequence, its prompt included.
 * options and result stay the caller's until the generation is closed; on failure it is closed. */
nib_status generation_open(generation *g, const generation_setup *with, const nib_generate_options *o,
                           int64_t n_ctx, nib_result *result, nib_error *err);
/* The sequence's logits [n_vocab] after tokens[0..n): draws a token, adds it to the result and gives its text
 * to the callbacks. If g->done is set, it was the last token, or (at the end of text) no token was added, or
 * g->failed has an error, which ends only this answer; otherwise *token must be computed next. */
void generation_feed(generation *g, const float *logits, const int32_t *tokens, int64_t n, int32_t *token);
/* The position of the next row of the prompt whose logits generation_score expects, before the logits of its
 * last row are fed; INT64_MAX: none. */
int64_t generation_scores_from(const generation *g);
/* Reports the prompt's token after that row. May set g->done: no answer was requested. */
void generation_score(generation *g, const float *logits);
/* Number of the largest logits that it reads; 0: all, or more than max. Constant after opening. *n_change:
 * maximum number of logits that are changed first, when n_past tokens are known. */
int32_t generation_n_best(const generation *g, int32_t max, int64_t n_past, int64_t *n_change);
/* Writes these changes for the row of the last token and returns their number. The caller sets `first` and
 * `n` of *how. */
int64_t generation_changes(generation *g, const int32_t *tokens, int64_t n_past, logit_change *out,
                           logit_row *how);
/* generation_feed with only these logits, already changed, as in sampler_draw_best. */
void generation_feed_best(generation *g, const int32_t *ids, const float *logits, int32_t *token);
/* Moves the text to the result and frees the rest. Zeroed is fine. */
void generation_close(generation *g);

#endif
