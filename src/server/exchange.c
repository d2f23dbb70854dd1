/* exchange.c - the callbacks of libmicrohttpd: receive a request piece by piece, and send its answer.
 *
 *     first look --> body --> handled --> reply                       (all but answers, and every fault)
 *                                 |-----> suspended --> whole answer
 *                                 '-----> stream: taken from the job, suspended while there is nothing
 *
 * A refused request is read to its end before the refusal is sent, since many clients read the answer only
 * then. A body that is too long for that is answered at once. */
#include "server/exchange.h"

#include "base/escape.h"
#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "server/admit.h"
#include "server/files.h"
#include "server/job.h"
#include "server/ollama.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STREAM_BLOCK = 4 << 10, MAX_HEADER = 4096 };

void server_wake(server *s) {
    const uint64_t one = 1;
    if (write(s->wake, &one, sizeof one) < 0) {
        /* it is awake already */
    }
}

void exchange_resume(exchange *x) {
    if (!x || !x->suspended)
        return;
    x->suspended = false;
    web.resume_connection(x->connection);
}

void exchange_suspend(exchange *x) {
    x->suspended = true;
    web.suspend_connection(x->connection);
}

void exchange_json(exchange *x, json_t *value) {
    buffer_json(&x->reply, value);
    x->type = "application/json";
}

const char *exchange_header(const exchange *x, const char *name) {
    return web.lookup_connection_value(x->connection, MHD_HEADER_KIND, name);
}

/* ---- the address ---- */

/* Whether a path of n bytes belongs to the route; stores the name that it contains. */
static bool is_path(exchange *x, const route *r, const char *url, size_t n) {
    const size_t n_path = strcspn(r->path, "{");
    const bool names = r->path[n_path] != '\0';
    if (strncmp(r->path, url, NUM_MIN(n, n_path)) != 0 || (names ? n <= n_path : n != n_path))
        return false;
    if (n - n_path < sizeof x->named) /* a longer name matches no model */
        memcpy(x->named, url + n_path, n - n_path);
    return true;
}

void exchange_route(exchange *x, const char *url, const char *method) {
    const bool head = !strcmp(method, MHD_HTTP_METHOD_HEAD);
    size_t n = strlen(url);
    while (n > 1 && url[n - 1] == '/')
        n--;
    for (size_t i = 0; i < server_n_route; i++) {
        const route *r = &server_routes[i];
        if (!is_path(x, r, url, n))
            continue;
        x->allow = r->method;
        if (!strcmp(r->method, head ? MHD_HTTP_METHOD_GET : method))
            x->route = r;
    }
    if (x->route)
        x->allow = NULL;
    else if (x->allow)
        fault_set(&x->why, 405, NULL, "%.80s takes %s, not %.16s", url, x->allow, method);
    else
        fault_set(&x->why, 404, NULL, "there is no %.16s %.80s here", method, url);
}

static void first_look(exchange *x, const char *url, const char *method) {
    server *s = x->s;
    if (strlen(url) > MAX_HEADER)
        fault_set(&x->why, 414, NULL, "expected a shorter URL");
    exchange_route(x, url, method);
    if (!admit_host(x)) {
        x->why = (fault){0};
        fault_set(&x->why, 400, NULL, "expected one Host header with a name and, after a colon, a port");
    } else if (!admit_origin(x)) {
        fault_set(&x->why, 403, NULL, "requests from web pages of other sites are refused");
    } else if (!(x->route && x->route->kind == ROUTE_OPEN) && !admit_key(x)) {
        x->why = (fault){0}; /* clients without a key must not learn which paths exist */
        fault_set(&x->why, 401, "invalid_api_key", "expected a known API key");
    }
    if (x->over->crowded && !(x->route && x->route->kind == ROUTE_OPEN) && !x->why.status) {
        x->why.retry_s = 1;
        fault_set(&x->why, 503, NULL, "all %d connections have work: try again", s->options.n_connection);
    }
    if (x->route && x->route->kind != ROUTE_OPEN && !atomic_load(&s->ready))
        fault_set(&x->why, 503, NULL, "Loading model");
    if (x->route && x->route->kind == ROUTE_ANSWER && atomic_load(&s->ending))
        fault_set(&x->why, 503, NULL, "the server is shutting down");
}

/* ---- a request's body ---- */

static bool take_body(exchange *x, const char *data, size_t n) {
    server *s = x->s;
    connection_got(s, x->over, n);
    if (x->why.status)
        return true;
    if (x->route->kind == ROUTE_UPLOAD)
        return files_take(x, data, n);
    if (x->body.n + n > s->options.max_body)
        return fault_set(&x->why, 413, NULL, "the body is longer than %llu bytes",
                         (unsigned long long)s->options.max_body);
    if (s->n_body + n > s->options.request_bytes / SHARE_BODIES) {
        x->why.retry_s = 1;
        return fault_set(&x->why, 503, NULL, "too many requests are being received");
    }
    buffer_add(&x->body, data, n);
    x->n_body += n;
    s->n_body += n;
    return !x->body.no_memory || fault_set(&x->why, 503, NULL, "out of memory");
}

static void drop_body(exchange *x) {
    x->s->n_body -= x->n_body;
    x->n_body = 0;
    buffer_clear(&x->body);
    files_drop(x);
}

static bool is_too_long(const exchange *x) {
    const char *length = exchange_header(x, "Content-Length");
    const bool uploads = x->route && x->route->kind == ROUTE_UPLOAD;
    return length && strtoull(length, NULL, 10) > (uploads ? FILES_MAX_UPLOAD : x->s->options.max_body);
}

/* ---- memory ---- */

/* What is built for a request: values and text, within what replies on their way and requests that are being
 * answered leave of the share. */
typedef struct building {
    mem_bound bound;
    size_t lost;
} building;

static void build_begin(const server *s, building *b) {
    const uint64_t share = VALUES_SHARE(s->options.request_bytes);
    mem_bound_set(&b->bound, share - NUM_MIN(share, s->n_reply + s->n_value));
    b->lost = jsonx_lost();
}

/* False: memory ran out, so something may be missing. */
static bool build_end(building *b) {
    mem_bound_end(&b->bound);
    return jsonx_lost() == b->lost;
}

/* bounded: the share was too small, and the same request fails again unless others have a part of it. */
static void fault_memory(exchange *x, bool bounded) {
    const bool alone = x->s->n_reply + x->s->n_value == 0;
    if (x->why.status && (!bounded || (alone && x->why.status == 413)))
        return;
    x->why = (fault){0};
    if (bounded && alone) {
        fault_set(&x->why, 413, NULL,
                  "the request or its reply needs more memory than is reserved for one: expected a smaller "
                  "request");
        return;
    }
    x->why.retry_s = 1;
    fault_set(&x->why, 503, "out_of_memory", "the memory for requests is used up: try again");
}

/* A job keeps the body's values and its prompts until it is freed. False: there is no place for them. */
static bool charge_job(exchange *x, const building *b) {
    server *s = x->s;
    const uint64_t n = (uint64_t)NUM_MAX(b->bound.now, 0);
    if (!x->job)
        return true;
    if (s->n_value + n > REQUESTS_SHARE(s->options.request_bytes))
        return false;
    x->job->n_value = n;
    s->n_value += n;
    return true;
}

/* ---- answers ---- */

static enum MHD_Result queue(exchange *x, int status, const char *type, struct MHD_Response *r) {
    char seconds[16];
    if (!r)
        return MHD_NO;
    if (type)
        web.add_response_header(r, "Content-Type", type);
    if (x->why.retry_s) {
        snprintf(seconds, sizeof seconds, "%d", x->why.retry_s);
        web.add_response_header(r, "Retry-After", seconds);
    }
    if (status == 401)
        web.add_response_header(r, "WWW-Authenticate", "Bearer");
    if (status == 405 && x->allow)
        web.add_response_header(r, "Allow", x->allow);
    web.add_response_header(r, "Cache-Control", "no-store");
    web.add_response_header(r, "X-Content-Type-Options", "nosniff");
    web.add_response_header(
        r, "Content-Security-Policy",
        "default-src 'none'; connect-src 'self'; img-src data:; style-src 'unsafe-inline'; "
        "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'; require-trusted-types-for 'script'");
    const enum MHD_Result done = web.queue_response(x->connection, (unsigned)status, r);
    web.destroy_response(r);
    return done;
}

void exchange_write_fault(exchange *x) {
    const dialect *how = x->route ? x->route->how : strstr(x->what, " /api/") ? &ollama_chat : NULL;
    const size_t lost = jsonx_lost();
    json_t *value = how && how->fault ? how->fault(&x->why) : fault_json(&x->why);
    buffer_clear(&x->reply);
    exchange_json(x, value);
    x->reply.no_memory = x->reply.no_memory || jsonx_lost() != lost;
    pthread_mutex_lock(&x->s->lock);
    x->s->counts.n_refused++;
    pthread_mutex_unlock(&x->s->lock);
}

void exchange_write_whole(exchange *x) {
    building b;
    build_begin(x->s, &b);
    x->job->how->whole(x->job, &x->reply);
    x->reply.no_memory = !build_end(&b) || x->reply.no_memory;
}

/* Replies stay in memory until their clients have read them. */
static void charge_reply(exchange *x) {
    server *s = x->s;
    const uint64_t max = REPLIES_SHARE(s->options.request_bytes);
    if (!x->why.status && x->reply.cap > max - NUM_MIN(s->n_reply, max))
        fault_memory(x, true);
    if (x->why.status)
        exchange_write_fault(x);
    x->n_reply = x->reply.cap;
    s->n_reply += x->n_reply;
}

static enum MHD_Result send_reply(exchange *x) {
    static const char nothing[] =
        "{\"error\":{\"message\":\"out of memory\",\"type\":\"unavailable_error\"}}";
    if (x->has_content && !x->why.status) {
        x->has_content = false; /* the response closes it */
        return queue(x, 200, x->type, web.create_response_from_fd((size_t)x->n_content, x->content));
    }
    charge_reply(x);
    const bool lost = x->reply.no_memory;
    const int status = lost ? 503 : x->why.status ? x->why.status : 200;
    const char *text = lost ? nothing : x->reply.data;
    return queue(x, status, x->type,
                 web.create_response_from_buffer(lost ? strlen(nothing) : x->reply.n, (void *)(uintptr_t)text,
                                                 MHD_RESPMEM_PERSISTENT));
}

static ssize_t read_stream(void *user, uint64_t at, char *out, size_t max) {
    exchange *x = user;
    job *j = x->job;
    building b;
    ssize_t n;
    (void)at;
    pthread_mutex_lock(&x->s->lock);
    const int64_t before = (int64_t)job_buffered(j);
    build_begin(x->s, &b);
    job_write(j);
    if (!build_end(&b))
        j->out.no_memory = true;
    j->n_kept += b.bound.now - ((int64_t)job_buffered(j) - before);
    n = (ssize_t)buffer_take(&j->out, out, max);
    if (!j->out.no_memory && buffer_left(&j->out) == 0)
        buffer_clear(&j->out);
    job_charge(j);
    if (j->out.no_memory || !j->at)
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    else if (n == 0 && j->ended)
        n = MHD_CONTENT_READER_END_OF_STREAM;
    else if (n == 0)
        exchange_suspend(x);
    pthread_mutex_unlock(&x->s->lock);
    return n;
}

static enum MHD_Result send_stream(exchange *x) {
    return queue(x, 200, x->job->how->stream_type,
                 web.create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream, x, NULL));
}

/* Suspends the connection until the answer is complete. */
static enum MHD_Result send_whole(exchange *x) {
    job *j = x->job;
    pthread_mutex_lock(&x->s->lock);
    const bool gone = !j->at, waits = !gone && j->n_left > 0;
    if (waits)
        exchange_suspend(x);
    x->why = j->why;
    pthread_mutex_unlock(&x->s->lock);
    if (gone)
        return MHD_NO;
    if (waits)
        return MHD_YES;
    x->type = "application/json";
    if (!x->why.status)
        exchange_write_whole(x);
    if (x->reply.no_memory)
        fault_memory(x, true);
    return send_reply(x);
}

static void count(exchange *x) {
    if (!x->counted)
        atomic_fetch_add(&x->s->n_exchange, 1);
    x->counted = true;
}

bool exchange_handle(exchange *x) {
    building b;
    count(x);
    build_begin(x->s, &b);
    const bool needs_model = !x->why.status && x->route->kind >= ROUTE_MODEL && !x->model;
    const bool waits = needs_model && model_take(x) == MODEL_AWAITED;
    if (!waits && !x->why.status)
        x->route->handle(x);
    const bool whole = build_end(&b);
    if (waits)
        return false;
    x->handled = true;
    const bool fits = charge_job(x, &b);
    if (!whole || x->reply.no_memory || b.bound.refused || !fits) { /* something may be missing */
        exchange_drop_job(x);
        fault_memory(x, b.bound.refused || !fits);
    }
    drop_body(x);
    return true;
}

/* ---- libmicrohttpd's callbacks ---- */

/* Stores method and URL for the log, with control characters escaped. */
static void name(exchange *x, const char *method, const char *url) {
    char raw[sizeof x->what];
    snprintf(raw, sizeof raw, "%.16s %.72s", method, url);
    escape_line(x->what, sizeof x->what, raw);
}

/* Writes a line to the log. */
static void note(const exchange *x, enum MHD_RequestTerminationCode code) {
    const server_options *o = &x->s->options;
    char line[256], tokens[64] = "";
    if (!o->log_requests || !o->log)
        return;
    if (x->job)
        snprintf(tokens, sizeof tokens, ", %zu + %zu tokens", x->job->n_prompt, job_made(x->job));
    snprintf(line, sizeof line, "%s: %d%s, %.3f s%s%s%.63s", x->what, x->why.status ? x->why.status : 200,
             tokens, time_now() - x->begun,
             code == MHD_REQUEST_TERMINATED_COMPLETED_OK ? "" : ", the client left",
             x->why.param[0] ? ": " : "", x->why.param);
    o->log(o->user, line);
}

static exchange *begin(server *s, struct MHD_Connection *c) {
    exchange *x = mem_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    x->s = s;
    x->connection = c;
    x->fd = web.get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    x->client = admit_client(x->fd);
    x->keep_s = NAN;
    x->over = connection_of(c);
    if (x->over) {
        connection_set(s, x->over, CONNECTION_BODY);
        return x;
    }
    mem_free(x);
    return NULL;
}

static enum MHD_Result on_request(void *user, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *n_byte, void **state) {
    exchange *x = *state;
    (void)version;
    if (!x) {
        *state = x = begin(user, c);
        if (!x)
            return MHD_NO;
        name(x, method, url);
        x->begun = time_now();
        first_look(x, url, method);
        if (!is_too_long(x))
            return MHD_YES;
        if (!x->why.status)
            fault_set(&x->why, 413, NULL, "the body is longer than %llu bytes",
                      (unsigned long long)x->s->options.max_body);
        x->handled = true;
        connection_set(x->s, x->over, CONNECTION_WORKS);
        count(x);
        return send_reply(x);
    }
    if (*n_byte) {
        take_body(x, data, *n_byte);
        *n_byte = 0;
        return MHD_YES;
    }
    if (!x->handled)
        connection_set(x->s, x->over, CONNECTION_WORKS);
    if (!x->handled && !exchange_handle(x))
        return MHD_YES;
    if (!x->job)
        return send_reply(x);
    return x->job->call.stream ? send_stream(x) : send_whole(x);
}

void exchange_drop_job(exchange *x) {
    if (!x->job)
        return;
    pthread_mutex_lock(&x->s->lock);
    job_cancel(x->job);
    pthread_mutex_unlock(&x->s->lock);
    job_release(x->job);
    x->job = NULL;
}

void exchange_free(exchange *x) {
    server *s = x->s;
    drop_body(x);
    exchange_drop_job(x);
    if (x->model)
        model_release(x->model);
    if (x->counted)
        atomic_fetch_sub(&s->n_exchange, 1);
    s->n_reply -= x->n_reply;
    if (x->has_content)
        close(x->content);
    buffer_clear(&x->reply);
    mem_free(x->tag);
    mem_free(x);
}

static void on_end(void *user, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode code) {
    server *s = user;
    exchange *x = *state;
    (void)c;
    if (!x)
        return;
    note(x, code);
    connection_set(s, x->over, CONNECTION_HEADERS);
    exchange_free(x);
    *state = NULL;
    server_wake(s);
}

struct MHD_Daemon *exchange_listen(server *s) {
    /* not epoll: if data and the end of the connection arrive together, libmicrohttpd 0.9.75 notices only the
     * data */
    const unsigned flags = MHD_USE_POLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME;
    return web.start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET, s->listener.fd,
                            MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->options.n_connection + CONNECTIONS_ROOM,
                            MHD_OPTION_NOTIFY_CONNECTION, connections_note, s, MHD_OPTION_CONNECTION_TIMEOUT,
                            (unsigned)s->options.timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                            (size_t)EXCHANGE_CONNECTION_BYTES, MHD_OPTION_NOTIFY_COMPLETED, on_end, s,
                            MHD_OPTION_END);
}
