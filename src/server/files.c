/* files.c - see files.h. */
#include "server/files.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"
#include "server/exchange.h"
#include "server/form.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ID_DIGITS = 24, BLOCK = 64 << 10 };

/* ---- names ---- */

void files_new_id(const char *prefix, char out[FILES_ID]) {
    snprintf(out, FILES_ID, "%s%016llx%08llx", prefix, (unsigned long long)seed_secret(),
             (unsigned long long)(seed_secret() & 0xffffffff));
}

bool files_is_id(const char *text, const char *prefix) {
    const size_t n = strlen(prefix);
    return !strncmp(text, prefix, n) && strlen(text) == n + ID_DIGITS &&
           strspn(text + n, "0123456789abcdef") == ID_DIGITS;
}

char *files_path(const server *s, const char *id, const char *suffix) {
    const size_t n = strlen(s->files) + strlen(id) + strlen(suffix) + 2;
    char *path = mem_alloc(n);
    if (path)
        snprintf(path, n, "%s/%s%s", s->files, id, suffix);
    return path;
}

static bool no_memory(fault *why) {
    return fault_set(why, 503, NULL, "out of memory");
}

json_t *files_read_json(const server *s, const char *id, fault *why) {
    char *path = files_path(s, id, ".json"), *text = NULL;
    json_t *value = NULL;
    nib_error err;
    size_t n;
    if (path && file_read_all(path, FILES_MAX_JSON, &text, &n, &err) == NIB_OK)
        jsonx_parse(text, n, &value, &err);
    mem_free(path);
    mem_free(text);
    if (!json_is_object(value)) {
        json_decref(value);
        value = NULL;
        fault_set(why, 404, NULL, "there is no %.60s", id);
    }
    return value;
}

bool files_write_json(const server *s, const char *id, const json_t *value, fault *why) {
    char *path = files_path(s, id, ".json"), *text = jsonx_text(value, JSON_COMPACT);
    file_writer *w = NULL;
    nib_error err;
    nib_status status = path && text ? file_writer_open_private(path, &w, &err) : NIB_E_NOMEM;
    if (status == NIB_OK)
        status = file_writer_end(w, file_writer_write(w, text, strlen(text), &err), &err);
    const bool lost = !path || !text;
    mem_free(path);
    mem_free(text);
    return lost ? no_memory(why) : status == NIB_OK || fault_set(why, 500, NULL, "%s", err.message);
}

void files_each(const server *s, const char *prefix, void (*fn)(void *user, const char *id), void *user) {
    DIR *d = opendir(s->files);
    for (const struct dirent *e; d && (e = readdir(d));) {
        char id[FILES_ID];
        const char *end = strstr(e->d_name, ".json");
        if (!end || end[5] || (size_t)(end - e->d_name) >= sizeof id)
            continue;
        memcpy(id, e->d_name, (size_t)(end - e->d_name));
        id[end - e->d_name] = 0;
        if (files_is_id(id, prefix))
            fn(user, id);
    }
    if (d)
        closedir(d);
}

bool files_describe(const server *s, const char *id, const char *filename, const char *purpose, fault *why) {
    json_t *about =
        json_pack("{s:o, s:o, s:I}", "filename", jsonx_string(filename, strlen(filename)), "purpose",
                  jsonx_string(purpose, strlen(purpose)), "created_at", (json_int_t)time(NULL));
    const bool written = about ? files_write_json(s, id, about, why) : no_memory(why);
    json_decref(about);
    return written;
}

/* The file as the API shows it; NULL: *why. */
static json_t *file_json(const server *s, const char *id, fault *why) {
    json_t *about = files_is_id(id, "file-") ? files_read_json(s, id, why) : NULL;
    char *path = files_path(s, id, "");
    struct stat of = {0};
    if (!about)
        fault_set(why, 404, NULL, "there is no file %.60s", id);
    if (about && path && !stat(path, &of)) {
        json_object_set_new(about, "id", json_string(id));
        json_object_set_new(about, "object", json_string("file"));
        json_object_set_new(about, "bytes", json_integer((json_int_t)of.st_size));
        json_object_set_new(about, "status", json_string("processed"));
    }
    mem_free(path);
    return about;
}

/* ---- uploads: multipart/form-data ---- */

bool files_take(exchange *x, const char *data, size_t n) {
    if (x->n_upload + n > FILES_MAX_UPLOAD)
        return fault_set(&x->why, 413, NULL, "a file has at most %llu bytes",
                         (unsigned long long)FILES_MAX_UPLOAD);
    if (!x->upload && !(x->upload = tmpfile()))
        return fault_set(&x->why, 500, NULL, "cannot store the file: %s", strerror(errno));
    if (fwrite(data, 1, n, x->upload) != n)
        return fault_set(&x->why, 507, NULL, "cannot store the file: %s", strerror(errno));
    x->n_upload += n;
    return true;
}

void files_drop(exchange *x) {
    if (x->upload)
        fclose(x->upload);
    x->upload = NULL;
    x->n_upload = 0;
}

/* Copies the form's file to a new one. */
static bool store(exchange *x, const form *p, const char *id) {
    char *path = files_path(x->s, id, ""), *block = mem_alloc(BLOCK);
    file_writer *w = NULL;
    nib_error err;
    nib_status status = path && block ? file_writer_open_private(path, &w, &err) : NIB_E_NOMEM;
    fseek(x->upload, p->begin, SEEK_SET);
    for (long left = p->end - p->begin; status == NIB_OK && left > 0;) {
        const size_t n = fread(block, 1, (size_t)NUM_MIN(left, (long)BLOCK), x->upload);
        status = n ? file_writer_write(w, block, n, &err) : nib_fail(&err, NIB_E_IO, "the upload is gone");
        left -= (long)n;
    }
    if (w)
        status = file_writer_end(w, status, &err);
    const bool lost = !path || !block;
    mem_free(path);
    mem_free(block);
    return lost ? no_memory(&x->why) : status == NIB_OK || fault_set(&x->why, 507, NULL, "%s", err.message);
}

/* The boundary of the form, with its two dashes. */
static bool boundary_of(exchange *x, char out[128]) {
    const char *type = exchange_header(x, "Content-Type");
    const char *at = type && !strncasecmp(type, "multipart/form-data", 19) ? strstr(type, "boundary=") : NULL;
    size_t n = 0;
    if (at) {
        at += strlen("boundary=");
        at += *at == '"';
        n = strcspn(at, "\";\r\n ");
    }
    if (n == 0 || n > 100 || !x->upload)
        return fault_set(&x->why, 400, NULL, "expected multipart/form-data with the fields purpose and file");
    snprintf(out, 128, "--%.*s", (int)n, at);
    return true;
}

/* Finds both fields. */
static bool read_form(exchange *x, form *out) {
    char boundary[128];
    if (!boundary_of(x, boundary))
        return false;
    if (!form_read(x->upload, boundary, out))
        return fault_field(&x->why, "file", "expected a field with the file's content");
    return !strcmp(out->purpose, "batch") || fault_field(&x->why, "purpose", "expected \"batch\"");
}

/* ---- routes ---- */

bool files_are_open(exchange *x) {
    return x->s->files || fault_set(&x->why, 501, NULL, "this server keeps no files (--files)");
}

/* Uploads and answers are their owner's. */
static bool make_folder(exchange *x) {
    nib_error err;
    if (path_make_folders(x->s->files, &err) != NIB_OK)
        return fault_set(&x->why, 500, NULL, "%s", err.message);
    return !mkdir(x->s->files, 0700) || errno == EEXIST ||
           fault_set(&x->why, 500, NULL, "cannot make %s: %s", x->s->files, strerror(errno));
}

void files_create(exchange *x) {
    form content;
    char id[FILES_ID];
    if (!files_are_open(x) || !read_form(x, &content))
        return;
    files_new_id("file-", id);
    if (!make_folder(x))
        return;
    if (store(x, &content, id) &&
        files_describe(x->s, id, content.filename[0] ? content.filename : "batch.jsonl", content.purpose,
                       &x->why)) {
        json_t *out = file_json(x->s, id, &x->why);
        if (out)
            exchange_json(x, out);
    }
}

typedef struct listing {
    const server *s;
    files_reader *read;
    json_t *data;
} listing;

static void add_one(void *user, const char *id) {
    const listing *l = user;
    fault why = {0};
    json_t *one = l->read(l->s, id, &why);
    if (one)
        json_array_append_new(l->data, one);
}

void files_list_all(exchange *x, const char *prefix, files_reader *read) {
    const listing l = {x->s, read, json_array()};
    if (files_are_open(x) && l.data)
        files_each(x->s, prefix, add_one, (void *)(uintptr_t)&l);
    exchange_json(x, json_pack("{s:s, s:o, s:b}", "object", "list", "data", l.data, "has_more", 0));
}

void files_list(exchange *x) {
    files_list_all(x, "file-", file_json);
}

/* Sends the content. */
static void send_content(exchange *x, const char *id) {
    char *path = files_path(x->s, id, "");
    struct stat of;
    x->content = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    mem_free(path);
    if (x->content < 0 || fstat(x->content, &of)) {
        fault_set(&x->why, 404, NULL, "there is no file %.60s", id);
        return;
    }
    x->has_content = true;
    x->n_content = (uint64_t)of.st_size;
    x->type = "application/jsonl";
}

void files_get(exchange *x) {
    static const char content[] = "/content";
    char id[sizeof x->named];
    snprintf(id, sizeof id, "%s", x->named);
    const size_t n = strlen(id), k = sizeof content - 1;
    const bool whole = n > k && !strcmp(id + n - k, content);
    if (whole)
        id[n - k] = 0;
    json_t *about = files_are_open(x) ? file_json(x->s, id, &x->why) : NULL;
    if (!about)
        return;
    if (!whole) {
        exchange_json(x, about);
        return;
    }
    json_decref(about);
    send_content(x, id);
}

void files_delete(exchange *x) {
    static const char *const suffixes[] = {".json", ""};
    json_t *about = files_are_open(x) ? file_json(x->s, x->named, &x->why) : NULL;
    if (!about)
        return;
    json_decref(about);
    for (size_t i = 0; i < NUM_COUNT(suffixes); i++) {
        char *path = files_path(x->s, x->named, suffixes[i]);
        if (path && unlink(path))
            fault_set(&x->why, 500, NULL, "cannot delete %.60s: %s", x->named, strerror(errno));
        mem_free(path);
    }
    if (!x->why.status)
        exchange_json(x, json_pack("{s:s, s:s, s:b}", "id", x->named, "object", "file", "deleted", 1));
}
