/* learn.c - see learn.h. */
#include "engine/learn.h"

#include "base/mem.h"
#include "engine/packed_folder.h"

#include <string.h>
#include <sys/stat.h>

/* Minimum tokens of a run that is stored: a shorter one measures its beginning. */
enum { MIN_TOKENS = 8 };
#define MIN_SECONDS 0.1

/* Times are learned only for the processor's back end. */
static bool learns(const engine_core *e) {
    return e->requested.learn && e->kind == &backend_cpu;
}

void learn_add(learning *l, const engine_core *e, int64_t n_position, const nib_result *r) {
    if (!learns(e) || atomic_load(&l->mixed) || r->token_n < 1)
        return;
    l->n_token += r->token_n;
    l->seconds += r->token_s;
    l->positions += (double)r->token_n * ((double)n_position - (double)r->token_n / 2);
}

bool learn_positions(const learning *l, const engine_core *e, int64_t *n_position) {
    if (!learns(e) || atomic_load(&l->mixed) || l->n_token < MIN_TOKENS || l->seconds < MIN_SECONDS)
        return false;
    *n_position = (int64_t)(l->positions / (double)l->n_token);
    return true;
}

/* The number of the disk that holds path, or its nearest existing parent folder; 0: unknown. */
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

void learn_disks(const engine_core *e, plan_question *q) {
    if (!learns(e))
        return;
    char *packed = engine_packed_folder(e);
    q->device_packed = device_of(packed);
    q->device_file = device_of(e->path);
    mem_free(packed);
}

/* Returns the file's path (caller frees) and reads as much of the file as is valid; NULL: there is no cache
 * folder. */
static char *read_file(const engine_core *e, const machine *here, learned *out) {
    nib_error why;
    char *path = learned_path(here);
    const nib_status status = path ? learned_load(path, here, out, &why) : NIB_OK;
    if (status != NIB_OK && status != NIB_E_NOTFOUND)
        log_line(&e->log, "times of earlier runs: %s", why.message);
    return path;
}

void learn_load(const engine_core *e, plan_question *q, learned *out) {
    machine here;
    if (!learns(e))
        return;
    machine_detect(&here);
    mem_free(read_file(e, &here, out));
    q->learned = out->n > 0 ? out : NULL;
}

/* Adds a run to the file; the valid part of its old content stays. */
static nib_status keep(const engine_core *e, const learned_run *now, nib_error *err) {
    machine here;
    learned l = {0};
    machine_detect(&here);
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

void learn_keep(const learning *l, const engine_core *e, learned_run *run) {
    nib_error err;
    run->seconds[0] = l->seconds / (double)l->n_token;
    run->n_seconds = 1;
    if (keep(e, run, &err) != NIB_OK)
        log_line(&e->log, "the times of this run were not stored: %s", err.message);
}
