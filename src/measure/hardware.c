/* hardware.c - loads this machine's profile from its file, or measures and stores it; see nib_tools.h. */
#include "nib_tools.h"

#include "base/cpu.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "kernels/cuda_load.h"
#include "kernels/kernels.h"
#include "measure/hardware_rates.h"

#include <stdio.h>
#include <string.h>

#define SECONDS 4.2 /* duration of measuring memory, disk and products together */

static nib_status measure(const nib_hardware_options *o, const char *path, const machine *m, hardware *h,
                          nib_error *err) {
    const canceller cancel = {o->cancel, o->user};
    const logger log = {.fn = o->log, .user = o->user};
    const hardware_options how = {.folder = o->folder,
                                  .seconds = SECONDS,
                                  .progress = o->progress,
                                  .user = o->user,
                                  .cancel = &cancel,
                                  .log = &log};
    nib_error why;
    NIB_TRY(hardware_measure(m, &how, h, err));
    if (!path || (!h->n_disk && !o->file)) /* not stored, so that the next call measures the disk too */
        return NIB_OK;
    const nib_status status = hardware_save(path, m, h, &why);
    if (status == NIB_OK)
        return NIB_OK;
    if (o->file)
        return nib_fail(err, status, "%s", why.message);
    log_line(&log, "the measurements were not stored: %s", why.message);
    return NIB_OK;
}

static nib_status find(const nib_hardware_options *o, const machine *m, hardware *h, nib_error *err) {
    const logger log = {.fn = o->log, .user = o->user};
    char *path = o->file ? mem_strdup(o->file) : hardware_path(m);
    nib_error why;
    nib_status status = o->again || !path ? NIB_E_NOTFOUND : hardware_load(path, m, h, &why);
    if (status != NIB_OK && status != NIB_E_NOTFOUND)
        log_line(&log, "the profile is measured again: %s", why.message);
    if (status != NIB_OK)
        status = measure(o, path, m, h, err);
    mem_free(path);
    return status;
}

/* ---- the document ---- */

static json_t *features_json(void) {
    json_t *list = json_array();
    bool ok = list != NULL;
#define CPU_X(field, name, base) ok = (!cpu_get()->field || jsonx_add(list, json_string(name))) && ok;
    CPU_FEATURES(CPU_X)
#undef CPU_X
    return jsonx_whole(list, ok);
}

static json_t *kernels_json(void) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int i = 0; kernels_isa_at(i); i++)
        ok = jsonx_add(list, json_string(kernels_isa_at(i))) && ok;
    return jsonx_whole(list, ok);
}

static json_t *gpus_json(void) {
    json_t *list = json_array();
    const cuda_kernels *cuda;
    bool ok = list != NULL;
    int n = 0;
    if (cuda_load(&cuda, NULL) != NIB_OK || cuda->device_count(&n))
        return list;
    for (int i = 0; i < n; i++) {
        cuda_device_info info;
        char compute[32];
        if (cuda->device_open(i, &info))
            continue;
        snprintf(compute, sizeof compute, "%d.%d", info.major, info.minor);
        ok = jsonx_add(list,
                       json_pack("{s:o, s:s, s:i, s:I}", "name",
                                 jsonx_string(info.name, strnlen(info.name, sizeof info.name)), "compute",
                                 compute, "sm", info.n_sm, "memory", (json_int_t)info.memory)) &&
             ok;
    }
    return jsonx_whole(list, ok);
}

/* The memory's rate in GB/s with the largest number of threads, or with one. */
static double memory_rate(const hardware *h, bool one) {
    return h->n_memory ? h->memory[one ? 0 : h->n_memory - 1].read.best / 1e9 : 0;
}

static json_t *machine_json(const machine *m, const hardware *h) {
    return json_pack("{s:s, s:i, s:i, s:o, s:o, s:s, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:f, s:f}, s:o}", "cpu",
                     m->cpu, "cores", m->n_core, "cpus", m->n_cpu, "features", features_json(), "kernels",
                     kernels_json(), "isa", kernels_table()->isa, "cache", "l1d", (json_int_t)m->l1d, "l2",
                     (json_int_t)m->l2, "l3", (json_int_t)m->l3, "ram", "total", (json_int_t)m->ram_total,
                     "available", (json_int_t)m->ram_free, "read_gb_s_1", memory_rate(h, true), "read_gb_s",
                     memory_rate(h, false), "gpus", gpus_json());
}

nib_status nib_hardware(const nib_hardware_options *options, char **json, nib_error *err) {
    machine m;
    hardware h;
    char *text;
    json_t *kept = NULL;
    *json = NULL;
    memset(&h, 0, sizeof h);
    machine_detect(&m);
    NIB_TRY(find(options, &m, &h, err));
    NIB_TRY(hardware_print(&m, &h, &text, err));
    const nib_status status = jsonx_parse(text, strlen(text), &kept, err);
    mem_free(text);
    NIB_TRY(status);
    json_t *doc = machine_json(&m, &h);
    if (doc && json_object_update_missing(doc, kept) == 0)
        *json = jsonx_text(doc, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(doc);
    json_decref(kept);
    return *json ? NIB_OK : nib_fail_nomem(err, 0, "a machine's profile");
}
