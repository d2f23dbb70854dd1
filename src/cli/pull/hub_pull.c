/* hub_pull.c - see hub_pull.h. The hub lists the files of a repository with their checksums at a commit, and
 * they are downloaded at that commit. The file by which the model is opened comes last, so a model with a
 * name is complete. */
#include "cli/pull/hub_pull.h"

#include "base/buffer.h"
#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "cli/pull/http.h"
#include "cli/pull/hub_fetch.h"
#include "hub/store.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

enum { MAX_ADDRESS = 4096, MAX_TOKEN = 4096, SHOWN_EACH_MS = 200, LISTING_TRIES = 3 };

typedef struct pull_job {
    const cli_args *args;
    const hub_name *name;
    const char *endpoint;
    int n_endpoint; /* length of endpoint without a slash at its end */
    http *http;
    hub_listing listing;
    const char *first;      /* the path of the file by which the model is opened */
    char *folder;           /* USER/REPO in the models folder */
    uint64_t total, before; /* bytes of all files of the model, and of the complete ones */
    double start, shown;    /* times: when the file was begun, and when progress was last shown */
} pull_job;

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static const char *set(const char *variable) {
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

/* ---- the hub's address, and the token ---- */

static nib_status find_endpoint(pull_job *job, nib_error *err) {
    job->endpoint = set("HF_ENDPOINT") ? set("HF_ENDPOINT") : "https://huggingface.co";
    job->n_endpoint = (int)strlen(job->endpoint);
    while (job->n_endpoint && job->endpoint[job->n_endpoint - 1] == '/')
        job->n_endpoint--;
    if (job->n_endpoint > 1024 ||
        (strncmp(job->endpoint, "http://", 7) && strncmp(job->endpoint, "https://", 8)))
        return nib_fail(err, NIB_E_USAGE,
                        "HF_ENDPOINT: expected an address such as https://huggingface.co, found '%s'",
                        job->endpoint);
    return NIB_OK;
}

/* The token that the hub's own programs have stored; NULL: none. The caller frees it. */
static char *stored_token(void) {
    char *home = hf_home(), *text = NULL;
    char *path = set("HF_TOKEN_PATH") ? mem_strdup(set("HF_TOKEN_PATH"))
                 : home               ? path_join(home, "token")
                                      : NULL;
    size_t n;
    if (path && file_read_all(path, MAX_TOKEN, &text, &n, NULL))
        text = NULL;
    mem_free(path);
    mem_free(home);
    return text;
}

/* Finds the token and trims it. *token NULL: none. */
static nib_status find_token(char **token, nib_error *err) {
    char *text = set("HF_TOKEN") ? mem_strdup(set("HF_TOKEN")) : stored_token();
    *token = NULL;
    if (!text)
        return NIB_OK;
    const char *first = text + strspn(text, " \t\r\n");
    const size_t n = strcspn(first, " \t\r\n");
    bool good = first[n + strspn(first + n, " \t\r\n")] == 0;
    for (size_t i = 0; i < n; i++)
        good = good && first[i] > ' ' && first[i] < 127;
    if (good && n)
        *token = mem_strndup(first, n);
    mem_free(text);
    return good
               ? NIB_OK
               : nib_fail(err, NIB_E_USAGE, "HF_TOKEN: expected a token, found characters that no token has");
}

/* ---- the hub's list of files ---- */

static nib_status append(void *user, uint64_t at, const void *data, size_t n_byte, nib_error *err) {
    buffer *t = user;
    (void)at;
    if (n_byte > JSONX_MAX_TEXT - t->n)
        return nib_fail(err, NIB_E_MODEL, "the hub's list of files is longer than %d MiB",
                        JSONX_MAX_TEXT >> 20);
    buffer_add(t, data, n_byte);
    return t->no_memory ? nib_fail_nomem(err, n_byte, "the hub's list of files") : NIB_OK;
}

static nib_status no_repository(const pull_job *job, const http_answer *answer, nib_error *err) {
    const hub_name *n = job->name;
    if (answer->status == 404)
        return nib_fail(err, NIB_E_NOTFOUND, "%.*s has no model %s/%s", job->n_endpoint, job->endpoint,
                        n->user, n->repo);
    if (answer->status == 401 || answer->status == 403)
        return nib_fail(
            err, NIB_E_NOTFOUND,
            "%.*s has no model %s/%s that you may access: it may be private, or you must accept its terms "
            "there first; set HF_TOKEN to log in",
            job->n_endpoint, job->endpoint, n->user, n->repo);
    return err->status;
}

/* Reads the list of files. Retries if the server is busy, but not if it cannot be reached. */
static nib_status read_listing(pull_job *job, nib_error *err) {
    char url[MAX_ADDRESS];
    buffer t = {0};
    http_answer answer;
    nib_status status = NIB_E_IO;
    snprintf(url, sizeof url, "%.*s/api/models/%s/%s?blobs=true", job->n_endpoint, job->endpoint,
             job->name->user, job->name->repo);
    const http_request request = {.url = url, .body = append, .user = &t};
    for (int tries = 0; tries < LISTING_TRIES; tries++) {
        t.n = 0;
        status = http_get(job->http, &request, &answer, err);
        if (status == NIB_OK || !answer.again || !answer.status)
            break;
    }
    if (status == NIB_OK)
        status = hub_read_listing(t.data ? t.data : "", t.n, &job->listing, err);
    else
        status = no_repository(job, &answer, err);
    mem_free(t.data);
    return status;
}

static nib_status no_such_file(const pull_job *job, nib_error *err) {
    char have[256] = "";
    size_t n = 0;
    for (size_t i = 0; i < job->listing.n && n < sizeof have; i++)
        if (hub_is_first(job->listing.files[i].path))
            n += (size_t)snprintf(have + n, sizeof have - n, "%s%s", n ? ", " : "",
                                  job->listing.files[i].path);
    if (n >= sizeof have)
        memcpy(have + sizeof have - 4, "...", 4);
    return nib_fail(err, NIB_E_NOTFOUND, "%s/%s has no .gguf file%s%s%s%s", job->name->user, job->name->repo,
                    *job->name->quant ? " with " : " and no safetensors", job->name->quant,
                    *have ? "; it has " : "", have);
}

/* Chooses the files, sums their bytes, and makes the name of their folder. */
static nib_status choose(pull_job *job, nib_error *err) {
    const hub_listing *l = &job->listing;
    const char **paths = mem_array(l->n, sizeof *paths);
    for (size_t i = 0; paths && i < l->n; i++)
        paths[i] = l->files[i].path;
    const int64_t chosen = paths ? hub_choose(paths, l->n, job->name->quant) : -1;
    const bool whole = chosen >= 0 && hub_is_whole(paths, l->n, paths[chosen]);
    mem_free((void *)paths);
    if (!paths)
        return nib_fail_nomem(err, l->n * sizeof *paths, "a list of files");
    if (chosen < 0)
        return no_such_file(job, err);
    job->first = l->files[chosen].path;
    if (!whole)
        return nib_fail(err, NIB_E_MODEL, "%s/%s does not have all shards of %s", job->name->user,
                        job->name->repo, job->first);
    for (size_t i = 0; i < l->n; i++)
        if (hub_belongs(job->first, l->files[i].path))
            job->total += l->files[i].bytes;
    return NIB_OK;
}

/* ---- fetching ---- */

static bool on_progress(void *user, const hub_file *named, uint64_t done, uint64_t fetched) {
    pull_job *job = user;
    char have[32], of[32], each[32], rate[48] = "", line[320];
    const double now = now_s(), took = now - job->start;
    done += job->before;
    if (now - job->shown < SHOWN_EACH_MS / 1e3 && done < job->total)
        return !cli_interrupted();
    job->shown = now;
    if (fetched && took > 0.5)
        snprintf(rate, sizeof rate, "  %s/s", num_format_size((uint64_t)((double)fetched / took), each));
    snprintf(line, sizeof line, "%3d %%  %s of %s%s  %.160s",
             (int)(job->total ? (double)done / (double)job->total * 100 : 100), num_format_size(done, have),
             num_format_size(job->total, of), rate, named->path);
    cli_progress_line(job->args, line);
    return !cli_interrupted();
}

static void on_note(void *user, const char *line) {
    const pull_job *job = user;
    cli_note(job->args, "nibble: %s", line);
}

static nib_status fetch_one(pull_job *job, const hub_file *named, nib_error *err) {
    char url[MAX_ADDRESS], escaped[MAX_ADDRESS / 2];
    char *path = path_join(job->folder, named->path);
    nib_status status = path ? path_make_folders(path, err) : nib_fail_nomem(err, 256, "a path");
    const bool fits = http_escape(named->path, escaped, sizeof escaped);
    if (status == NIB_OK && !fits)
        status = nib_fail(err, NIB_E_MODEL, "the hub's path '%.100s...' is too long", named->path);
    snprintf(url, sizeof url, "%.*s/%s/%s/resolve/%s/%s", job->n_endpoint, job->endpoint, job->name->user,
             job->name->repo, job->listing.commit, escaped);
    job->start = now_s();
    const hub_fetch fetch = {.http = job->http,
                             .url = url,
                             .path = path,
                             .file = named,
                             .retries = job->args->retries,
                             .progress = on_progress,
                             .note = on_note,
                             .user = job};
    if (status == NIB_OK)
        status = hub_fetch_file(&fetch, err);
    job->before += named->bytes;
    mem_free(path);
    return status;
}

/* Checks that the missing bytes fit the disk, before anything is written. */
static nib_status check_disk_space(const pull_job *job, nib_error *err) {
    struct statvfs disk;
    uint64_t there = 0;
    char need[32], has[32];
    for (size_t i = 0; i < job->listing.n; i++) {
        char *path = path_join(job->folder, job->listing.files[i].path);
        if (path && hub_belongs(job->first, job->listing.files[i].path))
            there += hub_fetch_there(&job->listing.files[i], path);
        mem_free(path);
    }
    if (statvfs(job->folder, &disk))
        return NIB_OK; /* unknown: a write will report a full disk */
    const uint64_t free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize,
                   missing = job->total - NUM_MIN(there, job->total);
    if (missing <= free_bytes)
        return NIB_OK;
    return nib_fail(err, NIB_E_IO, "%s needs %s more, but the disk of %s has only %s free", job->first,
                    num_format_size(missing, need), job->folder, num_format_size(free_bytes, has));
}

static nib_status fetch_all(pull_job *job, nib_error *err) {
    const hub_listing *l = &job->listing;
    char size[32];
    char *inside = path_join(job->folder, job->first);
    nib_status status = inside ? path_make_folders(inside, err) : nib_fail_nomem(err, 256, "a path");
    mem_free(inside);
    if (status == NIB_OK)
        status = check_disk_space(job, err);
    if (status == NIB_OK)
        cli_note(job->args, "nibble: fetching %s of %s/%s, %s, to %s", job->first, job->name->user,
                 job->name->repo, num_format_size(job->total, size), job->folder);
    const hub_file *first = NULL;
    for (size_t i = 0; i < l->n && status == NIB_OK; i++)
        if (!strcmp(l->files[i].path, job->first))
            first = &l->files[i];
        else if (hub_belongs(job->first, l->files[i].path))
            status = fetch_one(job, &l->files[i], err);
    return status == NIB_OK && first ? fetch_one(job, first, err) : status;
}

static nib_status make_folder_name(pull_job *job, nib_error *err) {
    char repo[256];
    char *models = model_folder();
    snprintf(repo, sizeof repo, "%s/%s", job->name->user, job->name->repo);
    job->folder = models ? path_join(models, repo) : NULL;
    mem_free(models);
    return job->folder ? NIB_OK : nib_fail_nomem(err, 256, "a path");
}

static nib_status pull_all(pull_job *job, nib_error *err) {
    char *token = NULL;
    NIB_TRY(find_endpoint(job, err));
    NIB_TRY(find_token(&token, err));
    nib_status status = http_open(token, &job->http, err);
    mem_free(token);
    NIB_TRY(status);
    NIB_TRY(make_folder_name(job, err));
    NIB_TRY(read_listing(job, err));
    NIB_TRY(choose(job, err));
    return fetch_all(job, err);
}

nib_status hub_pull(const cli_args *args, const hub_name *name, char **path, nib_error *err) {
    pull_job job = {.args = args, .name = name};
    nib_status status = pull_all(&job, err);
    *path = NULL;
    if (status == NIB_OK) /* without a .gguf file the folder is the model */
        *path = hub_is_first(job.first) ? path_join(job.folder, job.first) : mem_strdup(job.folder);
    if (status == NIB_OK && !*path)
        status = nib_fail_nomem(err, 256, "a path");
    http_close(job.http);
    hub_listing_clear(&job.listing);
    mem_free(job.folder);
    return status;
}
