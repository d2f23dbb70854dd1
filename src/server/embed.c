/* embed.c - /v1/embeddings and Ollama's /api/embed. The texts of a request are computed one after the other,
 * each in one or more passes.
 *
 * The computing thread computes them. It runs the batch between two passes, so a long text delays other
 * requests no longer than a prompt does. A session is opened for each request, and its keys and values are
 * freed afterwards. */
#include "server/embed.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "server/call_parts.h"
#include "server/job.h"
#include "server/ollama.h"
#include "server/prompts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_INPUTS = 2048, NUMBER_TEXT = 16 /* maximum bytes of one number in JSON */ };

typedef struct embed_call {
    const char *encoding;
    int64_t dimensions;
} embed_call;

static const member rows[] = {
    {"encoding_format", MEMBER_TEXT, offsetof(embed_call, encoding), 0, 0},
    {"dimensions", MEMBER_I64, offsetof(embed_call, dimensions), 1, 1 << 24},
};
static const member_table embed_members = {rows, NUM_COUNT(rows)};

void embedding_free(embedding *e) {
    if (!e)
        return;
    for (size_t i = 0; i < e->n; i++)
        nib_free(e->texts[i].tokens);
    mem_free(e->texts);
    mem_free(e->vectors);
    mem_free(e);
}

/* ---- the request ---- */

/* The inputs as an array: texts or arrays of ids; a new reference. NULL: *why is set. */
static json_t *inputs_of(const json_t *body, const char *field, fault *why) {
    json_t *input = member_get(body, field);
    const bool single =
        json_is_string(input) || (json_is_array(input) && json_is_number(json_array_get(input, 0)));
    const size_t n = json_is_array(input) ? json_array_size(input) : 0;
    if (!single && (n == 0 || n > MAX_INPUTS)) {
        fault_field(why, field, "expected a string, token ids, or an array of 1 to %d of them, found %s",
                    MAX_INPUTS,
                    n > MAX_INPUTS    ? "more"
                    : n == 0 && input ? "an empty one"
                                      : json_type_name(input));
        return NULL;
    }
    json_t *list = single ? json_pack("[O]", input) : json_incref(input);
    if (!list)
        fault_set(why, 503, NULL, "out of memory");
    return list;
}

/* Reads the form of the answer. The number of dimensions is the model's; others are refused. */
static bool read_form(const json_t *body, int64_t width, embedding *e, fault *why) {
    embed_call c = {NULL, width};
    if (!members_read(body, &embed_members, &c, why))
        return false;
    if (c.encoding && strcmp(c.encoding, "float") != 0 && strcmp(c.encoding, "base64") != 0)
        return fault_field(why, "encoding_format", "expected \"float\" or \"base64\", found '%.40s'",
                           c.encoding);
    if (c.dimensions != width)
        return fault_field(why, "dimensions", "is not supported: the model's embeddings have %lld",
                           (long long)width);
    e->base64 = c.encoding && !strcmp(c.encoding, "base64");
    return true;
}

/* Whether the memory that the request holds until it is answered (tokens, vectors, their text) fits. */
static bool fits_share(const server *s, embedding *e, fault *why) {
    char need[32], have[32];
    const uint64_t numbers = e->n * (uint64_t)e->width, max = LOGPROBS_SHARE(s->options.request_bytes);
    e->bytes += numbers * (sizeof(float) + (e->base64 ? 2 * sizeof(float) : NUMBER_TEXT));
    return e->bytes <= max ||
           fault_field(why, "input",
                       "the embeddings may take %s here, and %s is reserved for them: request fewer",
                       num_format_size(e->bytes, need), num_format_size(max, have));
}

static bool read_texts(const nib_engine *engine, const json_t *list, const char *field, embedding *e,
                       fault *why) {
    const json_t *one;
    char place[32];
    size_t i;
    json_array_foreach(list, i, one) {
        call_tokens *t = &e->texts[e->n++];
        snprintf(place, sizeof place, json_array_size(list) > 1 ? "%s[%zu]" : "%s", field, i);
        if (!prompt_one(engine, one, place, t, why))
            return false;
        e->bytes += t->n * sizeof *t->tokens;
        e->n_token += t->n;
    }
    return true;
}

static embedding *embedding_read(const server *s, const nib_engine *engine, const json_t *body,
                                 const char *field, fault *why) {
    json_t *list = inputs_of(body, field, why);
    const size_t n = json_array_size(list);
    embedding *e = list ? mem_calloc(1, sizeof *e) : NULL;
    if (e) {
        e->width = nib_engine_info(engine)->d_embed;
        e->texts = mem_calloc(n, sizeof *e->texts);
    }
    bool good = e && e->texts && read_form(body, e->width, e, why) &&
                read_texts(engine, list, field, e, why) && fits_share(s, e, why);
    if (good)
        e->vectors = mem_array(e->n * (size_t)e->width, sizeof *e->vectors);
    json_decref(list);
    if (e && e->vectors)
        return e;
    fault_set(why, 503, NULL, "out of memory");
    embedding_free(e);
    return NULL;
}

void embed_ask(exchange *x) {
    json_t *body = body_parse(x->body.data, x->body.n, &x->why);
    const char *field = x->route->how == &ollama_one_embedding ? "prompt" : "input";
    embedding *e = body ? embedding_read(x->s, x->model->engine, body, field, &x->why) : NULL;
    json_decref(body);
    if (e)
        job_begin_embedding(x, e, &x->why);
}

/* ---- computing ---- */

/* Scales the vector to length 1, as clients of these APIs expect. */
static void normalize(float *x, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    for (int64_t i = 0; i < n && squares > 0; i++)
        x[i] = (float)((double)x[i] / sqrt(squares));
}

/* Called between two passes: runs the batch for other requests, and notices clients that have left. */
static bool on_pass(void *user, const char *what, uint64_t done, uint64_t total) {
    job *j = user;
    (void)what;
    if (done < total)
        server_turn(j->s);
    pthread_mutex_lock(&j->s->lock);
    const bool wanted = j->at != NULL;
    pthread_mutex_unlock(&j->s->lock);
    return wanted;
}

/* Opens a session. Under a cap this succeeds only if the engine has reserved memory for it. */
static nib_status open_session(nib_engine *e, nib_session **out, nib_error *err) {
    const nib_status status = nib_session_open(e, NULL, out, err);
    if (status != NIB_E_NOFIT)
        return status;
    snprintf(err->message, sizeof err->message,
             "expected a server that was started with --embeddings, which reserves memory for them");
    return status;
}

nib_status embedding_compute(job *j, nib_error *err) {
    embedding *e = j->embedding;
    nib_session *session;
    nib_status status = NIB_OK;
    const double begun = time_now();
    NIB_TRY(open_session(j->model->engine, &session, err));
    for (size_t i = 0; i < e->n && status == NIB_OK; i++) {
        float *out = e->vectors + i * (size_t)e->width;
        status = nib_session_embed(session, e->texts[i].tokens, e->texts[i].n, j->s->options.pooling, out,
                                   on_pass, j, err);
        if (status == NIB_OK)
            normalize(out, e->width);
        if (status == NIB_OK && i + 1 < e->n)
            server_turn(j->s);
    }
    nib_session_close(session);
    j->answers[0].result.prompt_n = (int64_t)e->n_token;
    j->answers[0].result.prompt_s = time_now() - begun;
    return status;
}

/* ---- the answer ---- */

static void put_base64(buffer *out, const unsigned char *data, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const unsigned bits = (unsigned)data[i] << 16 | (i + 1 < n ? (unsigned)data[i + 1] << 8 : 0) |
                              (i + 2 < n ? (unsigned)data[i + 2] : 0);
        const char four[4] = {digits[bits >> 18], digits[bits >> 12 & 63],
                              i + 1 < n ? digits[bits >> 6 & 63] : '=', i + 2 < n ? digits[bits & 63] : '='};
        buffer_add(out, four, sizeof four);
    }
}

/* Nine digits represent a float exactly. */
static void put_numbers(buffer *out, const float *x, int64_t n) {
    char text[32];
    buffer_text(out, "[");
    for (int64_t i = 0; i < n; i++) {
        const int size = snprintf(text, sizeof text, i ? ",%.9g" : "%.9g", (double)x[i]);
        buffer_add(out, text, (size_t)size);
    }
    buffer_text(out, "]");
}

static void whole(job *j, buffer *out) {
    const embedding *e = j->embedding;
    char text[96];
    buffer_text(out, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < e->n; i++) {
        const float *x = e->vectors + i * (size_t)e->width;
        snprintf(text, sizeof text, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "",
                 i);
        buffer_text(out, text);
        if (e->base64) { /* little-endian floats, this machine's order */
            buffer_text(out, "\"");
            put_base64(out, (const unsigned char *)x, (size_t)e->width * sizeof *x);
            buffer_text(out, "\"");
        } else {
            put_numbers(out, x, e->width);
        }
        buffer_text(out, "}");
    }
    buffer_text(out, "],\"model\":");
    buffer_json(out, json_string(j->model->name));
    snprintf(text, sizeof text, ",\"usage\":{\"prompt_tokens\":%zu,\"total_tokens\":%zu}}", e->n_token,
             e->n_token);
    buffer_text(out, text);
}

/* Ollama's form: only numbers. */
static void ollama_whole(job *j, buffer *out) {
    const embedding *e = j->embedding;
    const double s = j->answers[0].result.prompt_s;
    char text[160];
    buffer_text(out, "{\"model\":");
    buffer_json(out, json_string(j->model->name));
    buffer_text(out, ",\"embeddings\":[");
    for (size_t i = 0; i < e->n; i++) {
        buffer_text(out, i ? "," : "");
        put_numbers(out, e->vectors + i * (size_t)e->width, e->width);
    }
    snprintf(text, sizeof text, "],\"total_duration\":%lld,\"load_duration\":0,\"prompt_eval_count\":%zu}",
             (long long)(s * 1e9), e->n_token);
    buffer_text(out, text);
}

/* The form of /api/embeddings: the vector of one text. */
static void ollama_whole_one(job *j, buffer *out) {
    const embedding *e = j->embedding;
    buffer_text(out, "{\"embedding\":");
    put_numbers(out, e->vectors, e->width);
    buffer_text(out, "}");
}

const dialect ollama_one_embedding = {.keep_alive = true, .whole = ollama_whole_one, .fault = ollama_refusal};
const dialect ollama_embedding = {.keep_alive = true, .whole = ollama_whole, .fault = ollama_refusal};
const dialect openai_embedding = {.whole = whole, .fault = fault_json};
