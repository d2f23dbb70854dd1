/* cmd_models.c - nibble models: lists, shows and removes the models on this machine. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "cli/fields.h"
#include "cli/pull/pull.h"
#include "hub/names.h"
#include "hub/store.h"
#include "hub/find.h"
#include "nib_tools.h"

#include <dirent.h>
#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct description {
    char arch[32]; /* or the error if the model cannot be read */
    uint64_t params, bytes;
    bool good;
} description;

static description describe(const char *path) {
    description d = {0};
    char *text;
    json_t *document = NULL;
    nib_error err = {NIB_E_NOMEM, ""};
    if (nib_model_describe(path, &text, &err) == NIB_OK && !cli_document(text, &document)) {
        snprintf(d.arch, sizeof d.arch, "%s", field_text(document, "arch"));
        d.bytes = field_bytes(document, "bytes");
        d.params = field_bytes(document, "params");
        d.good = true;
    } else {
        snprintf(d.arch, sizeof d.arch, "(%s)", nib_status_text(err.status));
    }
    json_decref(document);
    return d;
}

static json_t *model_json(const stored *m) {
    const description d = describe(m->path);
    return json_pack("{s:s, s:s, s:b, s:I, s:I, s:o, s:b}", "name", m->name, "arch", d.arch, "readable",
                     (int)d.good, "params", (json_int_t)d.params, "bytes", (json_int_t)d.bytes, "path",
                     jsonx_string(m->path, strlen(m->path)), "shared", (int)m->cached);
}

static int list_json(const cli_args *args, const model_store *s) {
    json_t *list = json_array();
    for (size_t i = 0; i < s->n; i++)
        json_array_append_new(list, model_json(&s->models[i]));
    return cli_write_json(json_pack("{s:s, s:o}", "folder", s->folder, "models", list), args);
}

static void list_text(const model_store *s) {
    char size[32];
    const char *in = NULL;
    if (!s->n || s->models[0].cached)
        printf("no models in %s\n'nibble pull smollm2' fetches a small one; or put a .gguf file, or a folder "
               "with\n"
               "config.json and *.safetensors, there.\n",
               s->folder);
    for (size_t i = 0; i < s->n; i++) {
        const stored *m = &s->models[i];
        const char *folder = m->cached ? s->cache : s->folder;
        if (folder != in)
            printf("in %s%s:\n", folder, m->cached ? ", which other programs share" : "");
        in = folder;
        const description d = describe(m->path);
        printf("  %-44s %-12s", m->name, d.arch);
        if (d.good)
            printf(" %8.1f M  %10s", (double)d.params / 1e6, num_format_size(d.bytes, size));
        putchar('\n');
    }
}

/* Lists the models; with -q only names, without opening any file. */
static int list(const cli_args *args, const model_store *s, const char *name) {
    (void)name;
    if (args->json)
        return list_json(args, s);
    if (!args->quiet)
        list_text(s);
    for (size_t i = 0; i < s->n && args->quiet; i++)
        printf("%s\n", s->models[i].name);
    return 0;
}

/* The model of that name; NULL: there is none, which is printed, and *code is the exit code. */
static const stored *find(const model_store *s, const char *name, int *code) {
    const stored *found = model_store_find(s, name);
    char *path = NULL;
    nib_error err;
    if (found)
        return found;
    if (model_find(name, &path, &err))
        *code = cli_fail(&err);
    else
        *code = cli_usage_error("expected the name of a model in %s, found the path %s", s->folder, path);
    mem_free(path);
    return NULL;
}

static int show(const cli_args *args, const model_store *s, const char *name) {
    int code;
    char size[32];
    const stored *m = find(s, name, &code);
    if (!m)
        return code;
    if (args->json)
        return cli_write_json(model_json(m), args);
    const description d = describe(m->path);
    printf("%s\n  path           %s%s\n  architecture   %s\n", m->name, m->path,
           m->cached ? " (shared with other programs)" : "", d.arch);
    if (d.good)
        printf("  parameters     %.1f M in %s\n'nibble info %s' says more.\n", (double)d.params / 1e6,
               num_format_size(d.bytes, size), m->name);
    return 0;
}

/* ---- rm ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info;
    (void)kind;
    (void)at;
    return remove(path);
}

/* Removes the file, and the other shards if it is the first of a split one. */
static int remove_shards(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = mem_strndup(path, (size_t)(slash - path));
    DIR *dir = folder ? opendir(folder) : NULL;
    const struct dirent *entry;
    int bad = dir ? 0 : -1;
    while (dir && !bad && (entry = readdir(dir)))
        if (hub_belongs(slash + 1, entry->d_name))
            bad = unlinkat(dirfd(dir), entry->d_name, 0);
    if (dir)
        closedir(dir);
    mem_free(folder);
    return bad;
}

static int remove_model(const char *path) {
    struct stat info;
    if (lstat(path, &info))
        return -1;
    if (S_ISDIR(info.st_mode))
        return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return remove_shards(path);
}

/* Removes user/repo/ and user/ if they are empty. */
static void remove_empty_folders(const model_store *s, char *path) {
    const size_t n = strlen(s->folder);
    for (char *slash; (slash = strrchr(path, '/')) && (size_t)(slash - path) > n;) {
        *slash = 0;
        if (rmdir(path))
            return;
    }
}

static int rm(const cli_args *args, const model_store *s, const char *name) {
    int code;
    const stored *m = find(s, name, &code);
    if (!m)
        return code;
    if (m->cached)
        return cli_usage_error(
            "%s is in the cache of Hugging Face's programs, from which nothing is removed; it is at %s",
            m->name, m->path);
    if (remove_model(m->path)) {
        nib_error err = {NIB_E_IO, ""};
        snprintf(err.message, sizeof err.message, "cannot remove %s: %s", m->path, strerror(errno));
        return cli_fail(&err);
    }
    if (args->json)
        code = cli_write_json(json_pack("{s:s}", "removed", m->name), args);
    else
        code = printf("removed %s\n", m->name) < 0;
    remove_empty_folders(s, m->path);
    return code;
}

static int pull(const cli_args *args, const model_store *s, const char *name) {
    (void)s;
    return pull_model(args, name);
}

static const struct {
    const char *word;
    bool named; /* takes the name of a model */
    int (*run)(const cli_args *args, const model_store *s, const char *name);
} actions[] = {
    {"list", false, list}, {"ls", false, list}, {"show", true, show}, {"rm", true, rm}, {"pull", true, pull}};

static int run(cli_args *args) {
    const char *word = args->rest.n ? args->rest.data[0] : "list";
    size_t i = 0;
    while (i < NUM_COUNT(actions) && strcmp(actions[i].word, word) != 0)
        i++;
    if (i == NUM_COUNT(actions))
        return cli_usage_error("expected list, show NAME, rm NAME or pull NAME, found '%s'", word);
    if (actions[i].named != (args->rest.n > 1))
        return cli_usage_error(actions[i].named ? "which model? usage: nibble models %s NAME"
                                                : "'%s' takes no name; usage: nibble models [list]",
                               word);
    model_store store;
    nib_error err;
    const nib_status status = model_store_open(&store, &err);
    const int code =
        status ? cli_fail(&err) : actions[i].run(args, &store, args->rest.n > 1 ? args->rest.data[1] : "");
    model_store_close(&store);
    return code;
}

const cli_command cmd_models = {
    .name = "models",
    .usage = "[list | show NAME | rm NAME | pull NAME]",
    .summary = "list, show and remove the models on this machine",
    .details =
        "Lists the models folder ($NIBBLE_MODELS, else $XDG_DATA_HOME/nibble/models) and the cache of "
        "Hugging\n"
        "Face's programs ($HF_HOME/hub, else ~/.cache/huggingface/hub). Every listed name can be used as\n"
        "MODEL. -q prints names only. rm removes a model of the models folder, never of the cache. pull is\n"
        "'nibble pull'.\n\n"
        "  nibble models\n"
        "  nibble models show smollm2\n"
        "  nibble models rm smollm2\n",
    .words = "list show rm pull",
    .groups = CLI_FETCH,
    .n_rest = 2,
    .run = run,
};
