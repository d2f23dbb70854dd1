/* learn.c - see learn.h. */
#include "engine/learn.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "plan/expect.h"

#include <string.h>
#include <sys/stat.h>

/* Below this a run says more about how it began. */
enum { MIN_TOKENS = 8 };
#define MIN_SECONDS 0.1

/* Rates and predictions are of the processor: what another back end took says nothing about it. */
static bool learns(const nib_engine *e) {
    return e->options.learn && e->kind == &backend_cpu;
}

void learn_begin(nib_engine *e) {
    if (atomic_fetch_add(&e->learned.n_running, 1) > 0)
        atomic_store(&e->learned.mixed, true);
}

void learn_end(nib_engine *e) {
    atomic_fetch_sub(&e->learned.n_running, 1);
}

void learn_generation(nib_engine *e, int64_t n_position, const nib_result *r) {
    learning *l = &e->learned;
    if (!learns(e) || atomic_load(&l->mixed) || r->token_n < 1)
        return;
    l->n_token += r->token_n;
    l->seconds += r->token_s;
    l->positions += (double)r->token_n * ((double)n_position - (double)r->token_n / 2);
}

/* The number of the disk that path, or the nearest folder above it, is on; 0: the system does not say. */
static uint64_t device_of(const char *path) {
    char *at = path ? mem_strdup(path) : NULL;
    struct stat info;
    uint64_t number = 0;
    while (at && *at) {
        if (stat(at, &info) == 0) {
            number = (uint64_t)info.st_dev;
            break;
        }
        char *slash = strrchr(at, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    mem_free(at);
    return number;
}

void learn_disks(const nib_engine *e, planning *f) {
    if (!learns(e))
        return;
    char *packed = engine_packed_folder(&e->options);
    f->q.device_packed = device_of(packed);
    f->q.device_file = device_of(e->path);
    mem_free(packed);
}

/* The file's path, which the caller frees, and what can be read of it; NULL: there is no cache folder. */
static char *read_file(const nib_engine *e, const machine *here, learned *out) {
    nib_error why;
    char *path = learned_path(here);
    const nib_status status = path ? learned_load(path, here, out, &why) : NIB_OK;
    if (status != NIB_OK && status != NIB_E_NOTFOUND)
        log_line(&e->log, "what earlier runs took: %s", why.message);
    return path;
}

void learn_load(const nib_engine *e, planning *f) {
    machine here;
    if (!learns(e))
        return;
    machine_look(&here);
    mem_free(read_file(e, &here, &f->learned));
    f->q.learned = f->learned.n > 0 ? &f->learned : NULL;
}

/* As much of the file as can be read stays. */
static nib_status keep(const nib_engine *e, const learned_run *now, nib_error *err) {
    machine here;
    learned l = {0};
    machine_look(&here);
    char *path = read_file(e, &here, &l);
    if (!path)
        return NIB_OK;
    nib_status status = learned_add(&l, now, err);
    if (status == NIB_OK)
        status = learned_save(path, &here, &l, err);
    learned_clear(&l);
    mem_free(path);
    return status;
}

void learn_keep(nib_engine *e) {
    const learning *l = &e->learned;
    learned_run now;
    nib_error err;
    if (!e->pager || !learns(e) || atomic_load(&l->mixed) || l->n_token < MIN_TOKENS ||
        l->seconds < MIN_SECONDS)
        return;
    nib_status status = planning_run(e, (int64_t)(l->positions / (double)l->n_token), &now, &err);
    now.seconds[0] = l->seconds / (double)l->n_token;
    now.n_seconds = 1;
    if (status == NIB_OK)
        status = keep(e, &now, &err);
    if (status != NIB_OK)
        log_line(&e->log, "what this run took is not kept: %s", err.message);
}
