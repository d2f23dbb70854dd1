/* kernels.c - the packing of a model's matrices and the strategies that multiply them, from a kernel map or
 * the rule. */
#include "engine/kernels.h"

#include "base/mem.h"
#include "base/num.h"
#include "profile/gpu_kernels.h"

#include <string.h>

/* Loads the map's file: the named one, which must exist, else the one of this key, if it exists. */
static nib_status load_keyed(const engine_core *e, const kernel_map_key *key, kernel_map *map, char **used,
                             nib_error *err) {
    const char *named = e->requested.kernels;
    char *path = named ? mem_strdup(named) : kernel_map_path(key);
    if (!path)
        return named ? nib_fail_nomem(err, strlen(named), "a path") : NIB_OK;
    kernel_map_report report;
    nib_error why = {NIB_OK, ""};
    nib_status status = kernel_map_load(path, key, map, &report, &why);
    if (status == NIB_OK && !report.other[0])
        *used = path;
    if (status == NIB_OK && report.other[0])
        log_line(&e->log, "%s is not used: %s", path, report.other);
    else if (status == NIB_OK && report.n_left_out)
        log_line(&e->log, "%s: %d unknown choices are ignored", path, report.n_left_out);
    else if (status != NIB_OK && status != NIB_E_NOTFOUND && !named)
        log_line(&e->log, "%s", why.message);
    if (*used != path)
        mem_free(path);
    if (status == NIB_OK || !named)
        return NIB_OK;
    if (err)
        *err = why;
    return status;
}

/* Loads the GPU's map. Without a GPU opening the back end returns the error. */
static nib_status load_gpu_map(const engine_core *e, kernel_map *map, char **used, nib_error *err) {
    gpu_kernels *gpu = mem_calloc(1, sizeof *gpu);
    nib_status status = NIB_OK;
    if (!gpu)
        return nib_fail_nomem(err, sizeof *gpu, "the kernel map");
    if (gpu_kernels_probe(gpu, NULL) == NIB_OK) {
        const kernel_map_key key = gpu_kernels_key(gpu);
        status = load_keyed(e, &key, map, used, err);
    }
    mem_free(gpu);
    return status;
}

static nib_status load_map(const engine_core *e, kernel_map *map, char **used, nib_error *err) {
    machine here;
    const kernel_map_key key = {&here, kernels_table(), e->resolved.n_thread};
    const char *named = e->requested.kernels;
    if (named && !strcmp(named, "none"))
        return NIB_OK;
    if (e->kind->map == KERNEL_MAP_DEVICE)
        return load_gpu_map(e, map, used, err);
    if (e->kind->map == KERNEL_MAP_NONE)
        return NIB_OK;
    machine_detect(&here);
    return load_keyed(e, &key, map, used, err);
}

typedef struct packing_from {
    const kernel_map *map;
    const uint8_t *act_bits;
} packing_from;

static pack_kind packing_of(const void *user, int b, const weight *w) {
    const packing_from *f = user;
    return kernel_map_packing(f->map, w->n, w->k, &w->format, NUM_MIN(f->act_bits[b], 8));
}

/* Gives every matrix the packing that the map has for it. */
static nib_status set_packings(engine_core *e, const kernel_map *map, nib_error *err) {
    const packing_from f = {map, e->resolved.act_bits};
    layout *with;
    NIB_TRY(layout_with_packings(e->layout, packing_of, &f, &with, err));
    return core_set_layout(e, with, err);
}

nib_status engine_open_backend(engine_core *e, backend **out, char **used, nib_error *err) {
    kernel_map map = {0};
    nib_status status = load_map(e, &map, used, err);
    if (status == NIB_OK)
        status = set_packings(e, &map, err);
    if (status == NIB_OK) {
        backend_setup setup = core_backend_setup(e, e->resolved.n_thread);
        setup.kernels = &map;
        status = e->kind->open(&setup, out, err);
    }
    kernel_map_clear(&map);
    return status;
}
