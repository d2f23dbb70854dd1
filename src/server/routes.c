/* routes.c - every address, one row each, and those whose answer is one look. */
#include "server/parts.h"

#include "base/num.h"

#include <string.h>

static void health(exchange *x) {
    if (!atomic_load(&x->s->ready))
        fault_set(&x->why, 503, NULL, "Loading model");
    else if (atomic_load(&x->s->ending))
        fault_set(&x->why, 503, NULL, "the server is ending");
    else
        exchange_json(x, json_pack("{s:s}", "status", "ok"));
}

static bool is_ready(exchange *x) {
    return atomic_load(&x->s->ready) || fault_set(&x->why, 503, NULL, "Loading model");
}

static void models(exchange *x) {
    const server *s = x->s;
    if (!is_ready(x))
        return;
    const nib_model_info *m = nib_engine_info(s->engine);
    exchange_json(x, json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:{s:s, s:I, s:I, s:I, s:I, s:I}}]}", "object",
                               "list", "data", "id", s->name, "object", "model", "created",
                               (json_int_t)s->opened, "owned_by", "nibble", "meta", "arch", m->arch, "n_ctx",
                               (json_int_t)m->n_ctx, "n_ctx_train", (json_int_t)m->n_ctx_train, "n_vocab",
                               (json_int_t)m->n_vocab, "n_params", (json_int_t)m->params, "size",
                               (json_int_t)m->bytes));
}

static void answer_call(exchange *x, call_kind kind) {
    call c;
    if (call_parse(kind, x->body.data, x->body.n, &c, &x->why))
        job_begin(x, &c, x->route->how, &x->why);
    else
        call_clear(&c);
}

static void chat(exchange *x) {
    answer_call(x, CALL_CHAT);
}

static void completion(exchange *x) {
    answer_call(x, CALL_COMPLETION);
}

const route server_routes[] = {
    {"GET", "/health", true, NULL, health},
    {"GET", "/v1/health", true, NULL, health},
    {"GET", "/v1/models", false, NULL, models},
    {"GET", "/models", false, NULL, models},
    {"POST", "/v1/chat/completions", false, &openai_chat, chat},
    {"POST", "/chat/completions", false, &openai_chat, chat},
    {"POST", "/v1/completions", false, &openai_completion, completion},
    {"POST", "/completions", false, &openai_completion, completion},
};
const size_t server_n_route = NUM_COUNT(server_routes);
