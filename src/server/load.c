/* load.c - loads models on a thread of its own, so that the computing thread continues with other models.
 *
 *     waited for --(load_begin)--> being loaded --(load_end)--> held, or its requests are refused
 *                                    ^      |
 *                                    '------' again, after an idle model freed its memory
 *
 * One model is loaded at a time. Resident memory stays within the caps: the engine gets the caps less the
 * memory that the others may still take, and before another try the model that has been idle longest is
 * unloaded. Memory that others allocate during the load is counted twice, so a load may be refused too early
 * but never too late. No answer is dropped for a load: if all other models are in use, the client is asked to
 * try again. A model that does not fit as a whole is streamed only if it is the only one. */
#include "server/load.h"

#include "base/thread.h"
#include "server/models.h"

#include <stdio.h>

/* The memory that the other models have and may still take. */
static server_reserved reserved_by_others(const server *s) {
    server_reserved r = {.alone = true};
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

/* The model that has been idle longest; NULL: none is idle. */
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
        model_unload(m);
    return m != NULL;
}

/* ---- the loading thread ---- */

static void *open_model(void *user) {
    load *l = user;
    served *m = l->m;
    const server_options *o = &m->s->options;
    nib_error err = {.status = NIB_OK};
    nib_engine *engine;
    err.status = o->open(o->opener, (size_t)(m - m->s->models), &l->reserved, &engine, &err);
    if (err.status == NIB_OK)
        err.status = model_prepare(m, engine, &l->batch, &err);
    l->engine = err.status == NIB_OK ? engine : NULL;
    l->err = err;
    atomic_store(&l->done, true);
    server_wake(m->s);
    return NULL;
}

/* Starts the load; if no thread can be created, loads the model on this thread. */
static void start(load *l) {
    l->reserved = reserved_by_others(l->m->s);
    l->engine = NULL;
    l->batch = NULL;
    atomic_store(&l->done, false);
    l->has_thread = pthread_create(&l->thread, NULL, open_model, l) == 0;
    if (!l->has_thread)
        open_model(l);
}

static void join(load *l) {
    if (l->has_thread)
        pthread_join(l->thread, NULL);
    l->has_thread = false;
}

/* ---- the computing thread ---- */

static bool refuse_for_now(const served *m, const nib_error *err, fault *why) {
    why->retry_s = 1;
    return fault_set(why, 503, "out_of_memory", "%.100s cannot be loaded while other models answer: %.300s",
                     m->name, err->message);
}

/* Refuses a model that did not fit alone. The caps do not change, so a new attempt would unload others for
 * nothing. */
static bool refuse_too_large(served *m, const nib_error *err, fault *why) {
    if (n_loaded(m->s) == 0)
        snprintf(m->too_large_why, sizeof m->too_large_why, "%s", err->message);
    m->too_large = true;
    return fault_set(why, 507, "out_of_memory", "%.100s does not fit, even alone: %.300s", m->name,
                     m->too_large_why);
}

static void log_result(const served *m, const fault *why) {
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

/* The load has ended: resumes the requests that wait for it. */
static void finish(load *l, const fault *why) {
    served *m = l->m;
    pthread_mutex_lock(&m->s->lock);
    m->load_s = time_now() - l->begun;
    m->wanted = false;
    if (why->status == 500) {
        m->failed = l->begun + m->load_s;
        snprintf(m->failed_why, sizeof m->failed_why, "%s", why->message);
    }
    model_resume_waiting(m, why);
    pthread_mutex_unlock(&m->s->lock);
    log_result(m, why);
    l->m = NULL;
}

/* Whether the model may be loaded; false: *why is set. */
static bool may_load(served *m, fault *why) {
    const server *s = m->s;
    const nib_error full = {.status = NIB_E_NOFIT, .message = "expected at most --models-max loaded models"};
    if (atomic_load(&s->ending))
        return fault_set(why, 503, NULL, "the server is ending");
    if (m->too_large && n_loaded(s) > 0)
        return refuse_too_large(m, &full, why);
    while (s->options.n_loaded > 0 && n_loaded(s) >= s->options.n_loaded)
        if (!unload_oldest(m->s))
            return refuse_for_now(m, &full, why);
    return true;
}

void load_begin(served *m) {
    load *l = &m->s->load;
    fault why = {0};
    l->m = m;
    l->begun = time_now();
    if (m->engine || !may_load(m, &why))
        finish(l, &why);
    else
        start(l);
}

/* Whether more memory is free than at the last attempt. */
static bool freed_memory(const load *l) {
    server *s = l->m->s;
    return unload_oldest(s) || (!l->reserved.alone && n_loaded(s) == 0);
}

static bool refuse(const load *l, fault *why) {
    served *m = l->m;
    if (atomic_load(&m->s->ending) || l->err.status == NIB_E_CANCELLED)
        return fault_set(why, 503, NULL, "the server is ending");
    if (l->err.status != NIB_E_NOFIT && l->err.status != NIB_E_NOMEM)
        return fault_set(why, 500, NULL, "%.100s cannot be loaded: %.300s", m->name, l->err.message);
    return n_loaded(m->s) > 0 ? refuse_for_now(m, &l->err, why) : refuse_too_large(m, &l->err, why);
}

bool load_end(server *s) {
    load *l = &s->load;
    fault why = {0};
    if (!l->m || !atomic_load(&l->done))
        return false;
    join(l);
    const bool lacks_memory = l->err.status == NIB_E_NOFIT || l->err.status == NIB_E_NOMEM;
    if (lacks_memory && !atomic_load(&s->ending) && freed_memory(l)) {
        start(l);
        return true;
    }
    if (l->engine) {
        model_begin(l->m, l->engine, l->batch);
        l->m->too_large = false;
    } else {
        refuse(l, &why);
    }
    finish(l, &why);
    return true;
}

void load_drop(server *s) {
    load *l = &s->load;
    if (!l->m)
        return;
    join(l);
    nib_batch_close(l->batch);
    nib_engine_close(l->engine);
    *l = (load){0};
}
