/* models.c - the loaded models.
 *
 *     unloaded --(requested)--> waited for --(loaded)--> held --(no exchange, no job)--> idle --> unloaded
 *
 * A request names its model on libmicrohttpd's thread. If it is not loaded, the connection is suspended until
 * load.c has loaded it. The computing thread sets and removes a model's engine, between two steps. */
#include "server/models.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "server/call_parts.h"
#include "server/ollama.h"
#include "server/tools.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the list ---- */

bool models_open(server *s) {
    const server_options *o = &s->options;
    s->models = mem_calloc(o->n_model, sizeof *s->models);
    s->n_model = s->models ? o->n_model : 0;
    for (size_t i = 0; i < s->n_model; i++) {
        const server_model *from = &o->models[i];
        served *m = &s->models[i];
        *m = (served){.s = s,
                      .name = mem_strdup(from->name),
                      .container = from->container ? from->container : "gguf",
                      .format = from->format ? from->format : "unknown",
                      .digest = from->digest ? from->digest : "",
                      .n_param = from->n_param,
                      .n_byte = from->n_byte,
                      .n_ctx_train = from->n_ctx_train,
                      .keep_s = INFINITY};
        snprintf(m->arch, sizeof m->arch, "%s", from->arch ? from->arch : "unknown");
        if (!m->name)
            return false;
    }
    return s->n_model > 0;
}

void model_unload(served *m) {
    server *s = m->s;
    nib_batch_counts c = {0}, *past = &s->past;
    char line[160];
    if (m->batch)
        nib_batch_count(m->batch, &c);
    pthread_mutex_lock(&s->lock);
    nib_engine *engine = m->engine;
    nib_batch *batch = m->batch;
    m->engine = NULL;
    m->batch = NULL;
    s->newest = s->newest == m ? NULL : s->newest;
    past->disk_read += c.disk_read;
    past->disk_written += c.disk_written;
    past->disk_damaged += c.disk_damaged;
    past->disk_missed += c.disk_missed;
    past->ram_saved += c.ram_saved;
    past->ram_restored += c.ram_restored;
    past->paused += c.paused;
    past->draft_n += c.draft_n;
    past->draft_right += c.draft_right;
    pthread_mutex_unlock(&s->lock);
    nib_batch_close(batch);
    nib_engine_close(engine);
    malloc_trim(0); /* because the next model is planned with the resident bytes */
    snprintf(line, sizeof line, "unloaded %.100s", m->name);
    if (engine && s->options.log_requests && s->options.log)
        s->options.log(s->options.user, line);
}

void models_close(server *s) {
    for (size_t i = 0; i < s->n_model; i++) {
        served *m = &s->models[i];
        model_unload(m);
        mem_free(m->name);
    }
    mem_free(s->models);
}

/* Stores the properties of a single model, which was loaded without reading its headers first. */
static void learn(served *m, const nib_model_info *info) {
    snprintf(m->arch, sizeof m->arch, "%s", info->arch);
    m->n_param = info->params;
    m->n_byte = info->bytes;
    m->n_ctx_train = info->n_ctx_train;
}

/* Positions for the batch; 0: all sequences fit at the same time. */
static int64_t positions_of(const server *s, const nib_model_info *info) {
    const int64_t n = info->n_session - s->options.n_beside;
    return s->options.n_position ? s->options.n_position : n < s->n_sequence ? n * info->n_ctx : 0;
}

nib_status model_prepare(served *m, nib_engine *engine, nib_batch **out, nib_error *err) {
    const server *s = m->s;
    nib_batch_options o;
    nib_batch_options_init(&o);
    o.n_sequence = s->n_sequence;
    o.prefix_cache = s->prefix_cache;
    o.prefix_bytes = s->options.prefix_bytes;
    o.cache_ram = s->options.cache_ram;
    o.n_draft = s->options.n_draft;
    o.n_draft_min = s->options.n_draft_min;
    o.draft = m == s->models ? s->draft : NULL;
    o.latency_s = s->options.latency_s;
    o.schedule = s->options.schedule;
    o.n_spread = s->options.n_spread;
    o.n_position = positions_of(s, nib_engine_info(engine));
    o.optimistic = o.n_position > 0;
    nib_status status = tools_learn(m, engine, err);
    if (status == NIB_OK)
        status = nib_batch_open(engine, &o, out, err);
    if (status != NIB_OK)
        nib_engine_close(engine);
    return status;
}

void model_begin(served *m, nib_engine *engine, nib_batch *batch) {
    server *s = m->s;
    pthread_mutex_lock(&s->lock);
    if (m->n_param == 0)
        learn(m, nib_engine_info(engine));
    m->engine = engine;
    m->batch = batch;
    m->used = time_now();
    s->newest = m;
    pthread_mutex_unlock(&s->lock);
}

/* ---- finding a request's model ---- */

void model_hold(served *m) {
    pthread_mutex_lock(&m->s->lock);
    m->n_hold++;
    pthread_mutex_unlock(&m->s->lock);
}

void model_release(served *m) {
    pthread_mutex_lock(&m->s->lock);
    m->used = time_now();
    const bool idle = --m->n_hold == 0;
    pthread_mutex_unlock(&m->s->lock);
    if (idle)
        server_wake(m->s);
}

/* Finds a model by its name, which in Ollama's API may end with a tag. */
served *model_by_name(server *s, const char *name, fault *why) {
    const size_t n = strlen(name), n_tag = strlen(":latest");
    for (size_t i = 0; i < s->n_model; i++) {
        const char *have = s->models[i].name;
        if (!strcmp(have, name) || (n > n_tag && !strcmp(name + n - n_tag, ":latest") &&
                                    strlen(have) == n - n_tag && !strncmp(have, name, n - n_tag)))
            return &s->models[i];
    }
    fault_set(why, 404, "model_not_found",
              "expected one of the models that GET /v1/models lists, found '%.100s'", name);
    snprintf(why->param, sizeof why->param, "model");
    return NULL;
}

static bool is_ollama(const exchange *x) {
    return x->route->how && x->route->how->keep_alive;
}

served *model_named(server *s, const json_t *body, fault *why) {
    const json_t *name = member_get(body, "model");
    if (s->n_model == 1 || !name)
        return &s->models[0]; /* with a single model, requests need not name it */
    if (!json_is_string(name)) {
        fault_field(why, "model", "expected a string, found %s", json_type_name(name));
        return NULL;
    }
    return model_by_name(s, json_string_value(name), why);
}

static served *choose(exchange *x) {
    json_t *body = body_parse(x->body.data, x->body.n, &x->why);
    served *m = body ? model_named(x->s, body, &x->why) : NULL;
    if (m && is_ollama(x) && !ollama_keep_alive(body, &x->keep_s, &x->why))
        m = NULL;
    /* unloading a model that is not loaded has no effect */
    const bool nothing = m && is_ollama(x) && x->keep_s == 0 && ollama_asks_nothing(body);
    json_decref(body);
    if (m && nothing)
        x->gone = m;
    return m;
}

/* Called with the lock held. Gives the exchange its model. */
static void give(exchange *x, served *m) {
    m->n_hold++;
    m->keep_s = isnan(x->keep_s) ? INFINITY : x->keep_s;
    x->model = m;
}

model_taken model_take(exchange *x) {
    server *s = x->s;
    served *m = s->n_model == 1 && !is_ollama(x) ? &s->models[0] : choose(x);
    if (!m)
        return MODEL_REFUSED;
    pthread_mutex_lock(&s->lock);
    const bool here = m->engine && (s->options.local || !nib_engine_check(m->engine, NULL));
    const bool needed = !here && x->gone != m;
    if (here) {
        give(x, m);
    } else if (needed && !x->connection) { /* it cannot wait */
        m->wanted = true;
        fault_set(&x->why, 503, NULL, "the model is being loaded");
    } else if (needed) {
        x->wanted = m;
        x->next = s->waiting;
        s->waiting = x;
        m->wanted = true;
        exchange_suspend(x);
    }
    /* Once the lock is open a load that ends may resume a suspended exchange and answer it. */
    const model_taken taken = x->why.status ? MODEL_REFUSED : needed ? MODEL_AWAITED : MODEL_TAKEN;
    pthread_mutex_unlock(&s->lock);
    if (needed)
        server_wake(s);
    return taken;
}

served *model_loaded(const server *s) {
    served *found = s->newest;
    for (size_t i = 0; i < s->n_model && !found; i++)
        found = s->models[i].engine ? &s->models[i] : NULL;
    return found;
}

/* ---- waiting ---- */

void model_resume_waiting(served *m, const fault *why) {
    server *s = m->s;
    for (exchange **at = &s->waiting; *at;) {
        exchange *x = *at;
        if (x->wanted != m) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        x->wanted = NULL;
        x->why = *why;
        if (!why->status)
            give(x, m);
        exchange_resume(x);
    }
}

/* Seconds until the model may be unloaded; negative: never. */
static double left_of(const served *m) {
    return !m->engine || m->n_hold > 0 || isinf(m->keep_s) ? -1 : fmax(m->used + m->keep_s - time_now(), 0);
}

/* Guarded. A model whose file has changed, or one of whose ranks has ended, is opened again, after the
 * requests that hold it have failed. */
static bool may_be_loaded(const served *m) {
    return m->wanted && !m->s->load.m && (!m->engine || m->n_hold == 0);
}

static bool is_unusable(const served *m) {
    const server_options *o = &m->s->options;
    nib_error why;
    char line[sizeof why.message + 128];
    if (nib_engine_check(m->engine, &why) == NIB_OK)
        return false;
    snprintf(line, sizeof line, "%.100s is opened again: %s", m->name, why.message);
    if (o->log)
        o->log(o->user, line);
    return true;
}

bool models_tend(server *s) {
    const bool any = load_end(s);
    for (size_t i = 0; i < s->n_model; i++) {
        served *m = &s->models[i];
        pthread_mutex_lock(&s->lock);
        const bool loads = may_be_loaded(m), over = !m->wanted && left_of(m) == 0;
        pthread_mutex_unlock(&s->lock);
        if (over || (loads && m->engine && is_unusable(m)))
            model_unload(m);
        if (loads)
            load_begin(m);
    }
    return any;
}

int models_wait_ms(server *s, int max_ms) {
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_model; i++) {
        const double left = left_of(&s->models[i]);
        if (may_be_loaded(&s->models[i]))
            max_ms = 0;
        else if (left >= 0 && left * 1000 < max_ms)
            max_ms = (int)(left * 1000) + 1;
    }
    pthread_mutex_unlock(&s->lock);
    return max_ms;
}

void models_drop_waiting(server *s) {
    fault why = {0};
    fault_set(&why, 503, NULL, "the server is shutting down");
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_model; i++)
        model_resume_waiting(&s->models[i], &why);
    pthread_mutex_unlock(&s->lock);
}
