/* models.c - which models are loaded.
 *
 *     unloaded --(asked for)--> waited for --(loaded)--> held --(no exchange, no job)--> idle --> unloaded
 *
 * A request names its model on libmicrohttpd's thread. One that is not loaded is waited for: the connection
 * is suspended, and the thread that computes loads the model between two steps. Memory has one rule: what is
 * resident stays within the caps, so before a load that does not fit beside the others the one that is idle
 * for longest goes. Nobody's answer is given up for it: where all others are held the request is told to come
 * again. A model that does not fit as a whole is read from disk while it computes only where it is alone. */
#include "server/parts.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "server/call_parts.h"

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
                      .model = mem_strdup(from->model),
                      .arch = mem_strdup(from->arch ? from->arch : "unknown"),
                      .n_param = from->n_param,
                      .n_byte = from->n_byte,
                      .n_ctx_train = from->n_ctx_train,
                      .keep_s = INFINITY};
        if (!m->name || !m->model || !m->arch)
            return false;
    }
    return s->n_model > 0;
}

/* By the thread that computes, or when it does no longer. */
static void unload(served *m) {
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
    past->paused += c.paused;
    past->draft_n += c.draft_n;
    past->draft_right += c.draft_right;
    pthread_mutex_unlock(&s->lock);
    nib_batch_close(batch);
    nib_engine_close(engine);
    malloc_trim(0); /* the next one is planned with what is resident */
    snprintf(line, sizeof line, "unloaded %.100s", m->name);
    if (engine && s->options.log_requests && s->options.log)
        s->options.log(s->options.user, line);
}

void models_close(server *s) {
    for (size_t i = 0; i < s->n_model; i++) {
        served *m = &s->models[i];
        unload(m);
        mem_free(m->name);
        mem_free(m->model);
        mem_free(m->arch);
    }
    mem_free(s->models);
}

/* Of the one model that there is, which was loaded without a look at it before. */
static void learn(served *m, const nib_model_info *info) {
    char *arch = mem_strdup(info->arch);
    m->n_param = info->params;
    m->n_byte = info->bytes;
    m->n_ctx_train = info->n_ctx_train;
    if (!arch)
        return;
    mem_free(m->arch);
    m->arch = arch;
}

nib_status model_begin(served *m, nib_engine *engine, nib_error *err) {
    server *s = m->s;
    nib_batch *batch = NULL;
    nib_batch_options o;
    nib_batch_options_init(&o);
    o.n_sequence = s->n_sequence;
    o.prefix_cache = s->prefix_cache;
    o.prefix_bytes = s->options.prefix_bytes;
    o.n_draft = s->options.n_draft;
    o.n_draft_min = s->options.n_draft_min;
    o.draft = m == s->models ? s->draft : NULL;
    o.latency_s = s->options.latency_s;
    o.n_position = s->options.n_position;
    o.optimistic = s->options.n_position > 0;
    const nib_status status = nib_batch_open(engine, &o, &batch, err);
    if (status != NIB_OK) {
        nib_engine_close(engine);
        return status;
    }
    tools_learn(m, engine);
    pthread_mutex_lock(&s->lock);
    if (m->n_param == 0)
        learn(m, nib_engine_info(engine));
    m->engine = engine;
    m->batch = batch;
    m->used = time_now();
    s->newest = m;
    pthread_mutex_unlock(&s->lock);
    return NIB_OK;
}

/* ---- asking ---- */

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

/* Ollama's names may end in a tag. */
static served *find(server *s, const char *name) {
    const size_t n = strlen(name), n_tag = strlen(":latest");
    for (size_t i = 0; i < s->n_model; i++) {
        const char *have = s->models[i].name;
        if (!strcmp(have, name) || (n > n_tag && !strcmp(name + n - n_tag, ":latest") &&
                                    strlen(have) == n - n_tag && !strncmp(have, name, n - n_tag)))
            return &s->models[i];
    }
    return NULL;
}

static bool is_ollama(const exchange *x) {
    return x->route->how && x->route->how->keep_alive;
}

served *model_named(server *s, const json_t *body, fault *why) {
    const json_t *name = member_get(body, "model");
    if (s->n_model == 1 || !name)
        return &s->models[0]; /* who has one model need not say which */
    if (!json_is_string(name)) {
        fault_field(why, "model", "expected a string, found %s", json_type_name(name));
        return NULL;
    }
    served *m = find(s, json_string_value(name));
    if (m)
        return m;
    fault_set(why, 404, "model_not_found",
              "the model '%.100s' is not here: GET /v1/models lists those that are", json_string_value(name));
    snprintf(why->param, sizeof why->param, "model");
    return NULL;
}

static served *choose(exchange *x) {
    json_t *body = body_parse(x->body.data, x->body.n, &x->why);
    served *m = body ? model_named(x->s, body, &x->why) : NULL;
    if (m && is_ollama(x) && !ollama_keep_alive(body, &x->keep_s, &x->why))
        m = NULL;
    /* to unload what is not loaded is done */
    const bool nothing = m && is_ollama(x) && x->keep_s == 0 && ollama_asks_nothing(body);
    json_decref(body);
    if (m && nothing)
        x->gone = m;
    return m;
}

/* Guarded. */
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
    const bool here = m->engine != NULL, needed = !here && x->gone != m;
    if (here) {
        give(x, m);
    } else if (needed) {
        x->wanted = m;
        x->next = s->waiting;
        s->waiting = x;
        m->wanted = true;
        exchange_suspend(x);
    }
    pthread_mutex_unlock(&s->lock);
    if (needed)
        server_wake(s);
    return needed ? MODEL_AWAITED : MODEL_TAKEN;
}

/* ---- loading ---- */

served *model_loaded(const server *s) {
    served *found = s->newest;
    for (size_t i = 0; i < s->n_model && !found; i++)
        found = s->models[i].engine ? &s->models[i] : NULL;
    return found;
}

/* What the others may still take, and have. */
static server_room room_beside(const server *s) {
    server_room r = {.alone = true};
    for (size_t i = 0; i < s->n_model; i++) {
        nib_memory mem;
        uint64_t resident = 0;
        if (!s->models[i].engine)
            continue;
        nib_engine_memory(s->models[i].engine, &mem);
        for (int o = 0; o < NIB_N_OWNER; o++)
            resident += mem.owner[o];
        const uint64_t planned = mem.tier[NIB_TIER_RAM].planned;
        r.ram += planned > resident ? planned - resident : 0;
        r.vram += mem.tier[NIB_TIER_VRAM].planned;
        r.alone = false;
    }
    return r;
}

static int n_loaded(const server *s) {
    int n = 0;
    for (size_t i = 0; i < s->n_model; i++)
        n += s->models[i].engine != NULL;
    return n;
}

/* The one that is idle for longest; NULL: there is none. */
static served *oldest_idle(server *s) {
    served *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_model; i++) {
        served *m = &s->models[i];
        if (m->engine && m->n_hold == 0 && (!found || m->used < found->used))
            found = m;
    }
    pthread_mutex_unlock(&s->lock);
    return found;
}

static bool unload_oldest(server *s) {
    served *m = oldest_idle(s);
    if (m)
        unload(m);
    return m != NULL;
}

static nib_status open_once(served *m, nib_error *err) {
    const server_options *o = &m->s->options;
    const server_room room = room_beside(m->s);
    nib_engine *engine;
    NIB_TRY(o->open(o->opener, m->model, &room, &engine, err));
    return model_begin(m, engine, err);
}

static bool refuse_for_now(const served *m, const nib_error *err, fault *why) {
    why->retry_s = 1;
    return fault_set(why, 503, "out_of_memory", "%.100s cannot be loaded while other models answer: %.300s",
                     m->name, err->message);
}

/* Caps do not change, so it is not tried again beside others, which would be unloaded for nothing. */
static bool refuse_too_large(served *m, const nib_error *err, fault *why) {
    if (n_loaded(m->s) == 0)
        snprintf(m->too_large_why, sizeof m->too_large_why, "%s", err->message);
    m->too_large = true;
    return fault_set(why, 507, "out_of_memory", "%.100s does not fit, with nothing beside it: %.300s",
                     m->name, m->too_large_why);
}

static bool load(served *m, fault *why) {
    server *s = m->s;
    nib_error err = {.status = NIB_E_NOFIT, .message = "no more models may be loaded (--models-max)"};
    if (m->too_large && n_loaded(s) > 0)
        return refuse_too_large(m, &err, why);
    while (s->options.n_loaded > 0 && n_loaded(s) >= s->options.n_loaded)
        if (!unload_oldest(s))
            return refuse_for_now(m, &err, why);
    do
        err.status = open_once(m, &err);
    while ((err.status == NIB_E_NOFIT || err.status == NIB_E_NOMEM) && unload_oldest(s));
    if (err.status == NIB_OK)
        m->too_large = false;
    if (err.status == NIB_OK)
        return true;
    if (err.status != NIB_E_NOFIT && err.status != NIB_E_NOMEM)
        return fault_set(why, 500, NULL, "%.100s cannot be loaded: %.300s", m->name, err.message);
    return n_loaded(s) > 0 ? refuse_for_now(m, &err, why) : refuse_too_large(m, &err, why);
}

static void say_loaded(const served *m, const fault *why) {
    const server_options *o = &m->s->options;
    char line[512];
    if (!o->log_requests || !o->log)
        return;
    if (why->status)
        snprintf(line, sizeof line, "%s", why->message);
    else
        snprintf(line, sizeof line, "loaded %.100s in %.3f s", m->name, m->load_s);
    o->log(o->user, line);
}

/* Guarded: those who wait for the model go on. */
static void resume_waiting(server *s, served *m, const fault *why) {
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

static void load_wanted(served *m) {
    server *s = m->s;
    fault why = {0};
    const double begun = time_now();
    if (atomic_load(&s->ending))
        fault_set(&why, 503, NULL, "the server is ending");
    else if (!m->engine)
        load(m, &why);
    pthread_mutex_lock(&s->lock);
    m->load_s = time_now() - begun;
    m->wanted = false;
    resume_waiting(s, m, &why);
    pthread_mutex_unlock(&s->lock);
    say_loaded(m, &why);
}

/* Seconds until it may go; negative: it stays. */
static double left_of(const served *m) {
    return !m->engine || m->n_hold > 0 || isinf(m->keep_s) ? -1 : fmax(m->used + m->keep_s - time_now(), 0);
}

bool models_tend(server *s) {
    bool any = false;
    for (size_t i = 0; i < s->n_model; i++) {
        served *m = &s->models[i];
        pthread_mutex_lock(&s->lock);
        const bool wanted = m->wanted, over = !wanted && left_of(m) == 0;
        pthread_mutex_unlock(&s->lock);
        if (wanted)
            load_wanted(m);
        else if (over)
            unload(m);
        any = any || wanted;
    }
    return any;
}

int models_wait_ms(server *s, int max_ms) {
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_model; i++) {
        const double left = left_of(&s->models[i]);
        if (s->models[i].wanted)
            max_ms = 0;
        else if (left >= 0 && left * 1000 < max_ms)
            max_ms = (int)(left * 1000) + 1;
    }
    pthread_mutex_unlock(&s->lock);
    return max_ms;
}

void models_drop_waiting(server *s) {
    fault why = {0};
    fault_set(&why, 503, NULL, "the server is ending");
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->n_model; i++)
        resume_waiting(s, &s->models[i], &why);
    pthread_mutex_unlock(&s->lock);
}
