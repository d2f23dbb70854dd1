/* reports.c - the state of the server: for people, programs and Prometheus. */
#include "server/reports.h"

#include "base/num.h"
#include "base/thread.h"
#include "server/job.h"
#include "server/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Whether no request for the model can succeed now: *err says why. Guarded. */
static bool is_broken(const served *m, nib_error *err) {
    enum { RECENT_S = 10 }; /* after that a request has to show whether the cause is gone */
    if (m->engine && nib_engine_check(m->engine, err))
        return true;
    err->status = NIB_E_FAILED;
    snprintf(err->message, sizeof err->message, "%s", m->failed_why);
    return m->failed > 0 && time_now() - m->failed < RECENT_S;
}

/* Whether some model can answer. */
static bool can_answer(server *s, fault *why) {
    nib_error err;
    bool broken = true;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_model && broken; i++)
        broken = is_broken(&s->models[i], &err);
    pthread_mutex_unlock(&s->lock);
    return !broken || fault_set(why, 503, NULL, "%s", err.message);
}

void report_health(exchange *x) {
    if (!atomic_load(&x->s->ready))
        fault_set(&x->why, 503, NULL, "Loading model");
    else if (atomic_load(&x->s->ending))
        fault_set(&x->why, 503, NULL, "the server is shutting down");
    else if (can_answer(x->s, &x->why))
        exchange_json(x, json_pack("{s:s}", "status", "ok"));
}

/* Guarded. */
static json_t *model_json(const server *s, const served *m) {
    const char *state = m->engine ? "loaded" : m->wanted ? "loading" : "unloaded";
    json_t *meta =
        json_pack("{s:s, s:I, s:I, s:I}", "arch", m->arch, "n_ctx_train", (json_int_t)m->n_ctx_train,
                  "n_params", (json_int_t)m->n_param, "size", (json_int_t)m->n_byte);
    if (m->engine) {
        const nib_model_info *info = nib_engine_info(m->engine);
        json_object_set_new(meta, "n_ctx", json_integer((json_int_t)info->n_ctx));
        json_object_set_new(meta, "n_vocab", json_integer((json_int_t)info->n_vocab));
        json_object_set_new(meta, "n_embd", json_integer((json_int_t)info->d_embed));
    }
    char since[32];
    struct tm parts;
    if (!gmtime_r(&s->opened, &parts) || !strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &parts))
        since[0] = '\0';
    /* type, display_name and created_at are the members of Anthropic's API */
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:s, s:s, s:{s:s}, s:o}", "id", m->name, "object", "model",
                     "created", (json_int_t)s->opened, "owned_by", "nibble", "type", "model", "display_name",
                     m->name, "created_at", since, "status", "value", state, "meta", meta);
}

void report_models(exchange *x) {
    json_t *list = json_array();
    pthread_mutex_lock(&x->s->lock);
    for (size_t i = 0; i < x->s->n_model; i++)
        json_array_append_new(list, model_json(x->s, &x->s->models[i]));
    pthread_mutex_unlock(&x->s->lock);
    exchange_json(x, json_pack("{s:s, s:o, s:b, s:s, s:s}", "object", "list", "data", list, "has_more", 0,
                               "first_id", x->s->models[0].name, "last_id",
                               x->s->models[x->s->n_model - 1].name));
}

void report_model(exchange *x) {
    const served *m = model_by_name(x->s, x->named, &x->why);
    if (!m)
        return;
    pthread_mutex_lock(&x->s->lock);
    json_t *value = model_json(x->s, m);
    pthread_mutex_unlock(&x->s->lock);
    exchange_json(x, value);
}

/* RAM of each model; the rest of the process belongs to none. Guarded. */
static json_t *models_memory(const server *s) {
    json_t *all = json_object();
    for (size_t i = 0; i < s->n_model; i++) {
        nib_memory mem;
        if (s->models[i].engine)
            nib_engine_memory(s->models[i].engine, &mem);
        json_object_set_new(all, s->models[i].name,
                            s->models[i].engine ? memory_owners(&mem) : json_object());
    }
    return all;
}

/* The draft model is the first model's, the only one then. */
static memory_use use_of(const server *s, const served *m) {
    return (memory_use){.engine = m->engine, .draft = s->draft, .beside = s->draft_bytes};
}

/* Reports the memory of the process as the most recently opened engine accounts for it: the other models and
 * the memory for requests count as a part of its runtime. */
void report_memory(exchange *x) {
    server *s = x->s;
    const json_int_t cap = (json_int_t)s->options.request_bytes;
    pthread_mutex_lock(&s->lock);
    const served *m = model_loaded(s);
    json_t *memory = m ? memory_json(use_of(s, m)) : json_object(), *models = models_memory(s);
    pthread_mutex_unlock(&s->lock);
    json_t *ram = json_object_get(json_object_get(memory, "tiers"), "ram");
    if (ram && s->options.ram_cap != NIB_AUTO) {
        json_t *planned = json_object_get(ram, "planned");
        json_object_set_new(ram, "cap", json_integer((json_int_t)s->options.ram_cap));
        json_integer_set(planned, json_integer_value(planned) + cap);
    }
    json_object_set_new(memory, "models", models);
    json_object_set_new(memory, "requests",
                        json_pack("{s:I, s:I}", "cap", cap, "bodies", (json_int_t)s->n_body));
    exchange_json(x, memory);
}

/* ---- what is being computed ---- */

static json_t *slot_json(const answer *a) {
    const size_t n = atomic_load(&a->n_made);
    return json_pack("{s:I, s:s, s:b, s:I, s:I, s:I}", "id", (json_int_t)a->id, "request", a->of->id,
                     "is_processing", n > 0, "n_prompt", (json_int_t)a->n_prompt, "n_predicted",
                     (json_int_t)n, "max_tokens", (json_int_t)a->of->call.max_tokens);
}

void report_slots(exchange *x) {
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
        {"tokens_predicted_seconds_total", "counter", "seconds of generating, summed over answers",
         c->predicted_s},
        {"requests_processing", "gauge", "answers that are computed", NUM_MIN(n, places)},
        {"requests_deferred", "gauge", "answers that wait to be computed", NUM_MAX(n - places, 0)},
        {"parallel", "gauge", "places", places},
        {"connections", "gauge", "requests in progress", atomic_load(&s->n_exchange)},
    };
    print_rows(rows, NUM_COUNT(rows), out);
}

/* Counts of all models, also of unloaded ones. Guarded. */
static nib_batch_counts count_batches(const server *s) {
    nib_batch_counts all = s->past;
    for (size_t i = 0; i < s->n_model; i++) {
        nib_batch_counts c;
        if (!s->models[i].batch)
            continue;
        nib_batch_count(s->models[i].batch, &c);
        all.paused += c.paused;
        all.draft_n += c.draft_n;
        all.draft_right += c.draft_right;
        all.disk_bytes = NUM_MAX(all.disk_bytes, c.disk_bytes); /* all models share one folder */
        all.disk_read += c.disk_read;
        all.disk_written += c.disk_written;
        all.disk_missed += c.disk_missed;
        all.disk_damaged += c.disk_damaged;
        all.ram_bytes += c.ram_bytes;
        all.ram_saved += c.ram_saved;
        all.ram_restored += c.ram_restored;
    }
    return all;
}

static void print_batches(nib_batch_counts c, buffer *out) {
    const metric rows[] = {
        {"answers_paused_total", "counter", "times that an answer was paused until KV pages were free",
         (double)c.paused},
        {"draft_tokens_total", "counter", "tokens proposed by speculation", (double)c.draft_n},
        {"draft_tokens_accepted_total", "counter", "proposed tokens that were accepted",
         (double)c.draft_right},
        {"prefix_disk_bytes", "gauge", "bytes of the prefix cache on disk", (double)c.disk_bytes},
        {"prefix_pages_read_total", "counter", "pages of 64 positions read from the prefix cache",
         (double)c.disk_read},
        {"prefix_pages_written_total", "counter", "pages written to the prefix cache",
         (double)c.disk_written},
        {"prefix_pages_missed_total", "counter", "pages that could not be written to the prefix cache",
         (double)c.disk_missed},
        {"prefix_pages_damaged_total", "counter", "damaged files of the prefix cache, which were removed",
         (double)c.disk_damaged},
        {"prefix_ram_bytes", "gauge", "bytes of RAM for KV pages that left the GPU", (double)c.ram_bytes},
        {"prefix_pages_saved_total", "counter", "pages of 64 positions copied from the GPU to RAM",
         (double)c.ram_saved},
        {"prefix_pages_restored_total", "counter", "pages copied back to the GPU instead of computed",
         (double)c.ram_restored},
    };
    print_rows(rows, NUM_COUNT(rows), out);
}

static void print_times(const server_counts *c, buffer *out) {
    uint64_t n = 0;
    char label[64];
    head(out, "time_to_first_token_seconds", "histogram",
         "seconds from the start of a prompt to its first token");
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

/* The parts of "kv" of memory.h's JSON, each a row with the value 1. */
static void print_formats(const json_t *memory, buffer *out) {
    const json_t *part;
    char label[96];
    size_t i;
    head(out, "kv_format", "gauge", "1: the format of the keys and values of these layers");
    json_array_foreach(json_object_get(memory, "kv"), i, part) {
        snprintf(label, sizeof label, "{layers=\"%.24s\",format=\"%.24s\"}",
                 json_string_value(json_object_get(part, "layers")),
                 json_string_value(json_object_get(part, "format")));
        print(out, "kv_format", label, 1);
    }
}

static void print_memory(const nib_memory *m, size_t n_loaded, buffer *out) {
    char label[64];
    head(out, "memory_bytes", "gauge", "RAM charged now, by owner");
    for (int i = 0; i < NIB_N_OWNER; i++) {
        snprintf(label, sizeof label, "{owner=\"%s\"}", memory_owner_names[i]);
        print(out, "memory_bytes", label, (double)m->owner[i]);
    }
    head(out, "memory_planned_bytes", "gauge", "planned bytes, by tier");
    for (int i = 0; i < NIB_N_TIER; i++) {
        snprintf(label, sizeof label, "{tier=\"%s\"}", memory_tier_names[i]);
        print(out, "memory_planned_bytes", label, (double)m->tier[i].planned);
    }
    head(out, "memory_peak_bytes", "gauge", "the process's peak resident set");
    print(out, "memory_peak_bytes", "", (double)m->rss_peak);
    head(out, "models_loaded", "gauge", "models that are loaded");
    print(out, "models_loaded", "", (double)n_loaded);
}

void report_metrics(exchange *x) {
    server *s = x->s;
    nib_memory mem = {0};
    json_t *memory = NULL;
    size_t n_loaded = 0;
    pthread_mutex_lock(&s->lock);
    const server_counts c = s->counts;
    const size_t n = s->n_answer;
    const nib_batch_counts batches = count_batches(s);
    const served *m = model_loaded(s);
    if (m) {
        memory_read(use_of(s, m), &mem);
        memory = memory_json(use_of(s, m));
    }
    for (size_t i = 0; i < s->n_model; i++)
        n_loaded += s->models[i].engine != NULL;
    pthread_mutex_unlock(&s->lock);
    print_counts(s, &c, n, &x->reply);
    print_batches(batches, &x->reply);
    print_times(&c, &x->reply);
    print_memory(&mem, n_loaded, &x->reply);
    print_formats(memory, &x->reply);
    json_decref(memory);
    x->type = "text/plain; version=0.0.4; charset=utf-8";
}

/* ---- the page ---- */

void report_page(exchange *x) {
    buffer_add(&x->reply, server_page, server_page_size);
    x->type = "text/html; charset=utf-8";
}
