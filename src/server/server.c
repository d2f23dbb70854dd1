/* server.c - see server.h. */
#include "server/server.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "server/batches.h"
#include "server/exchange.h"
#include "server/jobs.h"
#include "server/local.h"

#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

enum {
    USUAL_CONNECTIONS = 256,
    USUAL_QUEUE = 64,
    USUAL_BODY = 1 << 20,
    USUAL_REQUEST_BYTES = 256 << 20,
    USUAL_TIMEOUT_S = 60,
    BODY_SHARE = 8, /* one body gets at most request_bytes / BODY_SHARE */
    MIN_CONNECTIONS = 16,
    IDLE_MS = 60000, /* maximum wait without work */
    PAUSE_MS = 100,  /* wait before a failed step is tried again */
    MAX_FAILURES = 3 /* consecutive failures of a step after which its requests fail */
};

/* ---- opening ---- */

static void set_defaults(server_options *o) {
    o->host = o->host ? o->host : "127.0.0.1";
    o->n_connection = o->n_connection ? o->n_connection : USUAL_CONNECTIONS;
    o->n_queue = o->n_queue ? o->n_queue : USUAL_QUEUE;
    o->request_bytes = o->request_bytes ? o->request_bytes : USUAL_REQUEST_BYTES;
    o->max_body = o->max_body ? o->max_body : USUAL_BODY;
    o->max_body = NUM_MIN(o->max_body, o->request_bytes / BODY_SHARE);
    const uint64_t connections = o->request_bytes / SHARE_CONNECTIONS / EXCHANGE_CONNECTION_BYTES;
    o->n_connection =
        (int)NUM_MIN((uint64_t)o->n_connection,
                     NUM_MAX(connections, MIN_CONNECTIONS + CONNECTIONS_ROOM) - CONNECTIONS_ROOM);
    o->timeout_s = o->timeout_s ? o->timeout_s : USUAL_TIMEOUT_S;
}

static bool copy_texts(server *s) {
    s->keys = mem_calloc(s->options.n_key + 1, sizeof *s->keys);
    s->prefix_cache = s->options.prefix_cache ? mem_strdup(s->options.prefix_cache) : NULL;
    s->host = mem_strdup(s->options.host);
    for (size_t i = 0; s->keys && i < s->options.n_key; i++)
        if (!(s->keys[i] = mem_strdup(s->options.keys[i])))
            return false;
    s->files = s->options.files ? mem_strdup(s->options.files) : NULL;
    return s->keys && s->host && (s->prefix_cache || !s->options.prefix_cache) &&
           (s->files || !s->options.files) && models_open(s);
}

static nib_status listen_now(server *s, nib_error *err) {
    NIB_TRY(web_load(err));
    NIB_TRY(listen_open(s->host, s->options.port, &s->listener, err));
    if (!s->listener.loopback && s->options.n_key == 0 && !s->options.keyless)
        return nib_fail(err, NIB_E_USAGE,
                        "--host %s: other machines can reach it, so expected an API key (NIBBLE_API_KEY, "
                        "--api-key-file), or --no-api-key",
                        s->host);
    s->daemon = exchange_listen(s);
    if (!s->daemon)
        return nib_fail(err, NIB_E_FAILED, "libmicrohttpd cannot listen at %s", s->listener.address);
    return NIB_OK;
}

nib_status server_open(const server_options *options, server **out, nib_error *err) {
    server *s = mem_calloc(1, sizeof *s);
    if (!s)
        return nib_fail_nomem(err, sizeof *s, "a server");
    s->options = *options;
    s->defaults = (server_defaults){.max_tokens = -1, .seed = -1};
    nib_sampling_init(&s->defaults.sampling);
    if (options->defaults)
        s->defaults = *options->defaults;
    set_defaults(&s->options);
    s->listener.fd = -1;
    s->opened = time(NULL);
    pthread_mutex_init(&s->lock, NULL);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    nib_status status = copy_texts(s) ? NIB_OK : nib_fail_nomem(err, sizeof *s, "a server");
    if (status == NIB_OK && s->wake < 0)
        status = nib_fail(err, NIB_E_FAILED, "cannot create an eventfd");
    if (status == NIB_OK && s->files)
        status = batches_open(s, err);
    if (status == NIB_OK && !s->options.local)
        status = listen_now(s, err);
    if (status == NIB_OK)
        *out = s;
    else
        server_close(s);
    return status;
}

static void stop_serving(server *s) {
    load_drop(s);
    local_drop(s);
    jobs_drop(s);
    models_drop_waiting(s);
    if (s->daemon)
        web.stop_daemon(s->daemon);
    s->daemon = NULL;
}

void server_close(server *s) {
    if (!s)
        return;
    stop_serving(s);
    batches_close(s);
    models_close(s);
    listen_close(&s->listener);
    if (s->wake >= 0)
        close(s->wake);
    for (size_t i = 0; s->keys && i < s->options.n_key; i++)
        mem_free(s->keys[i]);
    mem_free(s->keys);
    mem_free(s->prefix_cache);
    mem_free(s->host);
    mem_free(s->files);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}

const char *server_address(const server *s) {
    return s->listener.address;
}

int server_port(const server *s) {
    return s->listener.port;
}

/* ---- computing ---- */

static void drain_wake(server *s) {
    uint64_t n;
    if (read(s->wake, &n, sizeof n) < 0) {
        /* it was not woken */
    }
}

/* A failed step is tried again, since the cause (a disk, say) may be temporary. After MAX_FAILURES
 * consecutive failures its requests end with the error. */
static void note_failure(served *m, const nib_error *err) {
    server *s = m->s;
    if (s->options.log)
        s->options.log(s->options.user, err->message);
    if (++m->n_failed < MAX_FAILURES) {
        s->runs->wait(s->runs->user, s->wake, PAUSE_MS);
        return;
    }
    jobs_fail(m, err);
    m->n_failed = 0;
}

static void note_success(served *m) {
    m->n_failed = 0;
    if (m->failed == 0) /* which only this thread sets */
        return;
    pthread_mutex_lock(&m->s->lock);
    m->failed = 0;
    pthread_mutex_unlock(&m->s->lock);
}

static void stop_listening(server *s) {
    atomic_store(&s->ending, true);
    web.quiesce_daemon(s->daemon);
    listen_close(&s->listener);
}

static bool step(served *m) {
    nib_error err;
    int32_t n_left = 0;
    if (nib_batch_step(m->batch, &n_left, &err))
        note_failure(m, &err);
    else if (n_left > 0)
        note_success(m);
    jobs_take(m);
    return n_left > 0;
}

bool server_turn(server *s) {
    bool left = false;
    if (s->daemon && !atomic_load(&s->ending) && s->runs->ending(s->runs->user))
        stop_listening(s);
    drain_wake(s);
    jobs_watch(s);
    connections_tend(s, 0);
    for (size_t i = 0; i < s->n_model; i++)
        left = (s->models[i].batch && step(&s->models[i])) || left;
    return left;
}

static void step_all(server *s) {
    for (;;) {
        const bool answers = server_turn(s), embeddings = jobs_embed(s), loaded = models_tend(s);
        const bool batch = batches_tend(s);
        if (answers || embeddings || loaded || batch)
            continue;
        if (atomic_load(&s->ending) && atomic_load(&s->n_exchange) == 0)
            return;
        s->runs->wait(s->runs->user, s->wake, connections_tend(s, models_wait_ms(s, IDLE_MS)));
    }
}

void server_draft(server *s, nib_engine *draft, uint64_t n_byte) {
    s->draft = draft;
    s->draft_bytes = n_byte;
}

nib_status server_begin(server *s, nib_engine *engine, int n_sequence, nib_error *err) {
    nib_batch *batch;
    s->n_sequence = n_sequence;
    if (engine) {
        NIB_TRY(model_prepare(&s->models[0], engine, &batch, err));
        model_begin(&s->models[0], engine, batch);
    }
    atomic_store(&s->ready, true);
    return NIB_OK;
}

const nib_engine *server_engine(const server *s) {
    const served *m = model_loaded(s);
    return m ? m->engine : NULL;
}

void server_run(server *s, const server_host *host) {
    s->runs = host;
    step_all(s);
    stop_serving(s);
}
