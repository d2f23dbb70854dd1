/* store.c - see store.h. In the cache, models--USER--REPO/refs/main holds a commit, and snapshots/COMMIT that
 * commit's files, as links into blobs/. */
#include "hub/store.h"

#include "base/file.h"
#include "base/mem.h"
#include "hub/names.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DEEPEST = 4 /* depth of user/repo/folder/file */, MAX_REF = 64 };

typedef struct paths {
    char **data;
    size_t n, cap;
} paths;

static void paths_clear(paths *p) {
    for (size_t i = 0; i < p->n; i++)
        mem_free(p->data[i]);
    mem_free(p->data);
    *p = (paths){0};
}

static nib_status walk(const char *folder, const char *prefix, int depth, paths *out, nib_error *err);

static nib_status look_at(const char *folder, const char *prefix, const char *entry, int depth, paths *out,
                          nib_error *err) {
    char *path = path_join(folder, entry), *name = *prefix ? path_join(prefix, entry) : mem_strdup(entry);
    nib_status status = NIB_OK;
    if (!path || !name || mem_grow((void **)&out->data, &out->cap, out->n + 1, sizeof *out->data)) {
        status = nib_fail_nomem(err, 256, "the list of models");
    } else if (path_is_dir(path)) {
        status = depth < DEEPEST ? walk(path, name, depth + 1, out, err) : NIB_OK;
    } else if (path_exists(path)) { /* skips a link without a target */
        out->data[out->n++] = name;
        name = NULL;
    }
    mem_free(path);
    mem_free(name);
    return status;
}

/* Lists the files below a folder, except hidden ones, with paths relative to it. */
static nib_status walk(const char *folder, const char *prefix, int depth, paths *out, nib_error *err) {
    DIR *dir = opendir(folder);
    nib_status status = NIB_OK;
    const struct dirent *entry;
    while (dir && status == NIB_OK && (entry = readdir(dir)))
        if (entry->d_name[0] != '.')
            status = look_at(folder, prefix, entry->d_name, depth, out, err);
    if (dir)
        closedir(dir);
    return status;
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Adds a model. Takes `name` and `path`; NULL: out of memory. */
static nib_status add(model_store *s, char *name, char *path, bool cached, nib_error *err) {
    if (!name || !path || mem_grow((void **)&s->models, &s->cap, s->n + 1, sizeof *s->models)) {
        mem_free(name);
        mem_free(path);
        return nib_fail_nomem(err, 256, "the list of models");
    }
    s->models[s->n++] = (stored){name, path, cached};
    return NIB_OK;
}

/* Adds the models of the models folder: .gguf files, and folders with a config.json. */
static nib_status add_kept(model_store *s, nib_error *err) {
    paths p = {0};
    nib_status status = walk(s->folder, "", 1, &p, err);
    for (size_t i = 0; i < p.n && status == NIB_OK; i++) {
        const char *path = p.data[i], *base = base_name(path);
        if (hub_is_first(path))
            status = add(s, mem_strdup(path), path_join(s->folder, path), false, err);
        if (strcmp(base, "config.json") || base == path)
            continue;
        char *name = mem_strndup(path, (size_t)(base - path - 1));
        status = add(s, name, name ? path_join(s->folder, name) : NULL, false, err);
    }
    paths_clear(&p);
    return status;
}

/* Adds the complete models of a snapshot: its .gguf files, or the folder itself. */
static nib_status add_snapshot(model_store *s, const char *snapshot, const char *repo, nib_error *err) {
    paths p = {0};
    nib_status status = walk(snapshot, "", 2, &p, err);
    const char *const *names = (const char *const *)p.data;
    const size_t n = status == NIB_OK && names ? p.n : 0;
    const int64_t chosen = n ? hub_choose(names, n, "") : -1;
    const bool folder = chosen >= 0 && !hub_is_first(names[chosen]);
    for (size_t i = 0; i < n && status == NIB_OK && !folder; i++)
        if (hub_is_first(names[i]) && hub_is_whole(names, n, names[i]))
            status = add(s, path_join(repo, names[i]), path_join(snapshot, names[i]), true, err);
    if (folder && hub_is_whole(names, n, names[chosen]))
        status = add(s, mem_strdup(repo), mem_strdup(snapshot), true, err);
    paths_clear(&p);
    return status;
}

/* *out: the folder of the main revision of a repository of the cache; NULL: there is none. */
static nib_status main_snapshot(const char *folder, char **out, nib_error *err) {
    char *ref = path_join(folder, "refs/main"), *snapshots = path_join(folder, "snapshots"), *commit = NULL;
    size_t n;
    nib_status status = ref && snapshots ? file_read_all(ref, MAX_REF, &commit, &n, NULL) : NIB_E_NOMEM;
    *out = NULL;
    if (status == NIB_OK) {
        commit[strcspn(commit, "/ \r\n")] = 0;
        if (*commit && commit[0] != '.' && !(*out = path_join(snapshots, commit)))
            status = NIB_E_NOMEM;
    }
    mem_free(commit);
    mem_free(snapshots);
    mem_free(ref);
    return status == NIB_E_NOMEM ? nib_fail_nomem(err, MAX_REF, "the list of models") : NIB_OK;
}

/* Adds the models of a folder of the cache, "models--user--repo". */
static nib_status add_repository(model_store *s, const char *entry, nib_error *err) {
    char repo[256];
    const char *user = entry + strlen("models--"), *between = strstr(user, "--");
    if (!between ||
        snprintf(repo, sizeof repo, "%.*s/%s", (int)(between - user), user, between + 2) >= (int)sizeof repo)
        return NIB_OK;
    char *folder = path_join(s->cache, entry), *snapshot = NULL;
    nib_status status = folder ? main_snapshot(folder, &snapshot, err)
                               : nib_fail_nomem(err, strlen(entry), "the list of models");
    if (snapshot)
        status = add_snapshot(s, snapshot, repo, err);
    mem_free(snapshot);
    mem_free(folder);
    return status;
}

static nib_status add_cached(model_store *s, nib_error *err) {
    DIR *dir = opendir(s->cache);
    nib_status status = NIB_OK;
    const struct dirent *entry;
    while (dir && status == NIB_OK && (entry = readdir(dir)))
        if (!strncmp(entry->d_name, "models--", strlen("models--")))
            status = add_repository(s, entry->d_name, err);
    if (dir)
        closedir(dir);
    return status;
}

/* ---- where ---- */

char *model_folder(void) {
    const char *set = getenv("NIBBLE_MODELS");
    if (set && *set)
        return mem_strdup(set);
    char *data = path_data_dir();
    char *folder = data ? path_join(data, "models") : NULL;
    mem_free(data);
    return folder;
}

char *hf_home(void) {
    const char *set = getenv("HF_HOME");
    if (set && *set)
        return mem_strdup(set);
    char *ours = path_cache_dir(), *slash = ours ? strrchr(ours, '/') : NULL;
    if (slash)
        *slash = 0;
    char *home = ours ? path_join(ours, "huggingface") : NULL;
    mem_free(ours);
    return home;
}

static char *hf_cache(void) {
    const char *set = getenv("HF_HUB_CACHE");
    if (set && *set)
        return mem_strdup(set);
    char *home = hf_home(), *cache = home ? path_join(home, "hub") : NULL;
    mem_free(home);
    return cache;
}

/* ---- the store ---- */

static int by_name(const void *a, const void *b) {
    const stored *x = a, *y = b;
    return x->cached != y->cached ? x->cached - y->cached : strcmp(x->name, y->name);
}

nib_status model_store_open(model_store *out, nib_error *err) {
    *out = (model_store){.folder = model_folder(), .cache = hf_cache()};
    if (!out->folder || !out->cache)
        return nib_fail_nomem(err, 256, "a path");
    NIB_TRY(add_kept(out, err));
    NIB_TRY(add_cached(out, err));
    if (out->n)
        qsort(out->models, out->n, sizeof *out->models, by_name);
    return NIB_OK;
}

void model_store_close(model_store *s) {
    for (size_t i = 0; i < s->n; i++) {
        mem_free(s->models[i].name);
        mem_free(s->models[i].path);
    }
    mem_free(s->models);
    mem_free(s->folder);
    mem_free(s->cache);
    *s = (model_store){0};
}

static bool same_name(const char *stored_name, const char *name) {
    const size_t n = strlen(name);
    return !strncasecmp(stored_name, name, n) && (!stored_name[n] || !strcasecmp(stored_name + n, ".gguf"));
}

/* Finds user/repo[:QUANT]: the file of that repository that hub_choose would choose. */
static const stored *find_by_rule(const stored *models, size_t n_model, const char *name) {
    hub_name hub;
    char repo[256];
    if (!hub_parse_name(name, &hub))
        return NULL;
    const size_t n_repo = (size_t)snprintf(repo, sizeof repo, "%s/%s/", hub.user, hub.repo);
    size_t first = 0, n = 0;
    while (first < n_model && strncasecmp(models[first].name, repo, n_repo) != 0)
        first++;
    while (first + n < n_model && !strncasecmp(models[first + n].name, repo, n_repo))
        n++;
    const char **names = mem_array(n, sizeof *names);
    for (size_t i = 0; names && i < n; i++)
        names[i] = models[first + i].name + n_repo;
    const int64_t chosen = names ? hub_choose(names, n, hub.quant) : -1;
    mem_free((void *)names);
    if (chosen >= 0)
        return &models[first + (size_t)chosen];
    repo[n_repo - 1] = 0; /* a folder: only its name */
    for (size_t i = 0; i < n_model && !*hub.quant; i++)
        if (!strcasecmp(models[i].name, repo))
            return &models[i];
    return NULL;
}

static const stored *find_among(const stored *models, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (same_name(models[i].name, name))
            return &models[i];
    for (size_t i = 0; i < n; i++)
        if (same_name(base_name(models[i].name), name))
            return &models[i];
    return find_by_rule(models, n, name);
}

const stored *model_store_find(const model_store *s, const char *name) {
    size_t n_kept = 0;
    while (n_kept < s->n && !s->models[n_kept].cached)
        n_kept++;
    if (!*name || !s->n)
        return NULL;
    const stored *found = find_among(s->models, n_kept, name);
    return found ? found : find_among(s->models + n_kept, s->n - n_kept, name);
}
