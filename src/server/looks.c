/* looks.c - how the server does: for people, programs and Prometheus. */
#include "server/parts.h"

#include "base/num.h"
#include "server/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void looks_health(exchange *x) {
    if (!atomic_load(&x->s->ready))
        fault_set(&x->why, 503, NULL, "Loading model");
    else if (atomic_load(&x->s->ending))
        fault_set(&x->why, 503, NULL, "the server is ending");
    else
        exchange_json(x, json_pack("{s:s}", "status", "ok"));
}

void looks_models(exchange *x) {
    const server *s = x->s;
    const nib_model_info *m = nib_engine_info(s->engine);
    exchange_json(x, json_pack("{s:s, s:[{s:s, s:s, s:I, s:s, s:{s:s, s:I, s:I, s:I, s:I, s:I}}]}", "object",
                               "list", "data", "id", s->name, "object", "model", "created",
                               (json_int_t)s->opened, "owned_by", "nibble", "meta", "arch", m->arch, "n_ctx",
                               (json_int_t)m->n_ctx, "n_ctx_train", (json_int_t)m->n_ctx_train, "n_vocab",
                               (json_int_t)m->n_vocab, "n_params", (json_int_t)m->params, "size",
                               (json_int_t)m->bytes));
}

/* The engine's memory, with what is kept for requests: under a cap that is a part of it. */
void looks_memory(exchange *x) {
    json_t *memory = memory_json(x->s->engine),
           *ram = json_object_get(json_object_get(memory, "tiers"), "ram");
    const json_int_t room = (json_int_t)x->s->options.room;
    json_t *cap = json_object_get(ram, "cap"), *planned = json_object_get(ram, "planned");
    if (json_is_integer(cap)) {
        json_integer_set(cap, json_integer_value(cap) + room);
        json_integer_set(planned, json_integer_value(planned) + room);
    }
    json_object_set_new(memory, "requests",
                        json_pack("{s:I, s:I}", "cap", room, "bodies", (json_int_t)x->s->n_body));
    exchange_json(x, memory);
}

/* ---- what is being computed ---- */

static json_t *slot_json(const answer *a) {
    const size_t n = atomic_load(&a->n_made);
    return json_pack("{s:I, s:s, s:b, s:I, s:I, s:I}", "id", (json_int_t)a->id, "request", a->of->id,
                     "is_processing", n > 0, "n_prompt", (json_int_t)a->n_prompt, "n_predicted",
                     (json_int_t)n, "max_tokens", (json_int_t)a->of->call.max_tokens);
}

void looks_slots(exchange *x) {
    json_t *list = json_array();
    pthread_mutex_lock(&x->s->lock);
    for (const job *j = x->s->jobs; j; j = j->next)
        for (size_t i = 0; i < j->n_answer; i++)
            if (j->answers[i].id && !j->answers[i].done)
                json_array_append_new(list, slot_json(&j->answers[i]));
    pthread_mutex_unlock(&x->s->lock);
    exchange_json(x, list);
}

/* ---- metrics ---- */

typedef struct metric {
    const char *name, *kind, *help;
    double value;
} metric;

static void print(buffer *out, const char *name, const char *labels, double value) {
    char line[160];
    snprintf(line, sizeof line, "nibble_%s%s %.17g\n", name, labels, value);
    buffer_text(out, line);
}

static void head(buffer *out, const char *name, const char *kind, const char *help) {
    char line[256];
    snprintf(line, sizeof line, "# HELP nibble_%s %s\n# TYPE nibble_%s %s\n", name, help, name, kind);
    buffer_text(out, line);
}

static void print_rows(const metric *rows, size_t n, buffer *out) {
    for (size_t i = 0; i < n; i++) {
        head(out, rows[i].name, rows[i].kind, rows[i].help);
        print(out, rows[i].name, "", rows[i].value);
    }
}

static void print_counts(const server *s, const server_counts *c, size_t n_answer, buffer *out) {
    const double n = (double)n_answer, places = s->n_sequence;
    const metric rows[] = {
        {"requests_total", "counter", "requests that were taken", (double)c->n_request},
        {"requests_refused_total", "counter", "requests that were answered with an error",
         (double)c->n_refused},
        {"answers_cancelled_total", "counter", "answers whose client left", (double)c->n_cancelled},
        {"answers_failed_total", "counter", "answers that could not be computed", (double)c->n_failed},
        {"prompt_tokens_total", "counter", "tokens of prompts computed", (double)c->prompt_tokens},
        {"cached_tokens_total", "counter", "tokens of prompts shared with others", (double)c->cached_tokens},
        {"prompt_seconds_total", "counter", "seconds until first tokens", c->prompt_s},
        {"tokens_predicted_total", "counter", "tokens generated", (double)c->predicted_tokens},
        {"tokens_predicted_seconds_total", "counter", "seconds that generating took, by answer",
         c->predicted_s},
        {"requests_processing", "gauge", "answers that have a place", NUM_MIN(n, places)},
        {"requests_deferred", "gauge", "answers that wait for one", NUM_MAX(n - places, 0)},
        {"parallel", "gauge", "places", places},
        {"connections", "gauge", "requests on their way", atomic_load(&s->n_exchange)},
    };
    print_rows(rows, NUM_COUNT(rows), out);
}

static void print_batch(const server *s, buffer *out) {
    nib_batch_counts c;
    nib_batch_count(s->batch, &c);
    const metric rows[] = {
        {"answers_paused_total", "counter", "times that an answer had to wait for room in the middle",
         (double)c.paused},
        {"draft_tokens_total", "counter", "tokens that were proposed to follow", (double)c.draft_n},
        {"draft_tokens_accepted_total", "counter", "of those, the ones that did", (double)c.draft_right},
        {"prefix_disk_bytes", "gauge", "bytes of the prefix cache on disk", (double)c.disk_bytes},
        {"prefix_pages_read_total", "counter", "pages of 64 positions read from it", (double)c.disk_read},
        {"prefix_pages_written_total", "counter", "pages written to it", (double)c.disk_written},
        {"prefix_pages_missed_total", "counter", "pages that could not be written to it",
         (double)c.disk_missed},
        {"prefix_pages_damaged_total", "counter", "files of it that were damaged, and removed",
         (double)c.disk_damaged},
    };
    print_rows(rows, NUM_COUNT(rows), out);
}

static void print_times(const server_counts *c, buffer *out) {
    uint64_t n = 0;
    char label[64];
    head(out, "time_to_first_token_seconds", "histogram",
         "from the first look at a prompt to its first token");
    for (size_t i = 0; i < N_TIME; i++) {
        n += c->first_token[i];
        if (i + 1 < N_TIME)
            snprintf(label, sizeof label, "_bucket{le=\"%s\"}", num_text(server_times[i], 6));
        else
            snprintf(label, sizeof label, "_bucket{le=\"+Inf\"}");
        print(out, "time_to_first_token_seconds", label, (double)n);
    }
    print(out, "time_to_first_token_seconds", "_sum", c->prompt_s);
    print(out, "time_to_first_token_seconds", "_count", (double)n);
}

static void print_memory(const server *s, buffer *out) {
    nib_memory m;
    char label[64];
    nib_engine_memory(s->engine, &m);
    head(out, "memory_bytes", "gauge", "RAM charged now, by owner");
    for (int i = 0; i < NIB_N_OWNER; i++) {
        snprintf(label, sizeof label, "{owner=\"%s\"}", memory_owner_names[i]);
        print(out, "memory_bytes", label, (double)m.owner[i]);
    }
    head(out, "memory_planned_bytes", "gauge", "what the engine said it would use, by tier");
    for (int i = 0; i < NIB_N_TIER; i++) {
        snprintf(label, sizeof label, "{tier=\"%s\"}", memory_tier_names[i]);
        print(out, "memory_planned_bytes", label, (double)m.tier[i].planned);
    }
    head(out, "memory_peak_bytes", "gauge", "the process's peak resident set");
    print(out, "memory_peak_bytes", "", (double)m.rss_peak);
}

void looks_metrics(exchange *x) {
    server *s = x->s;
    pthread_mutex_lock(&s->lock);
    const server_counts c = s->counts;
    const size_t n = s->n_answer;
    pthread_mutex_unlock(&s->lock);
    print_counts(s, &c, n, &x->reply);
    print_batch(s, &x->reply);
    print_times(&c, &x->reply);
    print_memory(s, &x->reply);
    x->type = "text/plain; version=0.0.4; charset=utf-8";
}

/* ---- the page ---- */

void looks_page(exchange *x) {
    buffer_add(&x->reply, server_page, server_page_size);
    x->type = "text/html; charset=utf-8";
}
