/* pull.c - see pull.h. Models of the hub are downloaded by hub_pull.h, the small example models by a script
 * that gets them as Python packages. */
#include "cli/pull/pull.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/similar.h"
#include "cli/options/compat.h"
#include "cli/pull/hub_pull.h"
#include "hub/store.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Finds the download script, which is beside the program if installed, else in the source folder of the
 * build. */
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

/* Waits for a child. Polls every 50 ms, so that a signal just before a blocking wait is not lost. */
static bool wait_for(pid_t child, int *status) {
    const struct timespec a_while = {0, 50 * 1000 * 1000};
    bool sent = false;
    for (;;) {
        pid_t ended = waitpid(child, status, WNOHANG);
        if (ended != 0 && !(ended < 0 && errno == EINTR))
            return ended > 0;
        if (cli_interrupted() && !sent)
            sent = kill(-child, SIGTERM) == 0;
        nanosleep(&a_while, NULL);
    }
}

static int run_script(const cli_args *args, const char *name) {
    char script[4608];
    if (!find_script(script, sizeof script))
        return cli_usage_error(
            "fetch-model.sh, the script that downloads models, is not beside this program");
    pid_t child = fork();
    if (child == 0) { /* its own process group, so that an interruption reaches all children of the script */
        setpgid(0, 0);
        signal(SIGPIPE, SIG_DFL);
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, STDOUT_FILENO); /* this process prints the path */
        if (args->offline)
            setenv("NIBBLE_OFFLINE", "1", 1);
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
    return WEXITSTATUS(status) == 77 ? 1 : WEXITSTATUS(status); /* the script has printed the reason */
}

/* Finds the model on this machine; *path NULL: there is none. */
static int find_here(const char *name, char **path) {
    model_store store;
    nib_error err;
    const nib_status status = model_store_open(&store, &err);
    const stored *found = status ? NULL : model_store_find(&store, name);
    *path = found ? mem_strdup(found->path) : NULL;
    model_store_close(&store);
    return status ? cli_fail(&err) : found && !*path ? cli_no_memory() : 0;
}

static bool is_plain_name(const char *name) {
    const char *word;
    size_t n;
    for (size_t i = 0; (n = cli_word_at(PULL_NAMES, " ", i, &word)) > 0; i++)
        if (n == strlen(name) && !strncmp(word, name, n))
            return true;
    return false;
}

static int unknown_name(const char *name) {
    similar meant = similar_to(name);
    const char *word;
    size_t n;
    for (size_t i = 0; (n = cli_word_at(PULL_NAMES, " ", i, &word)) > 0; i++) {
        char known[32];
        snprintf(known, sizeof known, "%.*s", (int)n, word);
        similar_offer(&meant, known);
    }
    if (meant.best[0])
        return cli_usage_error("no model '%s' to fetch; did you mean '%s'?", name, meant.best);
    return cli_usage_error(
        "expected USER/REPO[:QUANT] of the Hugging Face hub, or one of " PULL_NAMES ", found '%s'", name);
}

static bool is_offline(const cli_args *args) {
    const char *theirs = getenv("HF_HUB_OFFLINE");
    return args->offline || (theirs && *theirs && strcmp(theirs, "0") != 0);
}

int pull_path(const cli_args *args, const char *name, char **path) {
    hub_name hub;
    nib_error err;
    *path = NULL;
    if (is_plain_name(name)) {
        const int code = run_script(args, name);
        return code ? code : find_here(name, path);
    }
    if (!hub_parse_name(name, &hub))
        return unknown_name(name);
    const int code = find_here(name, path);
    if (code || *path)
        return code;
    if (is_offline(args)) {
        err = (nib_error){NIB_E_IO, ""};
        snprintf(err.message, sizeof err.message,
                 "%s is not on this machine, and --offline forbids a download", name);
        return cli_fail(&err);
    }
    return hub_pull(args, &hub, path, &err) ? cli_fail(&err) : 0;
}

int pull_model(const cli_args *args, const char *name) {
    char *path;
    int code = pull_path(args, name, &path);
    if (code)
        return code;
    if (!path)
        return cli_no_memory();
    if (args->json)
        code = cli_write_json(json_pack("{s:s, s:o}", "name", name, "path", jsonx_string(path, strlen(path))),
                              args);
    else if (cli_write(path, strlen(path)))
        cli_write("\n", 1);
    mem_free(path);
    return code;
}
