/* held_back.c - see held_back.h. */
#include "quantize/held_back.h"

#include "engine/engine.h"
#include "nib_tools.h"

#include <math.h>

enum { CHUNK = 128, LOGITS_ROWS = 16 };

static const char text[] =
#define TEXT(topic, text)
#define HELD(topic, text) text "\n\n"
#include "profile/texts.def"
#undef HELD
#undef TEXT
    ;

static nib_status perplexity_of(nib_engine *e, double *ppl, nib_error *err) {
    const nib_perplexity_options how = {.n_ctx = CHUNK};
    nib_perplexity found;
    nib_session *session = NULL;
    int32_t *tokens = NULL;
    size_t n = 0;
    NIB_TRY(nib_tokenize(e, text, sizeof text - 1, NIB_TOKENIZE_BOS, &tokens, &n, err));
    nib_status status = n < CHUNK ? NIB_OK : nib_session_open(e, NULL, &session, err);
    if (session)
        status = nib_session_perplexity(session, tokens, n, &how, &found, err);
    if (session && status == NIB_OK)
        *ppl = found.ppl;
    nib_session_close(session);
    nib_free(tokens);
    return status;
}

nib_status held_back_perplexity(const char *path, const nib_engine_options *options, double *ppl,
                                nib_error *err) {
    nib_engine_options o = *options;
    nib_engine *e = NULL;
    *ppl = NAN;
    o.residual = NULL;
    o.plan = NULL;
    o.planning = NULL;
    o.n_ctx = CHUNK;
    o.n_logits = LOGITS_ROWS;
    NIB_TRY(nib_engine_open(path, &o, &e, err));
    const nib_status status = engine_tokenizer(e) ? perplexity_of(e, ppl, err) : NIB_OK;
    nib_engine_close(e);
    return status;
}
