/* draft_model.c - see draft_model.h.
 *
 * A head that predicts later tokens has the text without its first token: its row of position i of the text
 * gets the state of i and the token after it. So rows are computed as soon as their tokens are known, after
 * each pass of the target model (draft_model_learn), and the last one gives the first proposal. Further
 * proposals take the head's own state in place of the target's. If states are missing, because pages of the
 * text came from another sequence, the head forgets the text before that position; it attends to positions by
 * their distance. */
#include "session/draft_model.h"

#include "base/mem.h"
#include "base/num.h"
#include "session/driver.h"
#include "session/states.h"

#include <string.h>

typedef struct draft_slot {
    driver_slot on; /* the first member: the slots of a pass are these */
    draft *to;      /* gets the proposals; NULL: rows of the text are computed */
    int64_t n_done; /* of to->n */
    /* of a head that predicts later tokens */
    int64_t begin; /* position of the text that its first row is of */
    float *rows;   /* states of n_row positions from `at` on, of the target's last pass; there is room for
                      one more before them */
    int64_t at, n_row;
    float *state;     /* [width]: of a position whose next token is not known yet, or its own */
    int64_t state_at; /* that position; -1: its own state, for the next proposal */
    int32_t guess;    /* the likeliest token number guess_at of the text */
    int64_t guess_at; /* -1: unknown */
    bool guesses;     /* the last row's logits are needed */
} draft_slot;

/* The memory of states. */
typedef struct state_rows {
    state_norm of_target, own;
    memory_region memory;
    float *rows;            /* [max_row, width] */
    int64_t n_row, max_row; /* used in this pass; of the region */
} state_rows;

struct draft_model {
    driver driver;
    kv_pool *pages;
    int64_t n_ctx;
    kv_amount reserved;
    int32_t n_slot;
    draft_slot *slots;  /* [n_slot] */
    draft_slot **asked; /* [n_asked] of [n_slot]: those that propose now */
    int n_asked;
    memory_region memory;
    state_rows *states; /* NULL: a model of its own, which reads tokens alone */
};

/* ---- opening ---- */

static nib_status check_tokens(const nib_engine *with, const nib_engine *target, nib_error *err) {
    const nib_model_info *a = nib_engine_info(with), *b = nib_engine_info(target);
    if (a->n_vocab != b->n_vocab)
        return nib_fail(err, NIB_E_USAGE,
                        "expected a draft model with the target model's %lld tokens, found %lld",
                        (long long)b->n_vocab, (long long)a->n_vocab);
    for (int32_t i = 0; i < a->n_vocab && a->has_tokenizer && b->has_tokenizer; i++) {
        size_t n = 0, m = 0;
        const char *one = nib_token_piece(with, i, &n), *other = nib_token_piece(target, i, &m);
        const bool same =
            one && other ? n == m && !memcmp(one, other, n) : one == other; /* ids beyond both vocabularies */
        if (!same)
            return nib_fail(
                err, NIB_E_USAGE,
                "expected the target model's tokens in the draft model, found a different token %ld",
                (long)i);
    }
    return NIB_OK;
}

static nib_status open_sequences(draft_model *g, nib_engine *with, nib_error *err) {
    const uint64_t tokens = (uint64_t)g->n_slot * (uint64_t)g->n_ctx * sizeof(int32_t);
    sequence_memory memory;
    g->slots = mem_calloc((size_t)g->n_slot, sizeof *g->slots);
    g->asked = mem_calloc((size_t)g->n_slot, sizeof *g->asked);
    if (!g->slots || !g->asked)
        return nib_fail_nomem(err, (size_t)g->n_slot * sizeof *g->slots, "the draft model's sequences");
    NIB_TRY(driver_open(&g->driver, g->n_slot, 1, err));
    NIB_TRY(engine_sequence_memory(with, g->driver.on.kv, &memory, err));
    const int64_t n_page = kv_table_pages(g->driver.on.kv, g->n_ctx) * g->n_slot;
    const kv_amount n = kv_table_amount(kv_pool_paging(memory.pages), g->n_slot, n_page);
    NIB_TRY(kv_call_reserve(memory.pages, n, err));
    g->pages = memory.pages;
    g->reserved = n;
    NIB_TRY(memory_region_open(&g->memory, device_host(), g->driver.on.ledger, NIB_OWNER_ACTIVATIONS, tokens,
                               true, "the draft model's tokens", err));
    memory_region_touch(&g->memory, tokens);
    for (int32_t i = 0; i < g->n_slot; i++)
        NIB_TRY(sequence_open(&g->slots[i].on.of, &memory, g->n_ctx, (int32_t *)g->memory.at + i * g->n_ctx,
                              &g->reserved, err));
    return NIB_OK;
}

static nib_status open_states(draft_model *g, nib_engine *target, nib_error *err) {
    const engine_parts of_target = engine_parts_of(target), *on = &g->driver.on;
    const int64_t width = model_hparams(on->m)->d_model;
    state_rows *t = mem_calloc(1, sizeof *t);
    if (!t)
        return nib_fail_nomem(err, sizeof *t, "states");
    g->states = t;
    if (model_hparams(of_target.m)->d_model != width || model_hparams(of_target.m)->n_stream > 1)
        return nib_fail(err, NIB_E_USAGE,
                        "expected the head that predicts later tokens of this model, found one of another");
    NIB_TRY(state_norm_open(&t->of_target, &of_target, err));
    NIB_TRY(state_norm_open(&t->own, on, err));
    t->max_row = on->step->backend->rows.n_pass + g->n_slot;
    const uint64_t bytes = (uint64_t)((t->max_row + g->n_slot) * width) * sizeof(float);
    NIB_TRY(memory_region_open(&t->memory, device_host(), on->ledger, NIB_OWNER_ACTIVATIONS, bytes, true,
                               "states of positions", err));
    memory_region_touch(&t->memory, bytes);
    t->rows = t->memory.at;
    for (int32_t i = 0; i < g->n_slot; i++) {
        g->slots[i].state = t->rows + (t->max_row + i) * width;
        g->slots[i].state_at = g->slots[i].guess_at = -1;
    }
    return NIB_OK;
}

nib_status draft_model_open(nib_engine *with, nib_engine *target, int32_t n_slot, int64_t n_ctx,
                            draft_model **out, nib_error *err) {
    if (!engine_has_weights(with))
        return nib_fail(
            err, NIB_E_USAGE,
            "expected a draft model with weights, found one that was opened for its vocabulary only");
    NIB_TRY(check_tokens(with, target, err));
    if (model_state_bytes(engine_parts_of(with).m) > 0)
        return nib_fail(
            err, NIB_E_USAGE,
            "expected a draft model without recurrent layers, whose state cannot drop rejected tokens");
    draft_model *g = mem_calloc(1, sizeof *g);
    if (!g)
        return nib_fail_nomem(err, sizeof *g, "a draft model");
    g->driver.on = engine_parts_of(with);
    g->n_slot = n_slot;
    g->n_ctx = NUM_MIN(n_ctx, g->driver.on.n_ctx);
    nib_status status = open_sequences(g, with, err);
    if (status == NIB_OK && model_is_ahead(g->driver.on.m))
        status = open_states(g, target, err);
    if (status == NIB_OK)
        *out = g;
    else
        draft_model_close(g);
    return engine_name_sessions(with, status, err);
}

void draft_model_close(draft_model *g) {
    if (!g)
        return;
    for (int32_t i = 0; g->slots && i < g->n_slot; i++)
        sequence_close(&g->slots[i].on.of);
    if (g->pages)
        kv_call_unreserve(g->pages, g->reserved);
    memory_region_close(&g->memory);
    if (g->states) {
        state_norm_close(&g->states->of_target);
        state_norm_close(&g->states->own);
        memory_region_close(&g->states->memory);
        mem_free(g->states);
    }
    driver_close(&g->driver);
    mem_free(g->asked);
    mem_free(g->slots);
    mem_free(g);
}

/* ---- proposing ---- */

int64_t draft_model_can(const draft_model *g, const driver_slot *of, int64_t n_max) {
    const draft_slot *s = &g->slots[of->index];
    const int64_t n = of->of.n_token;
    if (g->states)
        return s->guess_at == n ? NUM_MAX(NUM_MIN(n_max, g->n_ctx - s->on.of.n_token), 0) : 0;
    return NUM_MAX(NUM_MIN(n_max, g->n_ctx - n), 0);
}

double draft_model_cost(const draft_model *g, int n) {
    return n > 0 ? draft_cost_of(&g->driver.cost, n) / n : 0;
}

int64_t draft_model_free(const draft_model *g) {
    return g->states ? 1 : 0;
}

static void propose(draft_model *g, int segment_index, int32_t token) {
    draft_slot *s = (draft_slot *)(void *)g->driver.now.order[segment_index];
    if (!s->to) {
        s->guess = token;
        s->guess_at = s->begin + s->on.of.n_token + 1;
        return;
    }
    s->to->tokens[s->n_done++] = token;
    if (s->n_done < s->to->n)
        sequence_add(&s->on.of, token);
}

static nib_status take_logits(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                              nib_error *err) {
    draft_model *g = user;
    const int64_t n_vocab = model_hparams(g->driver.on.m)->n_vocab;
    const float *last = logits + (n_row - 1) * n_vocab;
    int32_t likeliest = 0;
    (void)row;
    (void)err;
    for (int32_t i = 1; i < n_vocab; i++)
        if (last[i] > last[likeliest])
            likeliest = i;
    propose(g, segment_index, likeliest);
    return NIB_OK;
}

static nib_status take_best(void *user, int segment_index, int64_t row, int64_t n_row, const int32_t *ids,
                            const float *logits, nib_error *err) {
    (void)row;
    (void)logits;
    (void)err;
    propose(user, segment_index, ids[n_row - 1]);
    return NIB_OK;
}

/* The states that the rows of a segment read: those of the text, or, to propose, its own. */
static const float *give_states(void *user, int segment_index) {
    const draft_model *g = user;
    const draft_slot *s = (const draft_slot *)(const void *)g->driver.now.order[segment_index];
    return s->to ? s->state : s->rows + (s->begin + s->on.of.n - s->at) * g->states->own.width;
}

/* Keeps the state of a segment's last row. */
static void take_states(void *user, int segment_index, const float *x) {
    draft_model *g = user;
    draft_slot *s = (draft_slot *)(void *)g->driver.now.order[segment_index];
    state_norm_rows(&g->states->own, x + (s->on.n_row - 1) * g->states->own.width, 1, s->state);
    s->state_at = -1;
}

/* The first proposal is known; another one needs a row. */
static void propose_guess(draft_slot *s) {
    s->to->tokens[s->n_done++] = s->guess;
    if (s->to->n > 1)
        sequence_add(&s->on.of, s->guess);
}

/* A few rows have the role of generated ones, since proposals may have any last bits; prompts of the draft
 * model share only prompt rows. */
static bool has_few(const draft_slot *s) {
    return s->on.of.n_token - s->on.of.n <= DRAFT_MAX + 1;
}

static void add(driver *d, draft_slot *s) {
    s->on.generated = has_few(s) ? s->on.of.n : INT64_MAX;
    if (driver_rows_left(d, &s->on) > 0) {
        driver_add(d, &s->on, INT64_MAX);
        if (!s->to && !s->guesses)
            s->on.head_row = s->on.n_row;
    }
}

/* Composes a pass: the few rows of all slots that propose, and rows of one prompt. Other prompts wait, since
 * they may share its pages. */
static void compose(draft_model *g) {
    draft_slot *prompt = NULL;
    driver_begin(&g->driver);
    for (int i = 0; i < g->n_asked; i++) {
        draft_slot *s = g->asked[i];
        if (s->on.of.n == s->on.of.n_token)
            continue;
        sequence_resume(&s->on.of);
        if (!has_few(s))
            sequence_adopt(&s->on.of);
        if (has_few(s))
            add(&g->driver, s);
        else if (!prompt)
            prompt = s;
    }
    if (prompt)
        add(&g->driver, prompt);
}

/* Computes all tokens of the asked slots; those that propose get more meanwhile. */
static nib_status compute(draft_model *g, nib_error *err) {
    driver *d = &g->driver;
    const backend_kind *kind = d->on.step->backend->kind;
    for (compose(g); d->now.n > 0; compose(g)) {
        const bool best = kind->max_best > 0 && d->now.n >= kind->best_from;
        const pass p = {.rows = take_logits,
                        .n_best = best ? 1 : 0,
                        .best = take_best,
                        .input = g->states ? give_states : NULL,
                        .output = g->states ? take_states : NULL,
                        .user = g};
        NIB_TRY(driver_run(d, &p, err));
        if (d->now.n_row == d->now.n)
            draft_cost_note(&d->cost, d->now.n_row, d->now.seconds);
    }
    return NIB_OK;
}

nib_status draft_model_follow(draft_model *g, driver_slot *const *slots, int n, nib_error *err) {
    g->n_asked = 0;
    for (int i = 0; i < n; i++) {
        const sequence *text = &slots[i]->of;
        draft_slot *s = &g->slots[slots[i]->index];
        if (slots[i]->draft.kind != DRAFT_MODEL || slots[i]->draft.n == 0)
            continue;
        s->to = &slots[i]->draft;
        s->n_done = 0;
        if (g->states)
            propose_guess(s);
        else
            sequence_set(&s->on.of, text->tokens, text->n_token, text->n_token - 1);
        g->asked[g->n_asked++] = s;
    }
    return compute(g, err);
}

/* ---- states of the target model ---- */

bool draft_model_reads_states(const draft_model *g) {
    return g && g->states;
}

void draft_model_keep(draft_model *g, const driver_slot *of, const segment *rows, const float *x) {
    state_rows *t = g->states;
    draft_slot *s = &g->slots[of->index];
    const int64_t width = t->own.width, again = NUM_MAX(of->of.reached - rows->position, 0);
    t->n_row = rows->row == 0 ? 1 : t->n_row + 1;
    s->n_row = NUM_MAX(NUM_MIN(rows->n_row - again, t->max_row - t->n_row), 0);
    s->at = rows->position + rows->n_row - s->n_row;
    s->rows = t->rows + t->n_row * width;
    t->n_row += s->n_row;
    state_norm_rows(&t->of_target, x + (rows->n_row - s->n_row) * width, s->n_row, s->rows);
}

/* Sets the head's tokens to those of the text up to position `end`, and returns the position of its next row.
 */
static int64_t set_text(draft_slot *s, const sequence *text, int64_t end, int64_t n_reuse) {
    sequence_set(&s->on.of, text->tokens + s->begin + 1, end - s->begin, n_reuse);
    return s->begin + s->on.of.n;
}

/* Continues with the kept rows up to position `end`, after those that are computed. */
static void continue_text(draft_model *g, draft_slot *s, const sequence *text, int64_t end) {
    const int64_t width = g->states->own.width;
    const bool known = s->begin <= s->at && s->begin < end && end - s->begin <= g->n_ctx;
    const int64_t at = known ? set_text(s, text, end, s->at - s->begin) : -1;
    if (known && at == s->at - 1 && s->state_at == at) {
        s->rows -= width;
        memcpy(s->rows, s->state, (size_t)width * sizeof *s->rows);
        s->at--;
    } else if (at != s->at) {
        sequence_clear(&s->on.of);
        s->begin = s->at;
        set_text(s, text, end, 0);
    }
}

nib_status draft_model_learn(draft_model *g, driver_slot *const *slots, int n, nib_error *err) {
    const int64_t width = g->states->own.width;
    g->n_asked = 0;
    for (int i = 0; i < n; i++) {
        const sequence *text = &slots[i]->of;
        draft_slot *s = &g->slots[slots[i]->index];
        const int64_t end = NUM_MIN(sequence_reached(text), text->n_token - 1);
        s->to = NULL;
        s->guess_at = -1;
        s->guesses = !slots[i]->g.done && driver_decodes(slots[i]);
        if (s->n_row > 0 && s->at < end && end - s->at <= g->n_ctx) {
            continue_text(g, s, text, end);
            g->asked[g->n_asked++] = s;
        }
    }
    NIB_TRY(compute(g, err));
    for (int i = 0; i < n; i++) {
        const int64_t last = sequence_reached(&slots[i]->of) - 1; /* its next token may be unknown */
        draft_slot *s = &g->slots[slots[i]->index];
        if (s->n_row > 0 && last >= s->at && last == slots[i]->of.n_token - 1) {
            memcpy(s->state, s->rows + (last - s->at) * width, (size_t)width * sizeof *s->state);
            s->state_at = last;
        }
        s->n_row = 0;
    }
    return NIB_OK;
}
