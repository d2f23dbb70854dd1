/* learned_file.c - writes and reads the times of runs as lines of JSON. Lines are parsed one by one, so that
 * reading takes little memory of a small budget. */
#include "profile/learned.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "profile/profile_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VERSION = 1, MAX_BYTES = 1 << 20 };
#define MAX_NUMBER 1e18
#define MIN_TOKEN  1e-9 /* seconds */
#define MAX_TOKEN  1e5

char *learned_path(const machine *m) {
    return profile_machine_path(m, "learned", ".jsonl");
}

/* ---- writing ---- */

static json_t *bytes_json(const double *bytes) {
    json_t *list = json_array();
    for (int i = 0; i < LEARNED_BITS; i++)
        json_array_append_new(list, json_real(bytes[i]));
    return list;
}

static json_t *run_json(const learned_run *r) {
    const learned_work *w = &r->work;
    const size_t lost = jsonx_lost();
    char device[24];
    snprintf(device, sizeof device, "%llx", (unsigned long long)r->device);
    json_t *run = json_pack(
        "{s:s, s:s, s:i, s:s, s:b, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:I}",
        "content", r->content, "device", device, "threads", r->n_thread, "kv", r->kv, "packed", r->packed,
        "a8", bytes_json(w->bytes[0]), "a16", bytes_json(w->bytes[1]), "asym_bytes", w->asym_bytes, "ops",
        w->n_op, "cache_bytes", w->cache_bytes, "cache_macs", w->cache_macs, "disk_bytes", w->disk_bytes,
        "pack_bytes", w->pack_bytes, "waits", w->n_wait, "read_bytes", w->read_bytes, "formula_s",
        r->formula_s, "seconds", profile_numbers(r->seconds, (size_t)r->n_seconds, false), "at",
        (json_int_t)r->at);
    return jsonx_built(run, lost);
}

/* Appends a line; takes the value's reference. */
static void add_line(buffer *text, json_t *value) {
    buffer_json_as(text, value, JSON_COMPACT | JSON_REAL_PRECISION(7));
    buffer_text(text, "\n");
}

nib_status learned_print(const machine *m, const learned *l, char **text, nib_error *err) {
    buffer all = {0};
    json_t *key = profile_machine_key(m);
    add_line(&all, key ? json_pack("{s:i, s:o}", "nibble_learned", VERSION, "machine", key) : NULL);
    for (int i = 0; i < l->n; i++)
        add_line(&all, run_json(&l->runs[i]));
    *text = all.no_memory ? NULL : all.data;
    if (*text)
        return NIB_OK;
    buffer_clear(&all);
    return nib_fail(err, NIB_E_FAILED,
                    "the times of runs cannot be written: out of memory, or a value is not a number");
}

nib_status learned_save(const char *path, const machine *m, const learned *l, nib_error *err) {
    char *text = NULL;
    const nib_status status = learned_print(m, l, &text, err);
    return status == NIB_OK ? profile_save(path, status, text, err) : status;
}

/* ---- reading ---- */

static nib_status read_number(const json_t *from, const char *key, double *out, nib_error *err) {
    NIB_TRY(profile_read_number(from, key, 0, out, err));
    return *out <= MAX_NUMBER ? NIB_OK
                              : nib_fail(err, NIB_E_MODEL, "\"%s\": expected at most %s, found %s", key,
                                         num_text(MAX_NUMBER, 6), num_text(*out, 6));
}

static nib_status read_work(const json_t *from, learned_work *out, nib_error *err) {
    const struct {
        const char *key;
        double *to;
    } numbers[] = {{"asym_bytes", &out->asym_bytes},
                   {"ops", &out->n_op},
                   {"cache_bytes", &out->cache_bytes},
                   {"cache_macs", &out->cache_macs},
                   {"disk_bytes", &out->disk_bytes},
                   {"pack_bytes", &out->pack_bytes},
                   {"waits", &out->n_wait},
                   {"read_bytes", &out->read_bytes}};
    NIB_TRY(profile_read_numbers(from, "a8", LEARNED_BITS, false, out->bytes[0], err));
    NIB_TRY(profile_read_numbers(from, "a16", LEARNED_BITS, false, out->bytes[1], err));
    for (int a = 0; a < 2; a++)
        for (int i = 0; i < LEARNED_BITS; i++)
            if (out->bytes[a][i] > MAX_NUMBER)
                return nib_fail(err, NIB_E_MODEL, "bytes: expected at most %s, found %s",
                                num_text(MAX_NUMBER, 6), num_text(out->bytes[a][i], 6));
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        NIB_TRY(read_number(from, numbers[i].key, numbers[i].to, err));
    return NIB_OK;
}

/* Seconds are divisors, and their logarithms are used, so they must be in bounds. */
static nib_status check_seconds(const char *key, double seconds, nib_error *err) {
    return seconds >= MIN_TOKEN && seconds <= MAX_TOKEN
               ? NIB_OK
               : nib_fail(err, NIB_E_MODEL, "\"%s\": expected seconds of a token, found %s", key,
                          num_text(seconds, 6));
}

static nib_status read_seconds(const json_t *from, learned_run *out, nib_error *err) {
    const size_t n = json_array_size(json_object_get(from, "seconds"));
    if (n < 1 || n > LEARNED_SECONDS)
        return nib_fail(err, NIB_E_MODEL, "\"seconds\": expected 1 to %d numbers", LEARNED_SECONDS);
    out->n_seconds = (int)n;
    NIB_TRY(profile_read_numbers(from, "seconds", n, false, out->seconds, err));
    for (size_t i = 0; i < n; i++)
        NIB_TRY(check_seconds("seconds", out->seconds[i], err));
    NIB_TRY(profile_read_number(from, "formula_s", 0, &out->formula_s, err));
    return check_seconds("formula_s", out->formula_s, err);
}

static nib_status read_name(const json_t *from, const char *key, char *out, size_t size, nib_error *err) {
    const char *text = NULL;
    NIB_TRY(jsonx_get_string(from, key, true, &text, err));
    if (strlen(text) >= size)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected at most %zu bytes", key, size - 1);
    memcpy(out, text, strlen(text) + 1);
    return NIB_OK;
}

static nib_status read_run(const json_t *from, learned_run *out, nib_error *err) {
    char device[24];
    int64_t threads = 0;
    if (!json_is_object(from))
        return nib_fail(err, NIB_E_MODEL, "expected an object");
    NIB_TRY(read_name(from, "content", out->content, sizeof out->content, err));
    NIB_TRY(read_name(from, "kv", out->kv, sizeof out->kv, err));
    NIB_TRY(read_name(from, "device", device, sizeof device, err));
    if (!*device || strlen(device) > 16 || strspn(device, "0123456789abcdef") != strlen(device))
        return nib_fail(err, NIB_E_MODEL, "\"device\": expected up to 16 hexadecimal digits");
    out->device = strtoull(device, NULL, 16);
    NIB_TRY(profile_read_int(from, "threads", 1, 4096, &threads, err));
    out->n_thread = (int)threads;
    NIB_TRY(jsonx_get_bool(from, "packed", true, &out->packed, err));
    NIB_TRY(profile_read_int(from, "at", 0, INT64_MAX / 2, &out->at, err));
    NIB_TRY(read_work(from, &out->work, err));
    return read_seconds(from, out, err);
}

static nib_status read_head(const json_t *from, const machine *m, nib_error *err) {
    int64_t version = 0;
    if (!json_is_object(from))
        return nib_fail(err, NIB_E_MODEL, "expected an object");
    NIB_TRY(profile_read_int(from, "nibble_learned", VERSION, VERSION, &version, err));
    json_t *key = profile_machine_key(m);
    const bool same = key && json_equal(key, json_object_get(from, "machine"));
    json_decref(key);
    return same ? NIB_OK
                : nib_fail(err, NIB_E_NOTFOUND, "expected runs of this machine, found those of another one");
}

/* Parses a line: the first describes the machine, the others runs. */
static nib_status read_line(const char *line, size_t n_byte, int i, const machine *m, learned *out,
                            nib_error *err) {
    json_t *value;
    if (i > MAX_LEARNED)
        return nib_fail(err, NIB_E_MODEL, "expected at most %d runs", MAX_LEARNED);
    NIB_TRY(jsonx_parse(line, n_byte, &value, err));
    nib_status status = i == 0 ? read_head(value, m, err) : NIB_OK;
    if (i > 0) {
        learned_run *r = &out->runs[out->n];
        memset(r, 0, sizeof *r);
        status = read_run(value, r, err);
        out->n += status == NIB_OK;
    }
    json_decref(value);
    return status;
}

nib_status learned_parse(const char *text, size_t n_byte, const machine *m, learned *out, nib_error *err) {
    learned l = {.runs = mem_array(MAX_LEARNED, sizeof *l.runs)};
    nib_status status = l.runs ? NIB_OK : nib_fail_nomem(err, MAX_LEARNED * sizeof *l.runs, "what runs took");
    int i = 0;
    for (size_t at = 0; (at < n_byte || i == 0) && status == NIB_OK; i++) {
        const char *end = memchr(text + at, '\n', n_byte - at);
        const size_t n = end ? (size_t)(end - (text + at)) : n_byte - at;
        status = read_line(text + at, n, i, m, &l, err);
        at += n + 1;
    }
    if (status == NIB_OK)
        *out = l;
    else
        learned_clear(&l);
    return status;
}

nib_status learned_load(const char *path, const machine *m, learned *out, nib_error *err) {
    char *text;
    size_t n;
    if (!path_exists(path))
        return nib_fail(err, NIB_E_NOTFOUND, "%s: no times of runs have been stored yet", path);
    NIB_TRY(file_read_all(path, MAX_BYTES, &text, &n, err));
    const nib_status status = learned_parse(text, n, m, out, err);
    mem_free(text);
    return status == NIB_OK ? NIB_OK : nib_fail_prefix(err, status, path);
}
