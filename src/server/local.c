/* local.c - requests without HTTP, made on the computing thread: an exchange without a connection uses the
 * same routes, calls and dialects. */
#include "server/local.h"

#include "base/mem.h"
#include "base/num.h"
#include "server/job.h"
#include "server/jobs.h"

#include <math.h>
#include <string.h>

/* Whether the route generates an answer or embeddings in one of OpenAI's dialects. */
static bool is_taken(const route *r) {
    return r->kind == ROUTE_ANSWER && r->how && r->how->fault == fault_json && !strncmp(r->path, "/v1/", 4);
}

static void look(exchange *x, const char *url, const char *method) {
    const server_options *o = &x->s->options;
    exchange_route(x, url, method);
    if (!x->why.status && !is_taken(x->route))
        fault_set(
            &x->why, 404, NULL,
            "expected /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings, found %.80s",
            url);
    if (x->body.n > o->max_body)
        fault_set(&x->why, 413, NULL, "the body is longer than %llu bytes", (unsigned long long)o->max_body);
}

static void refuse_stream(exchange *x) {
    if (!x->job || !x->job->call.stream)
        return;
    exchange_drop_job(x);
    fault_field(&x->why, "stream", "is not supported here: expected a request for a whole answer");
}

static exchange *begin(server *s, const char *body, size_t n_byte, const char *tag) {
    exchange *x = mem_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->s = s;
    x->fd = -1;
    x->keep_s = NAN;
    x->tag = mem_strdup(tag);
    buffer_add(&x->body, body, n_byte);
    if (x->tag && !x->body.no_memory)
        return x;
    buffer_clear(&x->body);
    exchange_free(x);
    return NULL;
}

static void append(exchange *x) {
    exchange **at = &x->s->asked;
    while (*at)
        at = &(*at)->next;
    *at = x;
}

/* The memory of a body's values is estimated from its bytes, so these stay charged until it is answered. */
bool server_ask(server *s, const char *method, const char *url, const char *body, size_t n_byte,
                const char *tag) {
    if (s->asked && s->n_body + n_byte > s->options.request_bytes / SHARE_BODIES)
        return false;
    exchange *x = begin(s, body, n_byte, tag);
    if (!x)
        return false;
    look(x, url, method);
    exchange_handle(x);
    refuse_stream(x);
    if (x->why.status == 429 && s->asked) {
        exchange_free(x);
        return false;
    }
    x->n_body = n_byte;
    s->n_body += n_byte;
    append(x);
    return true;
}

size_t server_n_answer(const server *s) {
    pthread_mutex_t *lock = (pthread_mutex_t *)(uintptr_t)&s->lock;
    pthread_mutex_lock(lock);
    const size_t n = s->n_answer;
    pthread_mutex_unlock(lock);
    return n;
}

bool server_compute(server *s, const server_host *host) {
    s->runs = host;
    const bool answers = server_turn(s), embeddings = jobs_embed(s);
    return answers || embeddings;
}

static void write_reply(exchange *x, server_reply *out) {
    job *j = x->job;
    if (j) {
        x->why = j->why;
        out->n_prompt = j->n_prompt;
        out->n_predicted = job_predicted(j);
    }
    out->lost = x->why.status >= 500;
    memcpy(out->why, x->why.message, sizeof out->why);
    if (j && !x->why.status)
        exchange_write_whole(x);
    if (x->reply.no_memory) {
        out->lost = true;
        fault_set(&x->why, 503, NULL, "out of memory");
        snprintf(out->why, sizeof out->why, "out of memory");
    }
    if (x->why.status)
        exchange_write_fault(x);
    out->status = x->why.status ? x->why.status : 200;
}

bool server_take(server *s, bool in_order, server_reply *out) {
    exchange **at = &s->asked;
    *out = (server_reply){0};
    while (!in_order && *at && (*at)->job && (*at)->job->n_left > 0)
        at = &(*at)->next;
    exchange *x = *at;
    if (!x || (x->job && x->job->n_left > 0))
        return false;
    *at = x->next;
    write_reply(x, out);
    out->tag = x->tag;
    out->body = x->reply.data;
    out->n_byte = x->reply.n;
    x->tag = NULL;
    x->reply = (buffer){0};
    exchange_free(x);
    return true;
}

void server_reply_clear(server_reply *r) {
    mem_free(r->tag);
    mem_free(r->body);
    *r = (server_reply){0};
}

static void wait_not(void *user, int fd, int max_ms) {
    (void)user;
    (void)fd;
    (void)max_ms;
}

/* Ends all local requests: a step ends cancelled requests, and their jobs, before it computes anything. Takes
 * several steps in case one fails. */
void local_drop(server *s) {
    enum { TRIES = 8 };
    static const server_host host = {.wait = wait_not};
    while (s->asked) {
        exchange *x = s->asked;
        s->asked = x->next;
        exchange_free(x);
    }
    for (int i = 0; i < TRIES && s->options.local && s->jobs; i++)
        server_compute(s, &host);
}
