/* profile_file.c - see profile_file.h. */
#include "profile/profile_file.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "kernels/kernels.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

enum { MAX_BYTES = 4 << 20 };

json_t *profile_machine_key(const machine *m) {
    return json_pack("{s:s, s:s, s:i, s:s, s:I}", "cpu", m->cpu, "features", m->features, "cores", m->n_core,
                     "isa", kernels_table()->isa, "l3", (json_int_t)m->l3);
}

char *profile_keyed_path(json_t *key, const char *folder, const char *beginning, const char *ending) {
    char *text = key ? jsonx_text(key, JSON_COMPACT | JSON_SORT_KEYS) : NULL, *path = NULL;
    char *cache = path_cache_dir(), *within = cache ? path_join(cache, folder) : NULL;
    if (text && within) {
        char name[96];
        snprintf(name, sizeof name, "%s%016llx%s", beginning,
                 (unsigned long long)XXH64(text, strlen(text), 0), ending);
        path = path_join(within, name);
    }
    mem_free(text);
    json_decref(key);
    mem_free(cache);
    mem_free(within);
    return path;
}

char *profile_machine_path(const machine *m, const char *folder, const char *ending) {
    return profile_keyed_path(profile_machine_key(m), folder, "", ending);
}

char *profile_path(const char *content, const char *prompts, const char *ending) {
    char name[128];
    char *cache = path_cache_dir(), *folder = cache ? path_join(cache, "importance") : NULL;
    snprintf(name, sizeof name, "%s-%s%s", content, prompts, ending);
    char *path = folder ? path_join(folder, name) : NULL;
    mem_free(cache);
    mem_free(folder);
    return path;
}

/* "<content>-<prompts><ending>" */
static bool is_named(const char *name, const char *content, const char *ending) {
    const size_t n = strlen(content);
    if (strncmp(name, content, n) || name[n] != '-')
        return false;
    return !strcmp(name + n + 1 + strspn(name + n + 1, "0123456789abcdef"), ending);
}

char *profile_find(const char *content, const char *ending) {
    char *cache = path_cache_dir(), *folder = cache ? path_join(cache, "importance") : NULL, *best = NULL;
    DIR *dir = folder ? opendir(folder) : NULL;
    struct timespec latest = {0, 0};
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct stat info;
        char *path = is_named(e->d_name, content, ending) ? path_join(folder, e->d_name) : NULL;
        if (path && stat(path, &info) == 0 &&
            (!best || info.st_mtim.tv_sec > latest.tv_sec ||
             (info.st_mtim.tv_sec == latest.tv_sec && info.st_mtim.tv_nsec > latest.tv_nsec))) {
            mem_free(best);
            best = path;
            path = NULL;
            latest = info.st_mtim;
        }
        mem_free(path);
    }
    if (dir)
        closedir(dir);
    mem_free(cache);
    mem_free(folder);
    return best;
}

json_t *profile_numbers(const double *x, size_t n, bool holes) {
    json_t *list = json_array();
    for (size_t i = 0; i < n && list; i++)
        if (json_array_append_new(list, holes && x[i] < 0 ? json_null() : json_real(x[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

nib_status profile_read_numbers(const json_t *object, const char *key, size_t n, bool holes, double *out,
                                nib_error *err) {
    const json_t *list = json_object_get(object, key);
    if (!json_is_array(list) || json_array_size(list) != n)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected an array of %zu numbers, found %s with %zu", key,
                        n, json_is_array(list) ? "one" : "none", json_array_size(list));
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        const bool hole = holes && json_is_null(v);
        out[i] = hole ? -1 : json_number_value(v);
        if (!hole && (!json_is_number(v) || !isfinite(out[i]) || out[i] < 0))
            return nib_fail(err, NIB_E_MODEL, "\"%s\": expected a number of 0 or more at place %zu", key, i);
    }
    return NIB_OK;
}

nib_status profile_read_number(const json_t *object, const char *key, double min, double *out,
                               nib_error *err) {
    NIB_TRY(jsonx_get_f64(object, key, true, out, err));
    if (!isfinite(*out) || *out < min)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected a number of at least %s, found %s", key,
                        num_text(min, 6), num_text(*out, 6));
    return NIB_OK;
}

nib_status profile_read_int(const json_t *object, const char *key, int64_t min, int64_t max, int64_t *out,
                            nib_error *err) {
    NIB_TRY(jsonx_get_i64(object, key, true, out, err));
    if (*out < min || *out > max)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected %lld to %lld, found %lld", key, (long long)min,
                        (long long)max, (long long)*out);
    return NIB_OK;
}

static nib_status read_key(const json_t *object, const char *key, char out[40], nib_error *err) {
    const char *text = NULL;
    NIB_TRY(jsonx_get_string(object, key, true, &text, err));
    const size_t n = strlen(text);
    if (n < 1 || n > 39 || strspn(text, "0123456789abcdef") != n)
        return nib_fail(err, NIB_E_MODEL, "\"%s\": expected up to 39 hexadecimal digits, found '%.40s'", key,
                        text);
    memcpy(out, text, n + 1);
    return NIB_OK;
}

nib_status profile_read_keys(const json_t *object, char content[40], char prompts[40], nib_error *err) {
    NIB_TRY(read_key(object, "content", content, err));
    return read_key(object, "prompts", prompts, err);
}

nib_status profile_check_content(const char *content, const char *found, nib_error *err) {
    if (!content || !strcmp(content, found))
        return NIB_OK;
    return nib_fail(err, NIB_E_MODEL, "expected a profile of the weights with content key %s, found %s",
                    content, found);
}

nib_status profile_text(json_t *document, char **text, nib_error *err) {
    char *dumped = document ? jsonx_text(document, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(document);
    size_t n = dumped ? strlen(dumped) : 0, to = 0;
    *text = dumped ? mem_alloc(n + 2) : NULL;
    /* jansson writes each number on a line of its own: join lists, so that each member is one line */
    int depth = 0;
    for (size_t i = 0; i < n && *text; i++) {
        const char c = dumped[i];
        depth += c == '[';
        depth -= c == ']';
        if (c == '\n' && (depth > 0 || dumped[i + 1 + strspn(dumped + i + 1, " ")] == ']')) {
            i += strspn(dumped + i + 1, " ");
            if ((*text)[to - 1] == ',')
                (*text)[to++] = ' ';
            continue;
        }
        (*text)[to++] = c;
    }
    mem_free(dumped);
    if (!*text)
        return nib_fail_nomem(err, n + 4096, "a profile's text");
    (*text)[to++] = '\n';
    (*text)[to] = 0;
    return NIB_OK;
}

nib_status profile_write(const char *path, const char *text, nib_error *err) {
    NIB_TRY(path_make_folders(path, err));
    return file_write_all(path, text, strlen(text), err);
}

nib_status profile_read(const char *path, char **text, size_t *n_byte, nib_error *err) {
    if (!path_exists(path))
        return nib_fail(err, NIB_E_NOTFOUND, "%s: no such profile", path);
    return file_read_all(path, MAX_BYTES, text, n_byte, err);
}

static nib_status parse(const char *text, size_t n_byte, profile_reader *read, void *out, nib_error *err) {
    json_t *doc;
    NIB_TRY(jsonx_parse(text, n_byte, &doc, err));
    const nib_status status = read(doc, out, err);
    json_decref(doc);
    return status;
}

nib_status profile_load(const char *path, const char *content, profile_reader *read, void *out,
                        const char *found, nib_error *err) {
    char *text;
    size_t n;
    NIB_TRY(profile_read(path, &text, &n, err));
    nib_status status = parse(text, n, read, out, err);
    mem_free(text);
    if (status == NIB_OK)
        status = profile_check_content(content, found, err);
    return status == NIB_OK ? NIB_OK : nib_fail_prefix(err, status, path);
}

nib_status profile_save(const char *path, nib_status status, char *text, nib_error *err) {
    if (status == NIB_OK)
        status = profile_write(path, text, err);
    mem_free(text);
    return status;
}
