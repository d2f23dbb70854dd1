/* batches.c - see batches.h. */
#include "server/batches.h"

#include "base/file.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "base/thread.h"
#include "server/batch_file.h"
#include "server/exchange.h"
#include "server/files.h"
#include "server/local.h"
#include "server/models.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum {
    FREE_SHARE = 4, /* at least this fraction of the places is left to clients */
    SAVE_S = 1,
    LOOK_S = 5 /* another server may have added a batch */
};

struct batches {
    pthread_mutex_t lock; /* of the files batch_ID.json */
    atomic_bool look;     /* there may be a batch to begin, or one to cancel */
    /* computing thread: */
    int owner;         /* of FOLDER/owner, locked: of several servers with one folder, one runs the batches */
    double looked;     /* time at which the folder was searched */
    char id[FILES_ID]; /* the running batch; "": none */
    char output[FILES_ID], endpoint[64], *path;
    batch_file work;
    int64_t total;
    double saved;
};

static bool is_ended(const char *status) {
    return !strcmp(status, "completed") || !strcmp(status, "failed") || !strcmp(status, "cancelled");
}

static const char *text_of(const json_t *b, const char *key) {
    const char *text = json_string_value(json_object_get(b, key));
    return text ? text : "";
}

static void set_time(json_t *b, const char *key) {
    json_object_set_new(b, key, json_integer((json_int_t)time(NULL)));
}

static void set_counts(json_t *b, int64_t total, int64_t completed, int64_t failed) {
    json_object_set_new(b, "request_counts",
                        json_pack("{s:I, s:I, s:I}", "total", (json_int_t)total, "completed",
                                  (json_int_t)completed, "failed", (json_int_t)failed));
}

/* ---- the running batch ---- */

/* Writes its state. `status` NULL: only the counts. why NULL: none. */
static void save(server *s, const char *status, const char *why) {
    batches *t = s->batches;
    const batch_file *w = &t->work;
    fault lost = {0};
    pthread_mutex_lock(&t->lock);
    json_t *b = files_read_json(s, t->id, &lost);
    if (b) {
        set_counts(b, t->total, w->n_answered + w->n_kept, w->n_refused + w->n_invalid + w->n_failed);
        if (status) {
            char key[32];
            snprintf(key, sizeof key, "%s_at", status);
            json_object_set_new(b, "status", json_string(status));
            set_time(b, key);
        }
        if (t->output[0])
            json_object_set_new(b, "output_file_id", json_string(t->output));
        if (why)
            json_object_set_new(b, "errors",
                                json_pack("{s:s, s:[{s:s, s:s}]}", "object", "list", "data", "code",
                                          "batch_failed", "message", why));
        files_write_json(s, t->id, b, &lost);
    }
    json_decref(b);
    pthread_mutex_unlock(&t->lock);
    t->saved = time_now();
    if (lost.status && s->options.log)
        s->options.log(s->options.user, lost.message);
}

/* Closes the files of the running batch. */
static void forget(batches *t) {
    nib_error err;
    batch_file_clear(&t->work);
    batch_output_close(&t->work.out, &err);
    key_set_close(&t->work.keys);
    if (t->work.in.fd > 0)
        close(t->work.in.fd);
    mem_free(t->path);
    t->path = NULL;
    t->work = (batch_file){.in.fd = -1, .out.fd = -1};
    t->id[0] = t->output[0] = 0;
}

static int64_t count_lines(int fd) {
    char block[16 << 10], last = '\n';
    int64_t n = 0;
    for (ssize_t got; (got = read(fd, block, sizeof block)) > 0; last = block[got - 1])
        for (ssize_t i = 0; i < got; i++)
            n += block[i] == '\n';
    return lseek(fd, 0, SEEK_SET) < 0 ? 0 : n + (last != '\n');
}

/* Opens input and output. False: *why. */
static bool open_files(server *s, const json_t *b, fault *why) {
    batches *t = s->batches;
    batch_file *w = &t->work;
    nib_error err;
    uint64_t n_out;
    char *input = files_path(s, text_of(b, "input_file_id"), "");
    *w = (batch_file){.name = text_of(b, "input_file_id"), .endpoint = t->endpoint, .out.fd = -1};
    w->in.fd = input ? open(input, O_RDONLY | O_CLOEXEC) : -1;
    mem_free(input);
    if (w->in.fd < 0)
        return fault_set(why, 404, NULL, "the input file is gone");
    w->in.max = (size_t)s->options.max_body + BATCH_ENVELOPE_BYTES;
    w->values = VALUES_SHARE(s->options.request_bytes);
    w->max_in_row = 2 * s->n_sequence;
    w->n_line = t->total = count_lines(w->in.fd);
    t->path = files_path(s, t->output, "");
    if (!t->path || batch_output_open(&w->out, t->path, &err) || batch_output_count(&w->out, &n_out, &err))
        return fault_set(why, 500, NULL, "%s", t->path ? err.message : "out of memory");
    if (!key_set_open(&w->keys, n_out + (uint64_t)w->n_line, false))
        return fault_set(why, 503, NULL, "out of memory");
    return batch_output_load(&w->out, &w->keys, &err) == NIB_OK ||
           fault_set(why, 500, NULL, "%s", err.message);
}

typedef struct oldest {
    const server *s;
    char id[FILES_ID];
    json_int_t created;
} oldest;

static void look_at(void *user, const char *id) {
    oldest *o = user;
    fault why = {0};
    json_t *b = files_read_json(o->s, id, &why);
    const json_int_t created = json_integer_value(json_object_get(b, "created_at"));
    if (b && !is_ended(text_of(b, "status")) && (!o->id[0] || created < o->created)) {
        snprintf(o->id, sizeof o->id, "%s", id);
        o->created = created;
    }
    json_decref(b);
}

static bool is_owner(server *s) {
    batches *t = s->batches;
    char *path = t->owner < 0 ? files_path(s, "owner", "") : NULL;
    if (path)
        t->owner = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    mem_free(path);
    if (t->owner < 0 || !flock(t->owner, LOCK_EX | LOCK_NB))
        return t->owner >= 0;
    close(t->owner);
    t->owner = -1;
    return false;
}

/* Begins, or continues, the oldest batch that has not ended. False: there is none. */
static bool begin(server *s) {
    batches *t = s->batches;
    oldest found = {.s = s};
    fault why = {0};
    t->looked = time_now();
    if (!path_is_dir(s->files) || !is_owner(s))
        return false;
    files_each(s, "batch_", look_at, &found);
    if (!found.id[0])
        return false;
    json_t *b = files_read_json(s, found.id, &why);
    if (!b)
        return false;
    snprintf(t->id, sizeof t->id, "%s", found.id);
    snprintf(t->output, sizeof t->output, "%s", text_of(b, "output_file_id"));
    snprintf(t->endpoint, sizeof t->endpoint, "%s", text_of(b, "endpoint"));
    const bool cancels = !strcmp(text_of(b, "status"), "cancelling"), is_new = !t->output[0];
    if (is_new)
        files_new_id("file-", t->output);
    const bool opened = !cancels && open_files(s, b, &why) &&
                        (!is_new || files_describe(s, t->output, "output.jsonl", "batch_output", &why));
    if (opened)
        save(s, "in_progress", NULL);
    else
        save(s, cancels ? "cancelled" : "failed", cancels ? NULL : why.message);
    json_decref(b);
    if (!opened)
        forget(t);
    t->work.name = "the input file";
    return true;
}

static bool is_cancelled(server *s) {
    batches *t = s->batches;
    fault why = {0};
    pthread_mutex_lock(&t->lock);
    json_t *b = files_read_json(s, t->id, &why);
    const bool cancels = !b || !strcmp(text_of(b, "status"), "cancelling");
    json_decref(b);
    pthread_mutex_unlock(&t->lock);
    return cancels;
}

static void end(server *s, const char *status, const char *why) {
    save(s, status, why);
    forget(s->batches);
    atomic_store(&s->batches->look, true);
}

/* Requests that may be asked: the batch leaves a share of the places free, more while clients wait. */
static size_t places(const server *s) {
    const batches *t = s->batches;
    const size_t n = (size_t)s->n_sequence, all = server_n_answer(s);
    const size_t others = all > t->work.n_asked ? all - t->work.n_asked : 0;
    const size_t left = NUM_MAX(n - NUM_MIN(n, others), n / FREE_SHARE);
    return NUM_MAX(NUM_MIN(left, n - n / FREE_SHARE), (size_t)1);
}

static bool run(server *s) {
    batches *t = s->batches;
    batch_file *w = &t->work;
    nib_error err;
    const int64_t before = batch_file_done(w);
    if (atomic_exchange(&t->look, false) && is_cancelled(s)) {
        local_drop(s);
        end(s, "cancelled", NULL);
        return true;
    }
    nib_status status = batch_file_write(w, s, &err);
    if (status == NIB_OK && !atomic_load(&s->ending))
        status = batch_file_ask(w, s, places(s), &err);
    if (status != NIB_OK)
        end(s, "failed", err.message);
    else if (w->ended && w->n_asked == 0)
        end(s, w->unread.status ? "failed" : "completed", w->unread.status ? w->unread.message : NULL);
    else if (batch_file_done(w) > before && time_now() - t->saved > SAVE_S)
        save(s, NULL, NULL);
    return batch_file_done(w) > before;
}

bool batches_tend(server *s) {
    batches *t = s->batches;
    if (!t || !model_loaded(s))
        return false;
    if (t->id[0])
        return run(s);
    const bool look = atomic_exchange(&t->look, false) || time_now() - t->looked > LOOK_S;
    return look && !atomic_load(&s->ending) && begin(s);
}

nib_status batches_open(server *s, nib_error *err) {
    s->batches = mem_calloc(1, sizeof *s->batches);
    if (!s->batches)
        return nib_fail_nomem(err, sizeof *s->batches, "batches");
    s->batches->work = (batch_file){.in.fd = -1, .out.fd = -1};
    s->batches->owner = -1;
    pthread_mutex_init(&s->batches->lock, NULL);
    atomic_init(&s->batches->look, true);
    return NIB_OK;
}

void batches_close(server *s) {
    if (!s->batches)
        return;
    forget(s->batches);
    if (s->batches->owner >= 0)
        close(s->batches->owner);
    pthread_mutex_destroy(&s->batches->lock);
    mem_free(s->batches);
    s->batches = NULL;
}

/* ---- routes ---- */

/* The batch as the API shows it; NULL: x->why. Locked. */
static json_t *batch_json(const server *s, const char *id, fault *why) {
    if (files_is_id(id, "batch_"))
        return files_read_json(s, id, why);
    fault_set(why, 404, NULL, "there is no batch %.60s", id);
    return NULL;
}

static bool check(exchange *x, const json_t *body) {
    static const char *const endpoints[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                            "/v1/embeddings"};
    const char *endpoint = text_of(body, "endpoint"), *input = text_of(body, "input_file_id");
    size_t i = 0;
    while (i < NUM_COUNT(endpoints) && strcmp(endpoint, endpoints[i]) != 0)
        i++;
    if (i == NUM_COUNT(endpoints))
        return fault_field(&x->why, "endpoint",
                           "expected /v1/chat/completions, /v1/completions, /v1/responses or /v1/embeddings");
    fault why = {0};
    json_t *found = files_is_id(input, "file-") ? files_read_json(x->s, input, &why) : NULL;
    json_decref(found);
    return found || fault_field(&x->why, "input_file_id", "expected the id of an uploaded file");
}

void batches_create(exchange *x) {
    json_t *body = NULL;
    nib_error err;
    char id[FILES_ID];
    if (!files_are_open(x))
        return;
    if (jsonx_parse(x->body.data, x->body.n, &body, &err) != NIB_OK || !json_is_object(body))
        fault_set(&x->why, 400, NULL, "expected a JSON object");
    else if (check(x, body)) {
        const json_t *metadata = json_object_get(body, "metadata");
        files_new_id("batch_", id);
        json_t *b =
            json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:n, s:n, s:n, s:I, s:O}", "id", id, "object", "batch",
                      "endpoint", text_of(body, "endpoint"), "input_file_id", text_of(body, "input_file_id"),
                      "completion_window",
                      text_of(body, "completion_window")[0] ? text_of(body, "completion_window") : "24h",
                      "status", "validating", "output_file_id", "error_file_id", "errors", "created_at",
                      (json_int_t)time(NULL), "metadata", metadata ? metadata : json_null());
        if (b)
            set_counts(b, 0, 0, 0);
        if (!b)
            fault_set(&x->why, 503, NULL, "out of memory");
        else if (files_write_json(x->s, id, b, &x->why)) {
            exchange_json(x, json_incref(b));
            atomic_store(&x->s->batches->look, true);
            server_wake(x->s);
        }
        json_decref(b);
    }
    json_decref(body);
}

void batches_list(exchange *x) {
    files_list_all(x, "batch_", files_read_json);
}

void batches_get(exchange *x) {
    json_t *b = files_are_open(x) ? batch_json(x->s, x->named, &x->why) : NULL;
    if (b)
        exchange_json(x, b);
}

void batches_cancel(exchange *x) {
    static const char suffix[] = "/cancel";
    char id[sizeof x->named];
    snprintf(id, sizeof id, "%s", x->named);
    const size_t n = strlen(id), k = sizeof suffix - 1;
    if (!files_are_open(x))
        return;
    if (n <= k || strcmp(id + n - k, suffix) != 0) {
        fault_set(&x->why, 404, NULL, "expected /v1/batches/ID/cancel");
        return;
    }
    id[n - k] = 0;
    pthread_mutex_lock(&x->s->batches->lock);
    json_t *b = batch_json(x->s, id, &x->why);
    if (b && !is_ended(text_of(b, "status"))) {
        json_object_set_new(b, "status", json_string("cancelling"));
        set_time(b, "cancelling_at");
        files_write_json(x->s, id, b, &x->why);
    }
    pthread_mutex_unlock(&x->s->batches->lock);
    atomic_store(&x->s->batches->look, true);
    server_wake(x->s);
    if (b && !x->why.status)
        exchange_json(x, b);
    else
        json_decref(b);
}
