/* kernel_map_file.c - see kernel_map.h. */
#include "profile/kernel_map_file.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "profile/profile_file.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { VERSION = 1, MAX_BYTES = 1 << 20 };

uint64_t kernel_map_strategies(const kernel_table *t) {
    char name[128];
    uint64_t hash = XXH64(NIB_VERSION, strlen(NIB_VERSION), VERSION);
    for (int i = 0; i < t->n_strategy; i++) {
        const int n = snprintf(name, sizeof name, "%s/%s;", t->strategy_isa[i], t->strategies[i]->name);
        hash = XXH64(name, (size_t)n, hash);
    }
    return hash;
}

/* ---- the key ---- */

static json_t *machine_json(const machine *m) {
    return json_pack("{s:s, s:s, s:i, s:I, s:I, s:I}", "cpu", m->cpu, "features", m->features, "cores",
                     m->n_core, "l1d", (json_int_t)m->l1d, "l2", (json_int_t)m->l2, "l3", (json_int_t)m->l3);
}

/* The key of a map as JSON. */
static json_t *key_json(const kernel_map_key *key) {
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)kernel_map_strategies(key->table));
    json_t *of = machine_json(key->machine);
    return !of ? NULL
               : json_pack("{s:i, s:o, s:s, s:i, s:s}", "nibble_kernel_map", VERSION, "machine", of, "isa",
                           key->table->isa, "threads", key->n_thread, "strategies", hash);
}

char *kernel_map_path(const kernel_map_key *key) {
    char set[64];
    snprintf(set, sizeof set, "%s-%dt-", key->table->isa, key->n_thread);
    return profile_keyed_path(key_json(key), "kernels", set, ".json");
}

/* Describes the first field of the key that differs in the file; false: none. */
static bool differs(const json_t *here, const json_t *there, char *out, size_t size) {
    const char *name;
    json_t *value;
    json_object_foreach(jsonx_counted(here), name, value) {
        json_t *other = json_object_get(there, name);
        if (json_equal(value, other))
            continue;
        if (json_is_object(value) && json_is_object(other) && differs(value, other, out, size))
            return true;
        char *a = jsonx_text(value, JSON_ENCODE_ANY | JSON_COMPACT);
        char *b = other ? jsonx_text(other, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        snprintf(out, size, "%s is %.60s here, %.60s there", name, a ? a : "?", b ? b : "nothing");
        mem_free(a);
        mem_free(b);
        return true;
    }
    return false;
}

/* ---- reading ---- */

/* Finds a strategy by a name such as "avx512/padding.direct"; NULL: unknown. */
static const strategy *find_strategy(const kernel_table *t, const char *name) {
    for (int i = 0; i < t->n_strategy; i++) {
        const size_t n = strlen(t->strategy_isa[i]);
        if (!strncmp(name, t->strategy_isa[i], n) && name[n] == '/' &&
            !strcmp(name + n + 1, t->strategies[i]->name))
            return t->strategies[i];
    }
    return NULL;
}

static nib_status read_product(const json_t *product, const kernel_table *t, kernel_map *out,
                               kernel_map_report *report, nib_error *err) {
    int64_t n = 0, k = 0;
    const char *format = NULL, *activation = NULL, *packing = "parts", *name;
    json_t *rows = json_object_get(product, "rows"), *value;
    if (!json_is_object(product) || !json_is_object(rows))
        return nib_fail(err, NIB_E_MODEL, "kernel map: expected products with \"rows\", an object each");
    NIB_TRY(jsonx_get_i64(product, "n", true, &n, err));
    NIB_TRY(jsonx_get_i64(product, "k", true, &k, err));
    NIB_TRY(jsonx_get_string(product, "format", true, &format, err));
    NIB_TRY(jsonx_get_string(product, "activation", true, &activation, err));
    NIB_TRY(jsonx_get_string(product, "packing", false, &packing, err));
    if (n < 1 || k < 1 || strlen(format) >= PACK_NAME)
        return nib_fail(err, NIB_E_MODEL,
                        "kernel map: expected a shape and a format, found %lld x %lld \"%s\"", (long long)n,
                        (long long)k, format);
    const int act_bits = !strcmp(activation, "a8") ? 8 : !strcmp(activation, "a4") ? 4 : 0;
    if (!act_bits) {
        report->n_left_out++;
        return NIB_OK;
    }
    kernel_map_shape *shape;
    NIB_TRY(kernel_map_add(out, n, k, format, act_bits, &shape, err));
    report->n_shape++;
    report->n_left_out += strcmp(packing, "parts") && strcmp(packing, "planes");
    shape->packing = strcmp(packing, "planes") ? PACK_PARTS : PACK_PLANES;
    json_object_foreach(rows, name, value) {
        const int bucket = row_bucket_by_name(name);
        const char *text = json_string_value(value);
        const strategy *s = text ? find_strategy(t, text) : NULL;
        if (bucket < 0 || !s) {
            report->n_left_out++;
            continue;
        }
        shape->by_bucket[bucket] = s;
        report->n_choice++;
    }
    return NIB_OK;
}

static nib_status read_map(const json_t *map, const kernel_map_key *key, kernel_map *out,
                           kernel_map_report *report, nib_error *err) {
    int64_t version = 0;
    if (!json_is_object(map))
        return nib_fail(err, NIB_E_MODEL, "kernel map: expected an object");
    NIB_TRY(jsonx_get_i64(map, "nibble_kernel_map", true, &version, err));
    if (version != VERSION)
        return nib_fail(err, NIB_E_MODEL, "kernel map: expected version %d, found %lld", VERSION,
                        (long long)version);
    json_t *here = key_json(key), *products = json_object_get(map, "products"), *product;
    if (!here)
        return nib_fail_nomem(err, 4096, "the kernel map");
    const bool other = differs(here, map, report->other, sizeof report->other);
    json_decref(here);
    if (other)
        return NIB_OK;
    if (!json_is_array(products))
        return nib_fail(err, NIB_E_MODEL, "kernel map: expected \"products\", an array");
    size_t i;
    json_array_foreach(products, i, product) NIB_TRY(read_product(product, key->table, out, report, err));
    return NIB_OK;
}

nib_status kernel_map_parse(const char *text, size_t n_byte, const kernel_map_key *key, kernel_map *out,
                            kernel_map_report *report, nib_error *err) {
    json_t *map;
    memset(report, 0, sizeof *report);
    NIB_TRY(jsonx_parse(text, n_byte, &map, err));
    const nib_status status = read_map(map, key, out, report, err);
    json_decref(map);
    return status;
}

nib_status kernel_map_load(const char *path, const kernel_map_key *key, kernel_map *out,
                           kernel_map_report *report, nib_error *err) {
    char *text;
    size_t n;
    memset(report, 0, sizeof *report);
    if (!path_exists(path))
        return nib_fail(err, NIB_E_NOTFOUND, "%s: no such kernel map", path);
    NIB_TRY(file_read_all(path, MAX_BYTES, &text, &n, err));
    const nib_status status = kernel_map_parse(text, n, key, out, report, err);
    mem_free(text);
    return status == NIB_OK ? NIB_OK : nib_fail_prefix(err, status, path);
}

/* ---- writing ---- */

static const char *isa_of(const kernel_table *t, const strategy *s) {
    for (int i = 0; i < t->n_strategy; i++)
        if (t->strategies[i] == s)
            return t->strategy_isa[i];
    return "";
}

static json_t *shape_json(const kernel_table *t, const kernel_map_shape *s) {
    json_t *rows = json_object();
    bool ok = true;
    for (int b = 0; b < ROW_BUCKETS; b++) {
        char name[128];
        if (!s->by_bucket[b])
            continue;
        snprintf(name, sizeof name, "%s/%s", isa_of(t, s->by_bucket[b]), s->by_bucket[b]->name);
        ok = jsonx_put(rows, row_bucket_name(b), json_string(name)) && ok;
    }
    json_t *shape = json_pack("{s:I, s:I, s:s, s:s}", "n", (json_int_t)s->n, "k", (json_int_t)s->k, "format",
                              s->format, "activation", s->act_bits == 4 ? "a4" : "a8");
    if (s->packing == PACK_PLANES)
        ok = jsonx_put(shape, "packing", json_string("planes")) && ok;
    return jsonx_whole(shape, jsonx_put(shape, "rows", rows) && ok);
}

/* Writes one line for each product, so that maps can be compared line by line. */
static nib_status write_products(file_writer *w, const kernel_table *t, const kernel_map *p, nib_error *err) {
    for (int i = 0; i < p->n_shape; i++) {
        json_t *shape = shape_json(t, &p->shapes[i]);
        char *line = shape ? jsonx_text(shape, 0) : NULL;
        nib_status status = line ? file_writer_write(w, i ? ",\n  " : "\n  ", i ? 4 : 3, err)
                                 : nib_fail_nomem(err, 1024, "the kernel map");
        if (status == NIB_OK)
            status = file_writer_write(w, line, strlen(line), err);
        mem_free(line);
        json_decref(shape);
        NIB_TRY(status);
    }
    return NIB_OK;
}

static nib_status write_map(file_writer *w, const kernel_map_key *key, const kernel_map *p, nib_error *err) {
    static const char products[] = ",\n \"products\": [", end[] = "\n ]}\n";
    json_t *head = key_json(key);
    char *text = head ? jsonx_text(head, JSON_INDENT(1)) : NULL;
    json_decref(head);
    if (!text)
        return nib_fail_nomem(err, 4096, "the kernel map");
    /* the header without its closing brace and the newline before it */
    nib_status status = file_writer_write(w, text, strlen(text) - 2, err);
    mem_free(text);
    NIB_TRY(status);
    NIB_TRY(file_writer_write(w, products, sizeof products - 1, err));
    NIB_TRY(write_products(w, key->table, p, err));
    return file_writer_write(w, end, sizeof end - 1, err);
}

nib_status kernel_map_save(const char *path, const kernel_map_key *key, const kernel_map *p, nib_error *err) {
    file_writer *w;
    NIB_TRY(path_make_folders(path, err));
    NIB_TRY(file_writer_open(path, &w, err));
    return file_writer_end(w, write_map(w, key, p, err), err);
}
