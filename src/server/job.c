/* job.c - converts a checked call to requests of the batch, and pieces of answers to bytes to send. */
#include "server/job.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/seed.h"
#include "base/thread.h"
#include "server/embed.h"
#include "server/ollama.h"
#include "server/prompts.h"
#include "server/tools.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define PIECE_S 0.016 /* minimum seconds between two pieces of a stream: about one frame of a screen */

/* ---- one job ---- */

static void job_free(job *j) {
    pthread_mutex_lock(&j->s->lock);
    j->s->n_embedding -= j->counted;
    j->s->n_text -= j->n_text;
    j->s->n_value -= j->n_value;
    pthread_mutex_unlock(&j->s->lock);
    if (j->model)
        model_release(j->model);
    for (size_t i = 0; i < j->n_answer; i++) {
        buffer_clear(&j->answers[i].text);
        mem_free(j->answers[i].likely);
        if (j->answers[i].parser)
            answer_parser_clear(j->answers[i].parser);
        mem_free(j->answers[i].parser);
        nib_result_clear(&j->answers[i].result);
    }
    mem_free(j->answers);
    embedding_free(j->embedding);
    json_decref(j->items);
    buffer_clear(&j->said);
    buffer_clear(&j->out);
    call_clear(&j->call);
    mem_free(j);
}

void job_release(job *j) {
    if (atomic_fetch_sub(&j->refs, 1) == 1)
        job_free(j);
}

static job *job_new(exchange *x, call *c, const dialect *how, size_t n_prompt) {
    job *j = mem_calloc(1, sizeof *j);
    if (!j) {
        call_clear(c);
        return NULL;
    }
    j->s = x->s;
    j->model = x->model;
    model_hold(j->model);
    j->how = how;
    j->client = x->client;
    j->call = *c;
    j->call.n_top = (int32_t)NUM_MIN((int64_t)c->n_top, nib_engine_info(x->model->engine)->n_vocab);
    j->open = NO_ITEM;
    j->created = (int64_t)time(NULL);
    j->n_answer = n_prompt * (size_t)c->n;
    j->answers = mem_calloc(j->n_answer, sizeof *j->answers);
    j->written_at = time_now();
    atomic_init(&j->refs, 1);
    snprintf(j->id, sizeof j->id, "%016llx%08llx", (unsigned long long)seed_secret(),
             (unsigned long long)(seed_secret() & 0xffffffff));
    for (size_t i = 0; j->answers && i < j->n_answer; i++) {
        j->answers[i].of = j;
        j->answers[i].index = i;
    }
    if (j->answers)
        return j;
    j->n_answer = 0;
    job_free(j);
    return NULL;
}

void job_call_id(const answer *a, const answer_part *p, char out[16]) {
    snprintf(out, 16, "%.5s%02zx%02x", a->of->id, a->index & 0xff, (unsigned)p->index & 0xff);
}

size_t job_cached(const job *j) {
    size_t n = 0;
    for (size_t i = 0; i < j->n_answer; i += (size_t)j->call.n) {
        const answer *a = &j->answers[i];
        const size_t n_computed = (size_t)a->result.prompt_n; /* 0: not even its last token was needed */
        n += a->done && n_computed > 0 && n_computed < a->n_prompt ? a->n_prompt - n_computed : 0;
    }
    return n;
}

size_t job_made(const job *j) {
    size_t n = 0;
    for (size_t i = 0; i < j->n_answer; i++)
        n += atomic_load(&j->answers[i].n_made);
    return n;
}

size_t job_predicted(const job *j) {
    size_t n = 0;
    for (size_t i = 0; i < j->n_answer; i++)
        n += j->answers[i].result.n_token;
    return n;
}

/* ---- adding to the batch ---- */

/* Bounds the memory of log-probabilities, whose JSON takes far more than the text, before the answer begins.
 */
static bool check_logprobs(const job *j, const call_tokens *prompts, size_t n, fault *why) {
    enum { CANDIDATE = 640 }; /* bytes of a candidate, as a JSON value and as text */
    const call *c = &j->call;
    char need[32], have[32];
    double tokens = 0;
    for (size_t i = 0; i < n; i++) {
        const double left = (double)nib_engine_info(j->model->engine)->n_ctx - (double)prompts[i].n + 1;
        tokens += c->max_tokens < 0 ? left : NUM_MIN((double)c->max_tokens, left);
        tokens += c->echo ? (double)prompts[i].n : 0;
    }
    const double bytes = tokens * c->n * (1 + c->n_top) * CANDIDATE;
    const uint64_t max = LOGPROBS_SHARE(j->s->options.request_bytes);
    if (!c->logprobs || bytes <= (double)max)
        return true;
    return fault_field(why, "logprobs",
                       "they may take %s here, and %s is reserved for them: request less with max_tokens",
                       num_format_size((uint64_t)bytes, need), num_format_size(max, have));
}

/* Whether a piece of the stream may wait for more text. With a single answer on a fast machine, a piece for
 * every token would take time from computing, and nobody reads that fast. The first text never waits. */
static bool can_wait(const job *j) {
    return j->has_text && j->s->n_answer == j->n_left && time_now() - j->written_at < PIECE_S;
}

/* ---- text that clients do not read ---- */

uint64_t job_buffered(const job *j) {
    uint64_t n = j->out.cap + j->said.cap;
    for (size_t i = 0; i < j->n_answer; i++)
        n += j->answers[i].text.cap;
    return n;
}

void job_charge(job *j) {
    uint64_t n = job_buffered(j) + (uint64_t)NUM_MAX(j->n_kept, 0);
    for (size_t i = 0; i < j->n_answer; i++)
        n += j->answers[i].cap_likely * sizeof *j->answers[i].likely;
    j->s->n_text += n - j->n_text;
    j->n_text = n;
}

/* Guarded. Nothing more is kept of the answer's tokens. */
static void drop_candidates(answer *a) {
    mem_free(a->likely);
    a->likely = NULL;
    a->n_likely = a->cap_likely = a->n_likely_written = 0;
    a->no_memory = true;
}

/* Guarded. Frees what was not read: the client gets an error, and nothing more is computed for it. */
static void drop_text(job *j) {
    exchange_resume(j->at);
    job_cancel(j);
    buffer_clear(&j->out);
    buffer_clear(&j->said);
    for (size_t i = 0; i < j->n_answer; i++) {
        buffer_clear(&j->answers[i].text);
        drop_candidates(&j->answers[i]);
    }
    json_decref(j->items);
    j->items = NULL;
    j->n_kept = 0;
    j->out.no_memory = true;
    job_charge(j);
}

/* Guarded. The streams that are computed and have the most unread text end, until the others fit. */
static void drop_most(server *s) {
    while (s->n_text > s->options.request_bytes / SHARE_TEXTS) {
        job *most = NULL;
        for (job *j = s->jobs; j; j = j->next)
            if (j->at && j->n_text > (most ? most->n_text : 0))
                most = j;
        if (!most)
            return;
        drop_text(most);
    }
}

static bool on_text(void *user, const char *text, size_t n_byte) {
    answer *a = user;
    job *j = a->of;
    pthread_mutex_lock(&j->s->lock);
    if (j->at && j->call.stream) {
        buffer_add(&a->text, text, n_byte);
        j->held = can_wait(j);
        if (!j->held)
            exchange_resume(j->at);
        job_charge(j);
        drop_most(j->s);
    }
    pthread_mutex_unlock(&j->s->lock);
    return true;
}

static bool on_token(void *user, int32_t token) {
    answer *a = user;
    (void)token;
    atomic_fetch_add(&a->n_made, 1);
    return true;
}

/* Guarded. */
static void keep_candidates(answer *a, nib_candidate drawn, const nib_candidate *top, int32_t n_top) {
    const size_t wide = 1 + (size_t)n_top;
    a->no_memory =
        a->no_memory || mem_grow((void **)&a->likely, &a->cap_likely, (a->n_likely + 1) * wide, sizeof drawn);
    if (!a->no_memory) {
        a->likely[a->n_likely * wide] = drawn;
        if (n_top)
            memcpy(a->likely + a->n_likely * wide + 1, top, (size_t)n_top * sizeof *top);
        a->n_likely++;
    }
}

static void on_candidates(void *user, nib_candidate drawn, const nib_candidate *top, int32_t n_top) {
    answer *a = user;
    job *j = a->of;
    pthread_mutex_lock(&j->s->lock);
    keep_candidates(a, drawn, top, n_top);
    if (j->at && j->call.stream) {
        job_charge(j);
        drop_most(j->s);
    }
    pthread_mutex_unlock(&j->s->lock);
}

/* Guarded. With echo the log-probabilities begin with the prompt's first token, which has none. */
static void keep_first(answer *a, int32_t token) {
    const nib_candidate none[1 + NIB_MAX_TOP] = {{token, NAN}};
    keep_candidates(a, none[0], none + 1, a->of->call.n_top);
}

static nib_generate_options options_of(const job *j, answer *a, const call_tokens *p) {
    const call *c = &j->call;
    nib_generate_options o;
    nib_generate_options_init(&o);
    o.prompt = p->tokens;
    o.n_prompt = p->n;
    o.n_predict = c->max_tokens;
    o.n_min = c->min_tokens;
    o.ignore_eos = c->ignore_eos;
    o.stop = (const char *const *)c->stop;
    o.n_stop = c->n_stop;
    o.sampling = c->sampling;
    o.sampling.seed = c->has_seed ? (uint64_t)c->seed + a->index % (size_t)c->n : seed_secret();
    o.bias = c->bias;
    o.n_bias = c->n_bias;
    o.grammar = c->grammar;
    o.special = c->tools && j->model->tools != TOOLS_TAGGED; /* the tags of calls are control tokens */
    o.n_top = c->n_top;
    o.on_candidates = c->logprobs ? on_candidates : NULL;
    o.end_candidates = c->echo; /* evaluators count the tokens after the prompt */
    o.on_prompt_candidates = c->echo ? o.on_candidates : NULL;
    o.on_text = on_text;
    o.on_token = on_token;
    o.client = j->client;
    o.user = a;
    return o;
}

/* Called with the lock held, so that the batch's result is not looked up before its number is stored. */
static bool add_answers(job *j, size_t index, const call_tokens *p, fault *why) {
    nib_error err;
    j->n_prompt += p->n;
    for (size_t i = 0; i < (size_t)j->call.n; i++) {
        answer *a = &j->answers[index * (size_t)j->call.n + i];
        const nib_generate_options o = options_of(j, a, p);
        a->n_prompt = p->n;
        if (o.on_prompt_candidates)
            keep_first(a, p->tokens[0]);
        if (nib_batch_add(j->model->batch, &o, &a->id, &err))
            return fault_engine(why, &err);
        j->n_left++;
    }
    return true;
}

static bool queue_has_place(const server *s, size_t n, fault *why) {
    if (s->n_answer + n <= (size_t)(s->n_sequence + s->options.n_queue))
        return true;
    fault_set(why, 429, "queue_full", "%zu answers are running or waiting, the maximum is %d: try again",
              s->n_answer, s->n_sequence + s->options.n_queue);
    why->retry_s = 1;
    return false;
}

/* Guarded. Streams that ended keep their text until it is read: half of the share is for those that run. */
static bool texts_have_place(const server *s, const job *j, fault *why) {
    if (!j->call.stream || s->n_text <= s->options.request_bytes / SHARE_TEXTS / 2)
        return true;
    why->retry_s = 1;
    return fault_set(why, 503, "out_of_memory",
                     "the memory for text that clients have not read is used up: try again");
}

/* Sets up the parsers that separate reasoning and calls from the text in chats. */
static bool take_apart(job *j, const call_tokens *p, fault *why) {
    const tool_style tools = j->call.tools ? j->model->tools : TOOLS_NONE;
    const bool calls = j->call.choice != TOOLS_AUTO;
    const bool apart = j->call.kind == CALL_CHAT && j->how != &ollama_generate && !j->call.whole_speech;
    for (size_t i = 0; i < j->n_answer && apart; i++) {
        answer_parser *parser = j->answers[i].parser = mem_calloc(1, sizeof *parser);
        if (!parser)
            return fault_set(why, 503, NULL, "out of memory");
        answer_parser_init(parser, tools, p->thinks, calls);
    }
    return true;
}

/* Called with the lock held. Adds the job to the list of jobs that are being computed. */
static void enlist(job *j) {
    for (job *other = j->s->jobs; other;
         other = other->next) /* send held pieces now, because the next step may be long */
        if (other->held)
            exchange_resume(other->at);
    server *s = j->s;
    atomic_fetch_add(&j->refs, 1);
    j->next = s->jobs;
    s->jobs = j;
    s->n_answer += j->n_left;
    s->counts.n_request++;
}

/* Adds all answers of a job, or none. */
static bool add_all(job *j, const call_tokens *prompts, size_t n, fault *why) {
    server *s = j->s;
    pthread_mutex_lock(&s->lock);
    bool added = queue_has_place(s, j->n_answer, why) && texts_have_place(s, j, why);
    for (size_t i = 0; i < n && added; i++)
        added = add_answers(j, i, &prompts[i], why);
    if (j->n_left > 0) { /* also if a later one failed */
        enlist(j);
    }
    if (!added)
        job_cancel(j);
    pthread_mutex_unlock(&s->lock);
    server_wake(s);
    return added;
}

bool job_begin_embedding(exchange *x, embedding *e, fault *why) {
    server *s = x->s;
    call none = {.n = 1, .max_tokens = -1};
    job *j = job_new(x, &none, x->route->how, 1);
    if (!j) {
        embedding_free(e);
        return fault_set(why, 503, NULL, "out of memory");
    }
    j->embedding = e;
    j->n_prompt = j->answers[0].n_prompt = e->n_token;
    pthread_mutex_lock(&s->lock);
    bool good = queue_has_place(s, 1, why);
    if (good && s->n_embedding + e->bytes > LOGPROBS_SHARE(s->options.request_bytes)) {
        why->retry_s = 1;
        good = fault_set(why, 429, "queue_full", "the memory for waiting embeddings is used up: try again");
    }
    if (good) {
        s->n_embedding += j->counted = e->bytes;
        j->at = x;
        j->n_left = 1;
        enlist(j);
    }
    pthread_mutex_unlock(&s->lock);
    server_wake(s);
    if (good)
        x->job = j;
    else
        job_release(j);
    return good;
}

bool job_begin(exchange *x, call *c, const dialect *how, fault *why) {
    const size_t n = prompts_count(c);
    job *j = job_new(x, c, how, n);
    call_tokens *prompts = mem_calloc(n, sizeof *prompts);
    bool good = j && prompts;
    if (!good)
        fault_set(why, 503, NULL, "out of memory");
    good = good && tools_resolve(x->model, &j->call, why);
    for (size_t i = 0; i < n && good; i++)
        good = prompt_make(x->model, &j->call, i, &prompts[i], why);
    good = good && take_apart(j, prompts, why);
    good = good && check_logprobs(j, prompts, n, why);
    if (good)
        j->at = x;
    good = good && add_all(j, prompts, n, why);
    for (size_t i = 0; prompts && i < n; i++)
        nib_free(prompts[i].tokens);
    mem_free(prompts);
    if (j)
        call_reduce(&j->call);
    if (good)
        x->job = j;
    else if (j)
        job_release(j);
    return good;
}

void job_begin_parsed(exchange *x, call *c, bool parsed) {
    if (parsed)
        job_begin(x, c, x->route->how, &x->why);
    else
        call_clear(c);
}

void job_cancel(job *j) {
    j->at = NULL;
    for (size_t i = 0; i < j->n_answer; i++)
        if (j->answers[i].id && !j->answers[i].done)
            nib_batch_cancel(j->model->batch, j->answers[i].id);
    server_wake(j->s);
}

/* ---- sending ---- */

void job_write(job *j) {
    if (j->ended)
        return;
    if (!j->begun)
        j->how->begin(j, &j->out);
    j->begun = true;
    for (size_t i = 0; i < j->n_answer && !j->why.status; i++) {
        answer *a = &j->answers[i];
        if (a->text.n > 0) {
            j->how->piece(j, a, a->text.data, a->text.n, &j->out);
            j->has_text = true;
            a->n_likely_written = a->n_likely;
        }
        j->out.no_memory = j->out.no_memory || a->text.no_memory || a->no_memory;
        buffer_clear(&a->text);
        if (a->done && !a->closed)
            j->how->close(j, a, &j->out);
        a->closed = a->done;
    }
    j->written_at = time_now();
    j->held = false;
    if (j->n_left > 0)
        return;
    if (j->why.status)
        j->how->fail(j, &j->why, &j->out);
    else
        j->how->end(j, &j->out);
    j->ended = true;
}
