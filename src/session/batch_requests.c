/* batch_requests.c - adds and cancels requests of a batch, and returns those that have ended. */
#include "session/batch_parts.h"

#include "base/mem.h"

#include <string.h>

void batch_append(request_list *list, request *r) {
    r->next = NULL;
    *(list->last ? &list->last->next : &list->first) = r;
    list->last = r;
}

request *batch_pop(request_list *list) {
    request *r = list->first;
    if (r) {
        list->first = r->next;
        list->last = list->first ? list->last : NULL;
    }
    return r;
}

static void free_texts(const char *const *texts, size_t n) {
    for (size_t i = 0; texts && i < n; i++)
        mem_free((void *)(uintptr_t)texts[i]);
    mem_free((void *)(uintptr_t)texts);
}

/* Copies texts [n]; NULL: no memory. */
static const char *const *copy_texts(const char *const *texts, size_t n) {
    char **copy = mem_calloc(n + 1, sizeof *copy);
    for (size_t i = 0; copy && i < n; i++)
        if (!(copy[i] = mem_strdup(texts[i]))) {
            free_texts((const char *const *)copy, i);
            return NULL;
        }
    return (const char *const *)copy;
}

void batch_request_free(request *r) {
    if (!r)
        return;
    mem_free((void *)(uintptr_t)r->options.prompt);
    free_texts(r->options.stop, r->options.n_stop);
    free_texts(r->options.sampling.dry_breakers, r->options.sampling.n_dry_breaker);
    mem_free((void *)(uintptr_t)r->options.bias);
    mem_free((void *)(uintptr_t)r->options.grammar);
    nib_result_clear(&r->result);
    mem_free(r);
}

static bool copy_options(request *r, const nib_generate_options *o) {
    int32_t *prompt = mem_array(o->n_prompt, sizeof *prompt);
    nib_logit_bias *bias = mem_array(o->n_bias + 1, sizeof *bias);
    r->options = *o;
    r->options.prompt = prompt;
    r->options.stop = copy_texts(o->stop, o->n_stop);
    if (o->sampling.dry_breakers)
        r->options.sampling.dry_breakers = copy_texts(o->sampling.dry_breakers, o->sampling.n_dry_breaker);
    r->options.bias = bias;
    r->options.grammar = o->grammar ? mem_strdup(o->grammar) : NULL;
    if (!prompt || !r->options.stop || !bias || (o->grammar && !r->options.grammar) ||
        (o->sampling.dry_breakers && !r->options.sampling.dry_breakers))
        return false;
    memcpy(prompt, o->prompt, o->n_prompt * sizeof *prompt);
    if (o->n_bias)
        memcpy(bias, o->bias, o->n_bias * sizeof *bias);
    return true;
}

int64_t batch_pages_of(const nib_batch *b, const nib_generate_options *o) {
    return kv_table_pages(b->kv, driver_positions(o, b->n_ctx));
}

static nib_status check_request(const nib_batch *b, const nib_generate_options *o, nib_error *err) {
    const generation_setup with = engine_generation_setup(b->engine);
    NIB_TRY(generation_check(&with, o, err));
    NIB_TRY(sequence_check(&b->slots[0].on.of, o->prompt, o->n_prompt, err));
    if (batch_pages_of(b, o) > b->n_page)
        return nib_fail(
            err, NIB_E_USAGE,
            "expected prompt and answer within the batch's %lld positions (n_position), found up to %lld",
            (long long)(b->n_page * KV_BLOCK), (long long)driver_positions(o, b->n_ctx));
    return NIB_OK;
}

nib_status nib_batch_add(nib_batch *b, const nib_generate_options *o, int64_t *id, nib_error *err) {
    NIB_TRY(check_request(b, o, err));
    request *r = mem_calloc(1, sizeof *r);
    if (!r || !copy_options(r, o)) {
        batch_request_free(r);
        return nib_fail_nomem(err, sizeof *r + o->n_prompt * sizeof(int32_t), "a request");
    }
    pthread_mutex_lock(&b->lock);
    *id = r->id = ++b->last_id;
    r->client = fairness_enter(&b->fairness, o->client);
    batch_append(&b->queue[r->client], r);
    b->n_waiting++;
    pthread_mutex_unlock(&b->lock);
    return NIB_OK;
}

void nib_batch_cancel(nib_batch *b, int64_t id) {
    pthread_mutex_lock(&b->lock);
    for (int c = 0; c < b->fairness.n; c++)
        for (request *r = b->queue[c].first; r; r = r->next)
            if (r->id == id)
                atomic_store(&r->cancelled, true);
    for (int32_t i = 0; i < b->n_slot; i++)
        if (b->slots[i].r && b->slots[i].r->id == id)
            atomic_store(&b->slots[i].r->cancelled, true);
    pthread_mutex_unlock(&b->lock);
}

bool nib_batch_take(nib_batch *b, int64_t *id, nib_result *result, nib_error *err) {
    pthread_mutex_lock(&b->lock);
    request *r = batch_pop(&b->done);
    pthread_mutex_unlock(&b->lock);
    if (!r)
        return false;
    *id = r->id;
    *result = r->result;
    if (err)
        *err = r->how;
    memset(&r->result, 0, sizeof r->result);
    batch_request_free(r);
    return true;
}
