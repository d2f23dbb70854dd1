/* names.c - see names.h. */
#include "hub/names.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static bool has_suffix(const char *text, const char *suffix) {
    const size_t n = strlen(text), m = strlen(suffix);
    return n >= m && !strcasecmp(text + n - m, suffix);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* ---- names ---- */

/* Copies a part of a name if the hub allows it: letters, digits, '_', '-' and '.', beginning with a letter or
 * digit, without "..". */
static bool copy_part(const char *text, size_t n, char *out, size_t size) {
    if (n == 0 || n >= size || text[0] == '-' || text[0] == '.')
        return false;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c > 127 || !(isalnum(c) || strchr("_-.", c)) || (i > 0 && c == '.' && text[i - 1] == '.'))
            return false;
    }
    snprintf(out, size, "%.*s", (int)n, text);
    return true;
}

static bool is_plain(const char *text) {
    for (const char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127 || *c == '\\' || *c == ':')
            return false;
    return true;
}

bool hub_parse_name(const char *text, hub_name *out) {
    static const char *const before[] = {"https://", "hf.co/", "huggingface.co/"};
    for (size_t i = 0; i < NUM_COUNT(before); i++)
        if (!strncmp(text, before[i], strlen(before[i])))
            text += strlen(before[i]);
    const char *slash = strchr(text, '/'), *colon = strchr(text, ':');
    *out = (hub_name){0};
    if (!slash || (colon && colon < slash))
        return false;
    const size_t n_repo = colon ? (size_t)(colon - slash - 1) : strlen(slash + 1);
    if (colon && (!colon[1] || strlen(colon + 1) >= sizeof out->quant || !is_plain(colon + 1)))
        return false;
    snprintf(out->quant, sizeof out->quant, "%s", colon ? colon + 1 : "");
    return copy_part(text, (size_t)(slash - text), out->user, sizeof out->user) &&
           copy_part(slash + 1, n_repo, out->repo, sizeof out->repo);
}

/* ---- files of a model ---- */

/* For a name with "-00001-of-00003" before its extension, the length before that, with *number 1 and *of 3;
 * 0: not a shard. */
static size_t shard_stem(const char *path, int *number, int *of) {
    const char *dot = strrchr(base_name(path), '.');
    const size_t n_tail = strlen("-00001-of-00003"), n = dot ? (size_t)(dot - path) : 0;
    int end = 0;
    if (n <= n_tail || sscanf(path + n - n_tail, "-%5d-of-%5d%n", number, of, &end) != 2 ||
        end != (int)n_tail)
        return 0;
    return n - n_tail;
}

/* True if `word` is in `name` between separators: Q4_K in model-Q4_K.gguf, but not in model-Q4_K_M.gguf. */
static bool has_word(const char *name, const char *word) {
    const size_t n = strlen(word);
    for (const char *at = name; (at = strcasestr(at, word)); at++) {
        const bool left = at == name || !isalnum((unsigned char)at[-1]);
        const bool right = !isalnum((unsigned char)at[n]) && at[n] != '_';
        if (left && right)
            return true;
    }
    return false;
}

bool hub_is_first(const char *path) {
    int number = 1, of;
    shard_stem(path, &number, &of);
    return has_suffix(path, ".gguf") && number == 1;
}

/* False for a vision tower or an importance matrix. */
static bool is_gguf_model(const char *path) {
    return hub_is_first(path) && !strcasestr(base_name(path), "mmproj") &&
           !strcasestr(base_name(path), "imatrix");
}

/* Index of the first .gguf model, by name, with that word; -1: none. */
static int64_t choose_gguf(const char *const *paths, size_t n, const char *word) {
    int64_t best = -1;
    for (size_t i = 0; i < n; i++) {
        const bool fits = !*word || !strcmp(paths[i], word) || has_word(base_name(paths[i]), word);
        if (is_gguf_model(paths[i]) && fits && (best < 0 || strcmp(paths[i], paths[best]) < 0))
            best = (int64_t)i;
    }
    return best;
}

int64_t hub_choose(const char *const *paths, size_t n, const char *quant) {
    int64_t best = choose_gguf(paths, n, *quant ? quant : "Q4_K_M");
    if (best >= 0 || *quant)
        return best;
    best = choose_gguf(paths, n, "");
    bool weights = false;
    for (size_t i = 0; i < n && best < 0; i++)
        weights = weights || (!strchr(paths[i], '/') && has_suffix(paths[i], ".safetensors"));
    for (size_t i = 0; i < n && best < 0 && weights; i++)
        if (!strcmp(paths[i], "config.json"))
            best = (int64_t)i;
    return best;
}

bool hub_belongs(const char *chosen, const char *path) {
    if (!strcmp(chosen, path))
        return true;
    if (!strcmp(chosen, "config.json")) /* consolidated.*: the same weights again, with the original names */
        return !strchr(path, '/') && strncmp(path, "consolidated", 12) != 0 &&
               (has_suffix(path, ".json") || has_suffix(path, ".jinja") || has_suffix(path, ".safetensors"));
    int number, of;
    const size_t stem = shard_stem(chosen, &number, &of);
    return stem && stem == shard_stem(path, &number, &of) && !strncmp(chosen, path, stem) &&
           !strcmp(chosen + stem + 6, path + stem + 6);
}

bool hub_is_whole(const char *const *paths, size_t n, const char *chosen) {
    int number, of = 1, n_shard = 0;
    bool split = false;
    for (size_t i = 0; i < n; i++)
        if (hub_belongs(chosen, paths[i]) && shard_stem(paths[i], &number, &of)) {
            split = true;
            n_shard++;
        }
    return !split || n_shard == of;
}

/* ---- the hub's listing ---- */

/* True for a relative path without empty, hidden or ".." parts. */
static bool is_safe_path(const char *path) {
    if (!is_plain(path) || strlen(path) > 1024)
        return false;
    for (const char *part = path;; part++) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || n > 200 || part[0] == '.' || part[0] == ' ')
            return false;
        part += n;
        if (!*part)
            return true;
    }
}

/* Copies lower-case hexadecimal digits; there must be exactly size - 1. */
static bool copy_hex(const char *text, char *out, size_t size) {
    if (!text || strlen(text) != size - 1 || strspn(text, "0123456789abcdef") != size - 1)
        return false;
    memcpy(out, text, size);
    return true;
}

static nib_status read_file(const json_t *object, hub_listing *out, nib_error *err) {
    const char *path = NULL, *blob = NULL, *sum = NULL;
    int64_t bytes = -1;
    NIB_TRY(jsonx_get_string(object, "rfilename", true, &path, err));
    if (!is_safe_path(path))
        return NIB_OK;
    NIB_TRY(jsonx_get_string(object, "blobId", false, &blob, err));
    NIB_TRY(jsonx_get_i64(object, "size", false, &bytes, err));
    const json_t *lfs = json_object_get(object, "lfs");
    if (json_is_object(lfs)) {
        NIB_TRY(jsonx_get_string(lfs, "oid", false, &sum, err));
        NIB_TRY(jsonx_get_string(lfs, "sha256", false, &sum, err));
        NIB_TRY(jsonx_get_i64(lfs, "size", false, &bytes, err));
    }
    hub_file file = {.bytes = (uint64_t)bytes};
    const bool known = json_is_object(lfs) ? copy_hex(sum, file.sha256, sizeof file.sha256)
                                           : copy_hex(blob, file.blob, sizeof file.blob);
    if (bytes < 0 || !known)
        return nib_fail(err, NIB_E_MODEL, "the hub gives no size or no checksum for '%.200s'", path);
    if (mem_grow((void **)&out->files, &out->cap, out->n + 1, sizeof file) || !(file.path = mem_strdup(path)))
        return nib_fail_nomem(err, sizeof file, "the list of a repository's files");
    out->files[out->n++] = file;
    return NIB_OK;
}

nib_status hub_read_listing(const char *json, size_t n_byte, hub_listing *out, nib_error *err) {
    json_t *root;
    const char *commit = NULL;
    *out = (hub_listing){0};
    NIB_TRY(jsonx_parse(json, n_byte, &root, err));
    const json_t *list = json_object_get(root, "siblings");
    nib_status status = jsonx_get_string(root, "sha", true, &commit, err);
    if (status == NIB_OK && !copy_hex(commit, out->commit, sizeof out->commit))
        status = nib_fail(err, NIB_E_MODEL, "sha: expected 40 hexadecimal digits, found '%.60s'", commit);
    if (status == NIB_OK && (!json_is_array(list) || json_array_size(list) > HUB_MAX_FILES))
        status = nib_fail(err, NIB_E_MODEL, "siblings: expected a list of at most %d files", HUB_MAX_FILES);
    for (size_t i = 0; status == NIB_OK && i < json_array_size(list); i++)
        status = read_file(json_array_get(list, i), out, err);
    json_decref(root);
    return status;
}

void hub_listing_clear(hub_listing *l) {
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->files[i].path);
    mem_free(l->files);
    *l = (hub_listing){0};
}
