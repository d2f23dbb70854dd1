/* hardware_file.c - writes and reads the hardware profile as JSON. */
#include "profile/hardware.h"

#include "base/mem.h"
#include "base/num.h"
#include "profile/profile_file.h"

#include <stdio.h>
#include <string.h>

enum { VERSION = 1 };

char *hardware_path(const machine *m) {
    return profile_machine_path(m, "hardware", ".json");
}

/* ---- writing ---- */

static json_t *rate_json(const rate *r) {
    return json_pack("{s:f, s:f, s:f}", "best", r->best, "median", r->median, "worst", r->worst);
}

static json_t *memory_json(const hardware *h) {
    json_t *list = json_array();
    for (int i = 0; i < h->n_memory; i++)
        json_array_append_new(list, json_pack("{s:i, s:o}", "threads", h->memory[i].n_thread, "read",
                                              rate_json(&h->memory[i].read)));
    return list;
}

static json_t *disk_json(const hardware *h) {
    json_t *list = json_array();
    for (int i = 0; i < h->n_disk; i++)
        json_array_append_new(list,
                              json_pack("{s:i, s:I, s:o}", "depth", h->disk[i].depth, "block",
                                        (json_int_t)h->disk[i].block, "read", rate_json(&h->disk[i].read)));
    return json_pack("{s:s, s:b, s:b, s:o}", "folder", h->folder, "ring", h->ring, "direct", h->direct,
                     "rates", list);
}

static json_t *kernels_json(const hardware *h) {
    json_t *list = json_array();
    for (int i = 0; i < h->n_kernel; i++) {
        const hardware_kernel *k = &h->kernels[i];
        json_t *one = json_pack("{s:i, s:b, s:o, s:o, s:o}", "bits", k->bits, "asym", k->asym, "one_row",
                                rate_json(&k->one_row), "two_rows", rate_json(&k->two_rows), "many_rows",
                                rate_json(&k->many_rows));
        if (k->one_thread.best > 0)
            json_object_set_new(one, "one_thread", rate_json(&k->one_thread));
        json_array_append_new(list, one);
    }
    return list;
}

static json_t *attend_json(const hardware *h) {
    json_t *list = json_array();
    for (int i = 0; i < h->n_attend; i++)
        json_array_append_new(list, json_pack("{s:i, s:o, s:o}", "bits", h->attend[i].bits, "one_thread",
                                              rate_json(&h->attend[i].one_thread), "all_threads",
                                              rate_json(&h->attend[i].all_threads)));
    return list;
}

/* A number; 0 (unknown) becomes null. */
static json_t *known_json(double v) {
    return v > 0 ? json_real(v) : json_null();
}

nib_status hardware_print(const machine *m, const hardware *h, char **text, nib_error *err) {
    const size_t lost = jsonx_lost();
    json_t *key = profile_machine_key(m);
    json_t *doc = json_pack("{s:i, s:o, s:f, s:o, s:o, s:i, s:o, s:o, s:o, s:f, s:n, s:o, s:o, s:o}",
                            "nibble_hardware", VERSION, "machine", key, "seconds", h->seconds, "memory",
                            memory_json(h), "disk", disk_json(h), "threads", h->n_thread, "products",
                            kernels_json(h), "attention", attend_json(h), "pack", rate_json(&h->pack),
                            "barrier_s", h->barrier_s, "gpus", "link", known_json(h->link), "gpu_read",
                            known_json(h->gpu_read), "gpu_macs", known_json(h->gpu_macs));
    return profile_text(jsonx_built(doc, lost), text, err);
}

nib_status hardware_save(const char *path, const machine *m, const hardware *h, nib_error *err) {
    char *text;
    NIB_TRY(hardware_print(m, h, &text, err));
    const nib_status status = profile_write(path, text, err);
    mem_free(text);
    return status;
}

/* ---- reading ---- */

/* Reads a rate, which must be above 0, because plans divide by it. */
static nib_status read_rate(const json_t *from, const char *key, rate *out, nib_error *err) {
    const json_t *of = json_object_get(from, key);
    if (!json_is_object(of))
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected an object", key);
    NIB_TRY(profile_read_number(of, "best", 1, &out->best, err));
    NIB_TRY(profile_read_number(of, "median", 1, &out->median, err));
    return profile_read_number(of, "worst", 1, &out->worst, err);
}

static nib_status read_list(const json_t *from, const char *key, int max, const json_t **list, int *n,
                            nib_error *err) {
    *list = json_object_get(from, key);
    const size_t size = json_array_size(*list);
    if (!json_is_array(*list) || size > (size_t)max)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected a list of at most %d", key, max);
    *n = (int)size;
    return NIB_OK;
}

static nib_status read_int(const json_t *from, const char *key, int64_t min, int64_t max, int *out,
                           nib_error *err) {
    int64_t v = 0;
    NIB_TRY(profile_read_int(from, key, min, max, &v, err));
    *out = (int)v;
    return NIB_OK;
}

static nib_status read_memory(const json_t *all, hardware *out, nib_error *err) {
    const json_t *list;
    NIB_TRY(read_list(all, "memory", HARDWARE_MEMORY, &list, &out->n_memory, err));
    for (int i = 0; i < out->n_memory; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        NIB_TRY(read_int(one, "threads", 1, 4096, &out->memory[i].n_thread, err));
        NIB_TRY(read_rate(one, "read", &out->memory[i].read, err));
    }
    return NIB_OK;
}

static nib_status read_disk(const json_t *all, hardware *out, nib_error *err) {
    const json_t *disk = json_object_get(all, "disk"), *list;
    const char *folder = "";
    NIB_TRY(jsonx_get_string(disk, "folder", false, &folder, err));
    snprintf(out->folder, sizeof out->folder, "%s", folder);
    NIB_TRY(jsonx_get_bool(disk, "ring", false, &out->ring, err));
    NIB_TRY(jsonx_get_bool(disk, "direct", false, &out->direct, err));
    NIB_TRY(read_list(disk, "rates", HARDWARE_DISK, &list, &out->n_disk, err));
    for (int i = 0; i < out->n_disk; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        int64_t block = 0;
        NIB_TRY(read_int(one, "depth", 1, 1024, &out->disk[i].depth, err));
        NIB_TRY(profile_read_int(one, "block", 512, INT64_C(1) << 40, &block, err));
        out->disk[i].block = (uint64_t)block;
        NIB_TRY(read_rate(one, "read", &out->disk[i].read, err));
    }
    return NIB_OK;
}

static nib_status read_kernels(const json_t *all, hardware *out, nib_error *err) {
    const json_t *list;
    NIB_TRY(read_list(all, "products", HARDWARE_KERNELS, &list, &out->n_kernel, err));
    NIB_TRY(read_int(all, "threads", 1, 4096, &out->n_thread, err));
    for (int i = 0; i < out->n_kernel; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        hardware_kernel *k = &out->kernels[i];
        NIB_TRY(read_int(one, "bits", 0, 8, &k->bits, err));
        NIB_TRY(jsonx_get_bool(one, "asym", false, &k->asym, err));
        NIB_TRY(read_rate(one, "one_row", &k->one_row, err));
        if (json_object_get(one, "one_thread")) /* missing in older profiles */
            NIB_TRY(read_rate(one, "one_thread", &k->one_thread, err));
        NIB_TRY(read_rate(one, "two_rows", &k->two_rows, err));
        NIB_TRY(read_rate(one, "many_rows", &k->many_rows, err));
    }
    return NIB_OK;
}

static nib_status read_attend(const json_t *all, hardware *out, nib_error *err) {
    const json_t *list;
    if (!json_object_get(all, "attention")) /* missing in older profiles */
        return NIB_OK;
    NIB_TRY(read_list(all, "attention", HARDWARE_ATTEND, &list, &out->n_attend, err));
    for (int i = 0; i < out->n_attend; i++) {
        const json_t *one = json_array_get(list, (size_t)i);
        NIB_TRY(read_int(one, "bits", 4, 16, &out->attend[i].bits, err));
        NIB_TRY(read_rate(one, "one_thread", &out->attend[i].one_thread, err));
        NIB_TRY(read_rate(one, "all_threads", &out->attend[i].all_threads, err));
    }
    return NIB_OK;
}

static nib_status read_all(const json_t *all, const machine *m, hardware *out, nib_error *err) {
    int version = 0;
    NIB_TRY(read_int(all, "nibble_hardware", VERSION, VERSION, &version, err));
    json_t *key = m ? profile_machine_key(m) : NULL;
    const bool same = key && json_equal(key, json_object_get(all, "machine"));
    json_decref(key);
    if (m && !same)
        return nib_fail(err, NIB_E_NOTFOUND,
                        "expected this machine's hardware profile, found another machine's");
    NIB_TRY(profile_read_number(all, "seconds", 0, &out->seconds, err));
    NIB_TRY(profile_read_number(all, "barrier_s", 0, &out->barrier_s, err));
    NIB_TRY(read_rate(all, "pack", &out->pack, err));
    const struct {
        const char *key;
        double *to;
    } gpu[] = {{"link", &out->link}, {"gpu_read", &out->gpu_read}, {"gpu_macs", &out->gpu_macs}};
    for (size_t i = 0; i < NUM_COUNT(gpu); i++)
        if (json_is_number(json_object_get(all, gpu[i].key))) /* present if there was a GPU */
            NIB_TRY(profile_read_number(all, gpu[i].key, 1, gpu[i].to, err));
    NIB_TRY(read_memory(all, out, err));
    NIB_TRY(read_disk(all, out, err));
    NIB_TRY(read_attend(all, out, err));
    return read_kernels(all, out, err);
}

nib_status hardware_load(const char *path, const machine *m, hardware *out, nib_error *err) {
    char *text;
    size_t n;
    json_t *all = NULL;
    memset(out, 0, sizeof *out);
    NIB_TRY(profile_read(path, &text, &n, err));
    nib_status status = jsonx_parse(text, n, &all, err);
    mem_free(text);
    if (status == NIB_OK)
        status = read_all(all, m, out, err);
    json_decref(all);
    return status == NIB_OK ? NIB_OK : nib_fail_prefix(err, status, path);
}
