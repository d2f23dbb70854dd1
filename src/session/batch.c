/* batch.c - many generations in one step loop (continuous batching: a place that becomes free is taken by the
 * next request between two steps).
 *
 * A slot is a place for one sequence; its page table is there from the beginning. Requests go from the queue
 * to a slot to the list of those that are done. Pages are reserved once, for n_position positions; a request
 * is admitted when the pages that it may need at most fit beside those of the others, so that none is ever
 * missing in the middle of an answer. */
#include "engine/engine.h"
#include "exec/step.h"

#include "base/mem.h"

#include <stdatomic.h>
#include <string.h>

enum { DEFAULT_SEQUENCES = 8, MAX_SEQUENCES = ENGINE_MAX_SESSION };

typedef struct request {
    struct request *next;
    int64_t id;
    nib_generate_options options; /* with a copied prompt and copied stop strings */
    nib_result result;
    nib_error how; /* it ended */
    atomic_bool cancelled;
    double begun; /* when its prompt was first computed; 0: not yet */
    double first; /* when its first token came */
} request;

typedef struct request_list {
    request *first, *last;
} request_list;

typedef struct slot {
    sequence of;
    generation g;
    request *r;     /* NULL: the slot is free */
    int64_t n_page; /* that it may need */
    int64_t n_row;  /* in the step that is computed */
} slot;

struct nib_batch {
    nib_engine *engine;
    engine_parts on; /* the engine's */
    kv_pool *pages;
    type_id kv_type;
    int64_t n_ctx, n_prompt;
    int64_t n_page, n_page_free; /* reserved; of those, nobody may need */
    int32_t n_slot;
    slot *slots;          /* [n_slot] */
    slot **order;         /* [n_slot]: those with rows in this step, as their segments are */
    segment *segments;    /* [n_slot] */
    tier_region memory;   /* the slots' tokens */
    pthread_mutex_t lock; /* of the lists, and of which slot has which request */
    request_list queue, done;
    int64_t last_id;
};

/* ---- requests ---- */

static void append(request_list *list, request *r) {
    r->next = NULL;
    *(list->last ? &list->last->next : &list->first) = r;
    list->last = r;
}

static request *pop(request_list *list) {
    request *r = list->first;
    if (r) {
        list->first = r->next;
        list->last = list->first ? list->last : NULL;
    }
    return r;
}

static void request_free(request *r) {
    if (!r)
        return;
    mem_free((void *)(uintptr_t)r->options.prompt);
    for (size_t i = 0; r->options.stop && i < r->options.n_stop; i++)
        mem_free((void *)(uintptr_t)r->options.stop[i]);
    mem_free((void *)(uintptr_t)r->options.stop);
    mem_free((void *)(uintptr_t)r->options.bias);
    mem_free((void *)(uintptr_t)r->options.grammar);
    nib_result_clear(&r->result);
    mem_free(r);
}

static bool copy_options(request *r, const nib_generate_options *o) {
    int32_t *prompt = mem_array(o->n_prompt, sizeof *prompt);
    char **stop = mem_calloc(o->n_stop + 1, sizeof *stop);
    nib_logit_bias *bias = mem_array(o->n_bias + 1, sizeof *bias);
    r->options = *o;
    r->options.prompt = prompt;
    r->options.stop = (const char *const *)stop;
    r->options.bias = bias;
    r->options.grammar = o->grammar ? mem_strdup(o->grammar) : NULL;
    if (!prompt || !stop || !bias || (o->grammar && !r->options.grammar))
        return false;
    memcpy(prompt, o->prompt, o->n_prompt * sizeof *prompt);
    if (o->n_bias)
        memcpy(bias, o->bias, o->n_bias * sizeof *bias);
    for (size_t i = 0; i < o->n_stop; i++)
        if (!(stop[i] = mem_strdup(o->stop[i])))
            return false;
    return true;
}

/* Positions that the request has at most: the last token is not computed with. */
static int64_t positions_of(const nib_batch *b, const nib_generate_options *o) {
    const int64_t room = b->n_ctx - (int64_t)o->n_prompt;
    const int64_t n = o->n_predict < 0 ? room : NUM_MIN(NUM_MAX(o->n_predict - 1, 0), room);
    return (int64_t)o->n_prompt + n;
}

static int64_t pages_of(const nib_batch *b, const nib_generate_options *o) {
    return kv_table_pages(b->kv_type, positions_of(b, o));
}

static nib_status check_request(const nib_batch *b, const nib_generate_options *o, nib_error *err) {
    const generation_setup with = engine_generation_setup(b->engine);
    NIB_TRY(generation_check(&with, o, err));
    NIB_TRY(sequence_check(&b->slots[0].of, o->prompt, o->n_prompt, err));
    if (pages_of(b, o) > b->n_page)
        return nib_fail(err, NIB_E_USAGE,
                        "prompt and answer have up to %lld positions, and the batch keeps keys and values of "
                        "%lld for all its sequences",
                        (long long)positions_of(b, o), (long long)(b->n_page * KV_BLOCK));
    return NIB_OK;
}

nib_status nib_batch_add(nib_batch *b, const nib_generate_options *o, int64_t *id, nib_error *err) {
    NIB_TRY(check_request(b, o, err));
    request *r = mem_calloc(1, sizeof *r);
    if (!r || !copy_options(r, o)) {
        request_free(r);
        return nib_fail_nomem(err, sizeof *r + o->n_prompt * sizeof(int32_t), "a request");
    }
    pthread_mutex_lock(&b->lock);
    *id = r->id = ++b->last_id;
    append(&b->queue, r);
    pthread_mutex_unlock(&b->lock);
    return NIB_OK;
}

void nib_batch_cancel(nib_batch *b, int64_t id) {
    pthread_mutex_lock(&b->lock);
    for (request *r = b->queue.first; r; r = r->next)
        if (r->id == id)
            atomic_store(&r->cancelled, true);
    for (int32_t i = 0; i < b->n_slot; i++)
        if (b->slots[i].r && b->slots[i].r->id == id)
            atomic_store(&b->slots[i].r->cancelled, true);
    pthread_mutex_unlock(&b->lock);
}

bool nib_batch_take(nib_batch *b, int64_t *id, nib_result *result, nib_error *err) {
    pthread_mutex_lock(&b->lock);
    request *r = pop(&b->done);
    pthread_mutex_unlock(&b->lock);
    if (!r)
        return false;
    *id = r->id;
    *result = r->result;
    if (err)
        *err = r->how;
    memset(&r->result, 0, sizeof r->result);
    request_free(r);
    return true;
}

/* ---- opening ---- */

void nib_batch_options_init(nib_batch_options *options) {
    memset(options, 0, sizeof *options);
}

static nib_status settle(nib_batch *b, const nib_batch_options *o, nib_error *err) {
    const backend_rows *rows = &b->on.step->backend->rows;
    if (o->n_sequence < 0 || o->n_sequence > MAX_SEQUENCES || o->n_ctx < 0 || o->n_position < 0 ||
        o->n_prompt < 0 || (o->kv_type != 0 && !engine_kv_type(o->kv_type, &b->kv_type)))
        return nib_fail(err, NIB_E_USAGE,
                        "a batch: expected at most %d sequences, a context, positions and rows of 0 or more "
                        "and a nib_kv_type, found %ld, %lld, %lld, %lld and %d",
                        MAX_SEQUENCES, (long)o->n_sequence, (long long)o->n_ctx, (long long)o->n_position,
                        (long long)o->n_prompt, o->kv_type);
    b->n_slot = o->n_sequence ? o->n_sequence : DEFAULT_SEQUENCES;
    b->n_ctx = o->n_ctx ? o->n_ctx : b->on.n_ctx;
    b->n_prompt = o->n_prompt ? o->n_prompt : rows->n_pass;
    const int64_t pages = kv_table_pages(b->kv_type, b->n_ctx);
    NIB_TRY(engine_check_positions(b->engine, b->kv_type, b->n_ctx, err));
    if (b->n_slot > rows->n_pass)
        return nib_fail(err, NIB_E_USAGE,
                        "%ld sequences are more than the %lld rows that a pass of this engine has (n_batch)",
                        (long)b->n_slot, (long long)rows->n_pass);
    if (pages > INT64_MAX / KV_BLOCK / b->n_slot)
        return nib_fail(err, NIB_E_NOFIT, "keys and values of %ld sequences overflow 64 bits",
                        (long)b->n_slot);
    b->n_page = o->n_position ? kv_table_pages(b->kv_type, o->n_position) : pages * b->n_slot;
    return NIB_OK;
}

static nib_status open_slots(nib_batch *b, const sequence_memory *memory, nib_error *err) {
    const uint64_t tokens = (uint64_t)b->n_slot * (uint64_t)b->n_ctx * sizeof(int32_t);
    b->slots = mem_calloc((size_t)b->n_slot, sizeof *b->slots);
    b->order = mem_calloc((size_t)b->n_slot, sizeof *b->order);
    b->segments = mem_calloc((size_t)b->n_slot, sizeof *b->segments);
    if (!b->slots || !b->order || !b->segments)
        return nib_fail_nomem(err, (size_t)b->n_slot * sizeof *b->slots, "a batch's sequences");
    NIB_TRY(tier_region_open(&b->memory, device_host(), b->on.ledger, NIB_OWNER_ACTIVATIONS, tokens, true,
                             "a batch's tokens", err));
    tier_region_touch(&b->memory, tokens);
    for (int32_t i = 0; i < b->n_slot; i++)
        NIB_TRY(sequence_open(&b->slots[i].of, memory, b->n_ctx, (int32_t *)b->memory.at + i * b->n_ctx, true,
                              err));
    return NIB_OK;
}

static nib_status open_batch(nib_batch *b, const nib_batch_options *o, nib_error *err) {
    sequence_memory memory;
    NIB_TRY(settle(b, o, err));
    NIB_TRY(engine_sequence_memory(b->engine, b->kv_type, &memory, err));
    NIB_TRY(kv_pool_reserve(memory.pages, b->n_page, err));
    b->pages = memory.pages;
    b->n_page_free = b->n_page;
    NIB_TRY(open_slots(b, &memory, err));
    nib_memory now; /* the engine's own plan has room for one sequence */
    ledger_report(b->on.ledger, &now);
    ledger_plan(b->on.ledger, NIB_TIER_RAM,
                NUM_MAX(now.tier[NIB_TIER_RAM].planned, ledger_promised(b->on.ledger, NIB_TIER_RAM)));
    return NIB_OK;
}

nib_status nib_batch_open(nib_engine *e, const nib_batch_options *options, nib_batch **out, nib_error *err) {
    static const nib_batch_options usual = {0};
    if (!engine_has_weights(e))
        return nib_fail(err, NIB_E_USAGE, "the engine was opened for its vocabulary only: it has no weights");
    nib_batch *b = mem_calloc(1, sizeof *b);
    if (!b)
        return nib_fail_nomem(err, sizeof *b, "the batch");
    b->engine = e;
    b->on = engine_parts_of(e);
    b->kv_type = b->on.kv_type;
    pthread_mutex_init(&b->lock, NULL);
    const nib_status status = open_batch(b, options ? options : &usual, err);
    if (status == NIB_OK)
        *out = b;
    else
        nib_batch_close(b);
    return engine_name_sessions(e, status, err);
}

static void free_list(request_list *list) {
    for (request *r; (r = pop(list));)
        request_free(r);
}

void nib_batch_close(nib_batch *b) {
    if (!b)
        return;
    for (int32_t i = 0; b->slots && i < b->n_slot; i++) {
        generation_close(&b->slots[i].g);
        request_free(b->slots[i].r);
        sequence_close(&b->slots[i].of);
    }
    free_list(&b->queue);
    free_list(&b->done);
    if (b->pages)
        kv_pool_unreserve(b->pages, b->n_page);
    tier_region_close(&b->memory);
    mem_free(b->slots);
    mem_free(b->order);
    mem_free(b->segments);
    pthread_mutex_destroy(&b->lock);
    mem_free(b);
}

/* ---- between two steps; the lock is held ---- */

static void finish(nib_batch *b, request *r, nib_status status, const nib_error *how) {
    if (how)
        r->how = *how;
    if (status == NIB_E_CANCELLED)
        r->result.finish = NIB_FINISH_CANCELLED;
    r->how.status = status;
    append(&b->done, r);
}

static void free_slot(nib_batch *b, slot *s, nib_status status, const nib_error *how) {
    request *r = s->r;
    generation_close(&s->g);
    r->result.predicted_n = (int64_t)r->result.n_token;
    if (r->first > 0)
        r->result.predicted_s = time_now() - r->first;
    s->r = NULL;
    b->n_page_free += s->n_page;
    s->of.n = kv_table_keep(&s->of.kv, 0); /* its pages can still be found by their content */
    s->of.n_token = 0;
    finish(b, r, status, how);
}

static void end_cancelled(nib_batch *b) {
    nib_error how;
    nib_fail(&how, NIB_E_CANCELLED, "cancelled");
    for (int32_t i = 0; i < b->n_slot; i++)
        if (b->slots[i].r && atomic_load(&b->slots[i].r->cancelled))
            free_slot(b, &b->slots[i], NIB_E_CANCELLED, &how);
    request_list waiting = b->queue;
    b->queue = (request_list){0};
    for (request *r; (r = pop(&waiting));) {
        if (atomic_load(&r->cancelled))
            finish(b, r, NIB_E_CANCELLED, &how);
        else
            append(&b->queue, r);
    }
}

static void admit(nib_batch *b, slot *s) {
    request *r = pop(&b->queue);
    nib_error how;
    s->r = r;
    s->n_page = pages_of(b, &r->options);
    b->n_page_free -= s->n_page;
    const generation_setup with = engine_generation_setup(b->engine);
    const nib_status status = generation_open(&s->g, &with, &r->options, b->n_ctx, &r->result, &how);
    if (status != NIB_OK || s->g.done) {
        free_slot(b, s, status, status == NIB_OK ? NULL : &how);
        return;
    }
    sequence_set(&s->of, r->options.prompt, (int64_t)r->options.n_prompt, (int64_t)r->options.n_prompt - 1);
}

/* In the order in which they came: one that needs much is not overtaken for ever. */
static void admit_waiting(nib_batch *b) {
    for (int32_t i = 0; i < b->n_slot; i++)
        while (!b->slots[i].r && b->queue.first && pages_of(b, &b->queue.first->options) <= b->n_page_free)
            admit(b, &b->slots[i]);
}

static int32_t count_left(nib_batch *b) {
    int32_t n = 0;
    for (const request *r = b->queue.first; r; r = r->next)
        n++;
    for (int32_t i = 0; i < b->n_slot; i++)
        n += b->slots[i].r != NULL;
    return n;
}

/* ---- one step ---- */

/* Rows of slot s join the step; logits of the last one when it is the sequence's. */
static void add_rows(nib_batch *b, slot *s, int *n_segment, int64_t *row, int64_t n_max) {
    s->n_row = NUM_MIN(s->of.n_token - s->of.n, n_max);
    const bool last = s->of.n + s->n_row == s->of.n_token;
    b->segments[*n_segment] = sequence_rows(&s->of, *row, s->n_row, s->n_row - (last ? 1 : 0));
    b->order[(*n_segment)++] = s;
    *row += s->n_row;
    if (s->r->begun == 0) {
        s->r->begun = time_now();
        s->r->result.prompt_n = s->of.n_token - s->of.n;
    }
}

/* Whether a slot that has rows in this step computes a page that s needs next as well: s waits, and shares
 * it. */
static bool is_computed_for(const nib_batch *b, const slot *s, int n_segment) {
    const int64_t need = (s->of.n / KV_BLOCK + 1) * KV_BLOCK;
    for (int i = 0; i < n_segment && need < s->of.n_token; i++) {
        const sequence *other = &b->order[i]->of;
        if (other->n_token > need && other->n < need &&
            !memcmp(other->tokens, s->of.tokens, (size_t)need * sizeof *other->tokens))
            return true;
    }
    return false;
}

/* The prompt that was begun first of those that have no rows in this step yet; NULL: there is none. */
static slot *next_prompt(nib_batch *b, int n_segment) {
    slot *next = NULL;
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = &b->slots[i];
        if (s->r && s->n_row == 0 && (!next || s->r->id < next->r->id) && !is_computed_for(b, s, n_segment))
            next = s;
    }
    return next;
}

/* First who decodes, then prompts, the one that was begun first before the others. */
static int compose(nib_batch *b) {
    int n_segment = 0;
    int64_t row = 0, left = b->n_prompt;
    for (int32_t i = 0; i < b->n_slot; i++) {
        slot *s = &b->slots[i];
        s->n_row = 0;
        if (!s->r)
            continue;
        sequence_resume(&s->of);
        sequence_adopt(&s->of);
        if (s->of.n_token - s->of.n == 1)
            add_rows(b, s, &n_segment, &row, 1);
    }
    left = NUM_MIN(left, b->on.step->backend->rows.n_pass - row);
    for (slot *next; left > 0 && (next = next_prompt(b, n_segment)); left -= next->n_row)
        add_rows(b, next, &n_segment, &row, left);
    return n_segment;
}

/* A sequence's logits: its next token. */
static nib_status take_logits(void *user, int segment_index, int64_t row, int64_t n_row, const float *logits,
                              nib_error *err) {
    nib_batch *b = user;
    slot *s = b->order[segment_index];
    const int64_t n = s->of.n_token;
    int32_t token;
    (void)row;
    (void)n_row;
    if (s->r->first == 0) {
        s->r->first = time_now();
        s->r->result.prompt_s = s->r->first - s->r->begun;
    }
    NIB_TRY(generation_feed(&s->g, logits, s->of.tokens, n, &token, err));
    if (!s->g.done)
        sequence_add(&s->of, token);
    return NIB_OK;
}

static void end_done(nib_batch *b, int n_segment) {
    for (int i = 0; i < n_segment; i++)
        if (b->order[i]->g.done) {
            const nib_error why = b->order[i]->g.failed;
            free_slot(b, b->order[i], why.status, why.status == NIB_OK ? NULL : &why);
        }
}

nib_status nib_batch_step(nib_batch *b, int32_t *n_left, nib_error *err) {
    pthread_mutex_lock(&b->lock);
    end_cancelled(b);
    admit_waiting(b);
    *n_left = count_left(b);
    pthread_mutex_unlock(&b->lock);
    const int n_segment = compose(b);
    if (n_segment == 0)
        return NIB_OK;
    const pass p = {.segments = b->segments,
                    .n_segment = n_segment,
                    .n_head = b->on.step->backend->rows.n_head,
                    .rows = take_logits,
                    .user = b};
    const nib_status status = step_pass(b->on.step, &p, err);
    for (int i = 0; i < n_segment && status == NIB_OK; i++)
        sequence_advance(&b->order[i]->of, b->order[i]->n_row);
    pthread_mutex_lock(&b->lock);
    end_done(b, n_segment);
    *n_left = count_left(b);
    pthread_mutex_unlock(&b->lock);
    return status;
}
