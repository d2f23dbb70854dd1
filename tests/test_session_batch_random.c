/* Random batches: models, caches, contexts, pages, drafts, a folder of prefixes, clients, stop strings,
 * grammars, penalties, cancels by another thread, requests that cannot fit, a ledger that is almost full, and
 * failed allocations and reads, passes that are on their way at the same time, as with ranks. Every request
 * ends; one that was not cut off has the tokens that it has alone; ledger and pages return to what they were;
 * nothing hangs.
 *
 * A round follows from its seed, except for the times of cancels. NIBBLE_RANDOM_SECONDS sets how long the
 * test goes on after the fixed seeds, NIBBLE_RANDOM_SEED the seed it begins with. */
#include "base/mem.h"
#include "base/num.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "session/batch_parts.h"
#include "support/archs.h"
#include "support/engine.h"
#include "support/matrix.h"
#include "support/sanitized.h"
#include "support/tempdir.h"
#include "support/tinymodel.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MAX_CTX = 260, MAX_WORK = 14, MAX_ARCH = 64, N_VOCAB = 401, N_SEED = SANITIZED ? 12 : 64 };
enum { WATCH_SECONDS = 120 * (SANITIZED ? 8 : 1), MAX_STEPS = 20000 };

typedef struct work {
    int32_t prompt[MAX_CTX + 1];
    nib_generate_options o;
    nib_result want; /* alone */
    int64_t id;      /* 0: refused */
    bool cancels, ended;
} work;

typedef struct world {
    uint64_t seed, state;
    nib_engine *e, *draft;
    nib_batch *b;
    work all[MAX_WORK];
    int n_work;
    int64_t n_vocab, n_ctx, n_position;
    bool words;                           /* the model has a tokenizer */
    bool faults;                          /* allocations or reads fail */
    step_links links;                     /* of ranks that are pretended, or zeroed */
    int n_begun, n_ended;                 /* parts of passes on the way to them, and back */
    bool capped;                          /* the engine has a RAM cap, and the ledger is almost full */
    atomic_bool stop;                     /* the other thread ends */
    atomic_int_fast64_t cancel[MAX_WORK]; /* numbers to cancel; 0: none */
} world;

/* What has happened in all rounds, so that a test that tries nothing is noticed. */
typedef struct tally {
    int n_round, n_ok, n_cancelled, n_nomem, n_nofit, n_refused, n_failed_step;
    int n_together; /* most parts of passes on their way */
    uint64_t paused, disk_read, restored, draft_n, draft_right;
} tally;
static tally seen;

static uint64_t below(world *w, uint64_t n) {
    return random_next(&w->state) % n;
}

static bool chance(world *w, uint64_t in) {
    return below(w, in) == 0;
}

/* ---- models ---- */

static char arch_paths[MAX_ARCH][256];
static int n_arch;

static void note_arch(void *user, const char *path, const char *name) {
    (void)user, (void)name;
    if (n_arch < MAX_ARCH && strlen(path) < sizeof arch_paths[0])
        snprintf(arch_paths[n_arch++], sizeof arch_paths[0], "%s", path);
}

static const char *any_model(world *w) {
    static const type_id types[] = {TYPE_Q4_0, TYPE_Q8_0, TYPE_F16, TYPE_Q4_1};
    const uint64_t kind = below(w, 3);
    w->words = kind > 0;
    if (!w->words)
        return arch_paths[below(w, (uint64_t)n_arch)];
    const tiny_shape shape = {types[below(w, NUM_COUNT(types))],
                              1 + (int64_t)below(w, 2),
                              64,
                              96,
                              4,
                              chance(w, 2) ? 2 : 4,
                              N_VOCAB,
                              MAX_CTX,
                              chance(w, 2)};
    return tiny_model_with_words("random.gguf", &shape);
}

static bool open_engines(world *w) {
    static const int kinds[] = {0, NIB_KV_F16, NIB_KV_F32, NIB_KV_8, NIB_KV_4, NIB_KV_4H, NIB_KV_4S};
    static const int64_t rows[] = {8, 16, 33, 64};
    static const tiny_shape guess = {TYPE_Q4_0, 1, 64, 96, 4, 2, N_VOCAB, MAX_CTX, true};
    nib_engine_options o = engine_usual();
    nib_error err = {0};
    const char *path = any_model(w);
    o.n_thread = 1 + (int)below(w, 2);
    o.n_batch = rows[below(w, NUM_COUNT(rows))];
    if (chance(w, 4))
        o.backend = "check"; /* whose pages leave it for RAM */
    o.n_logits = (int64_t)below(w, 4);
    o.n_ctx = w->n_ctx = w->words ? 65 + (int64_t)below(w, MAX_CTX - 65) : 24 + (int64_t)below(w, 9);
    o.kv_type = kinds[below(w, NUM_COUNT(kinds))];
    o.grammar = w->words;
    w->capped = chance(w, 4);
    if (w->capped) {
        o.ram = UINT64_C(4) << 30;
        o.n_session = 8;
    }
    if (nib_engine_open(path, &o, &w->e, &err) != NIB_OK) {
        assert_false(w->words); /* a fixture with a cache or context that it cannot have */
        assert_int_equal(err.status, NIB_E_USAGE);
        return false;
    }
    w->n_vocab = nib_engine_info(w->e)->n_vocab;
    if (w->words && chance(w, 3)) {
        o.n_session = 8;
        o.grammar = false;
        w->draft = engine_must_open(tiny_model_with_words("guess.gguf", &guess), &o, NULL);
    }
    return true;
}

/* ---- requests ---- */

static void make_prompt(world *w, work *k, size_t n) {
    const bool repeats = chance(w, 2);
    const uint64_t salt = chance(w, 2) ? 0 : below(w, 50); /* 0: a prefix in common */
    for (size_t i = 0; i < n; i++) {
        const uint64_t of = repeats ? i % 7 * 3 + salt : i * i + 7 * i + salt;
        k->prompt[i] = (int32_t)((w->words ? 40 + of % 340 : of) % (uint64_t)w->n_vocab);
    }
}

static void make(world *w, work *k) {
    static const char *const stops[] = {"a", "th"}, *const grammars[] = {
                                                        "root ::= (\"ab\" | \"abc\" | [0-9])+",
                                                        "root ::= [a-z] [a-z] [a-z] | \"12\"", "root ::= .*"};
    static const nib_logit_bias bias[] = {{5, 4}, {6, 3}, {5, 1}};
    nib_generate_options *o = &k->o;
    memset(k, 0, sizeof *k);
    nib_generate_options_init(o);
    o->n_prompt = (size_t)(chance(w, 12) ? w->n_ctx + 1 : 1 + (int64_t)below(w, (uint64_t)w->n_ctx));
    if (chance(w, 3)) /* shorter */
        o->n_prompt = 1 + o->n_prompt / 3;
    make_prompt(w, k, o->n_prompt);
    o->prompt = k->prompt;
    o->n_predict = chance(w, 6) ? -1 : (int64_t)below(w, chance(w, 3) ? 120 : 30);
    o->ignore_eos = !chance(w, 4);
    o->client = below(w, 4);
    o->sampling.temperature = chance(w, 2) ? 0 : 0.5F;
    o->sampling.top_k = chance(w, 3) ? 0 : 40;
    o->sampling.repeat_penalty = chance(w, 4) ? 1.2F : 1;
    o->sampling.seed = below(w, 1000);
    o->bias = bias;
    o->n_bias = chance(w, 5) ? NUM_COUNT(bias) : 0;
    if (w->words && chance(w, 3)) {
        o->stop = stops;
        o->n_stop = NUM_COUNT(stops);
    }
    if (w->words && chance(w, 3))
        o->grammar = grammars[below(w, NUM_COUNT(grammars))];
    k->cancels = chance(w, 6);
}

/* The answer in a session. A request that a session refuses, the batch refuses too. */
static nib_status answer_alone(world *w, work *k) {
    nib_error err = {0};
    nib_session *s = session_must_open(w->e);
    const nib_status status = nib_generate(s, &k->o, &k->want, &err);
    if (status != NIB_OK)
        assert_int_equal(status, NIB_E_USAGE);
    nib_session_close(s);
    return status;
}

/* ---- ranks ---- */

static nib_status send(void *user, const struct pass *p, backend *by, nib_error *err) {
    world *w = user;
    (void)by, (void)err;
    assert_int_equal(p->number, ++w->n_begun);
    seen.n_together = NUM_MAX(seen.n_together, w->n_begun - w->n_ended);
    return NIB_OK;
}

/* The pass has given its results already, as this process has all blocks. */
static nib_status take_results(void *user, const struct pass *p, int64_t number, int64_t row,
                               nib_error *err) {
    world *w = user;
    (void)row;
    w->n_ended++;
    assert_true(number <= w->n_begun);
    return w->faults && p && chance(w, 30) ? nib_fail(err, NIB_E_IO, "a rank has failed") : NIB_OK;
}

static void pretend_ranks(world *w) {
    const engine_parts on = engine_parts_of(w->e);
    if (chance(w, 2))
        return;
    w->links = (step_links){.end = model_n_block(on.m),
                            .n_pass = 1 + (int)below(w, 4),
                            .send = send,
                            .results = take_results,
                            .user = w};
    if (on.step->backend->device == device_host())
        w->links.n_part = chance(w, 2) ? on.step->backend->rows.n_cell : 0;
    on.step->links = &w->links;
}

/* ---- the batch ---- */

static void open_batch(world *w, const char *folder) {
    const int64_t pages = NUM_MAX((w->n_ctx + 63) / 64, 1);
    nib_batch_options o = {.n_sequence = 1 + (int32_t)below(w, 6),
                           .n_prompt = chance(w, 2) ? 0 : 1 + (int64_t)below(w, 8),
                           .optimistic = chance(w, 2),
                           .prompts_first = chance(w, 3),
                           .latency_s = chance(w, 4) ? 1e-4 : 0};
    if (!chance(w, 3))
        o.n_position = 64 * (pages + (int64_t)below(w, 2));
    if (chance(w, 10))
        o.n_position = 64; /* long requests cannot fit */
    if (!chance(w, 3))
        o.prefix_cache = folder;
    if (chance(w, 2))
        o.cache_ram = below(w, UINT64_C(2) << 20);
    if (w->draft || chance(w, 3)) {
        o.n_draft = 1 + (int32_t)below(w, 6);
        o.n_draft_min = chance(w, 2) ? o.n_draft : 0;
        o.draft = w->draft;
    }
    w->n_position = o.n_position ? o.n_position : 64 * pages * o.n_sequence;
    w->b = batch_must_open(w->e, &o);
}

static void add(world *w, work *k, int i, nib_status alone) {
    nib_error err = {0};
    const nib_status status = nib_batch_add(w->b, &k->o, &k->id, &err);
    if (alone != NIB_OK || status != NIB_OK) {
        k->id = 0;
        seen.n_refused++;
        assert_int_equal(status, NIB_E_USAGE); /* memory does not fail here */
        assert_true(alone != NIB_OK || (int64_t)k->o.n_prompt + 120 > w->n_position || k->o.n_predict < 0);
    } else if (k->cancels)
        atomic_store(&w->cancel[i], k->id);
}

static void *cancel_some(void *user) {
    world *w = user;
    uint64_t state = w->seed * 2 + 1;
    while (!atomic_load(&w->stop)) {
        for (int i = 0; i < MAX_WORK; i++)
            if (atomic_load(&w->cancel[i]) && random_next(&state) % 4 == 0)
                nib_batch_cancel(w->b, atomic_exchange(&w->cancel[i], 0));
        usleep(200);
    }
    return NULL;
}

static void judge(world *w, int64_t id, const nib_result *r, const nib_error *how) {
    work *k = NULL;
    for (int i = 0; i < w->n_work; i++)
        if (w->all[i].id == id)
            k = &w->all[i];
    assert_non_null(k);
    assert_false(k->ended);
    k->ended = true;
    assert_true(r->n_token <= k->want.n_token);
    if (r->n_token > 0) /* without tokens there may be no array */
        assert_memory_equal(r->tokens, k->want.tokens, r->n_token * sizeof *r->tokens);
    seen.n_ok += how->status == NIB_OK;
    seen.n_cancelled += how->status == NIB_E_CANCELLED;
    seen.n_nomem += how->status == NIB_E_NOMEM;
    seen.n_nofit += how->status == NIB_E_NOFIT;
    if ((how->status == NIB_E_CANCELLED && k->cancels) || (how->status == NIB_E_NOMEM && w->faults) ||
        (how->status == NIB_E_NOFIT && w->capped))
        return;
    if (how->status != NIB_OK)
        fail_msg("request %lld: %s", (long long)id, how->message);
    assert_int_equal(r->n_token, k->want.n_token);
    assert_int_equal(r->finish, k->want.finish);
    if (r->text)
        assert_string_equal(r->text, k->want.text);
}

static void take_all(world *w) {
    nib_result r;
    nib_error how;
    for (int64_t id; nib_batch_take(w->b, &id, &r, &how); nib_result_clear(&r))
        judge(w, id, &r, &how);
}

/* Adds the requests during the steps, in which memory or a file may fail. */
static void run(world *w, const nib_status *alone) {
    pthread_t other;
    int n_added = 0, n_step = 0;
    int32_t n_left = 0;
    assert_int_equal(pthread_create(&other, NULL, cancel_some, w), 0);
    while (n_added < w->n_work || n_left > 0) {
        for (; n_added < w->n_work && (n_left == 0 || chance(w, 2)); n_added++)
            add(w, &w->all[n_added], n_added, alone[n_added]);
        nib_error err = {0};
        if (w->faults && chance(w, 2))
            fault_arm(chance(w, 2) ? FAULT_ALLOC : FAULT_READ, 1 + (int64_t)below(w, 12));
        const nib_status status = nib_batch_step(w->b, &n_left, &err);
        fault_arm(FAULT_ALLOC, 0);
        fault_arm(FAULT_READ, 0);
        if (status != NIB_OK) {
            if (!w->faults)
                fail_msg("a step: %s", err.message);
            seen.n_failed_step++;
            n_left = 1; /* it may be unset */
        }
        take_all(w);
        if (++n_step > MAX_STEPS)
            fail_msg("requests do not end");
    }
    atomic_store(&w->stop, true);
    pthread_join(other, NULL);
    for (int i = 0; i < w->n_work; i++)
        assert_true(w->all[i].id == 0 || w->all[i].ended);
}

/* Charges the ledger so that a few answers' memory for sampling is left; returns the bytes. */
static uint64_t fill_ledger(world *w) {
    ledger *l = engine_parts_of(w->e).ledger;
    nib_error err = {0};
    if (!w->capped)
        return 0;
    const uint64_t n = ledger_free(l, PLACE_RAM) - below(w, 16384);
    assert_int_equal(ledger_charge(l, PLACE_RAM, NIB_OWNER_ACTIVATIONS, n, &err), NIB_OK);
    return n;
}

/* Runs the requests; afterwards no page is in use, and the ledger has what it had, and the tier in RAM. */
static void run_batch(world *w, const nib_status *alone, const char *folder) {
    ledger *l = engine_parts_of(w->e).ledger;
    nib_batch_counts first, counts;
    pretend_ranks(w);
    open_batch(w, folder);
    nib_batch_count(w->b, &first);
    const uint64_t before = ledger_promised(l, PLACE_RAM), filled = fill_ledger(w);
    run(w, alone);
    ledger_release(l, PLACE_RAM, NIB_OWNER_ACTIVATIONS, filled);
    assert_int_equal(w->b->n_page_free, w->b->n_page);
    nib_batch_count(w->b, &counts);
    assert_int_equal(ledger_promised(l, PLACE_RAM), before + counts.ram_bytes - first.ram_bytes);
    nib_batch_close(w->b);
    assert_int_equal(w->n_begun, w->n_ended);
    seen.paused += counts.paused;
    seen.disk_read += counts.disk_read;
    seen.restored += counts.ram_restored;
    seen.draft_n += counts.draft_n;
    seen.draft_right += counts.draft_right;
}

static char hung_text[64]; /* names the current round */

/* The watchdog: a round takes too long. */
static void hung(int signal_number) {
    (void)signal_number;
    const ssize_t n = write(STDERR_FILENO, hung_text, strlen(hung_text));
    (void)n;
    abort();
}

static void round_of(uint64_t seed, const char *folder) {
    static world w;
    nib_status alone[MAX_WORK];
    memset(&w, 0, sizeof w);
    w.seed = seed;
    w.state = seed * UINT64_C(0x9E3779B97F4A7C15) | 1;
    snprintf(hung_text, sizeof hung_text, "seed %llu hangs\n", (unsigned long long)seed);
    alarm(WATCH_SECONDS);
    for (int i = 0; i < 4; i++)
        random_next(&w.state);
    if (!open_engines(&w))
        return;
    w.faults = chance(&w, 3);
    w.n_work = 1 + (int)below(&w, MAX_WORK);
    for (int i = 0; i < w.n_work; i++) {
        make(&w, &w.all[i]);
        alone[i] = answer_alone(&w, &w.all[i]);
    }
    run_batch(&w, alone, folder);
    seen.n_round++;
    for (int i = 0; i < w.n_work; i++)
        nib_result_clear(&w.all[i].want);
    nib_engine_close(w.draft);
    nib_engine_close(w.e);
}

/* Whether each kind of event has happened. */
static bool all_seen(void) {
    return seen.n_together > 3 && seen.n_refused > 0 && seen.paused > 0 && seen.disk_read > 0 &&
           seen.restored > 0 && seen.draft_right > 0;
}

static void random_rounds(void **state) {
    (void)state;
    const char *from = getenv("NIBBLE_RANDOM_SEED"), *seconds = getenv("NIBBLE_RANDOM_SECONDS");
    const uint64_t first = from ? strtoull(from, NULL, 10) : 1;
    const double end = time_now() + (seconds ? strtod(seconds, NULL) : 0);
    char folder[768];
    signal(SIGALRM, hung);
    snprintf(folder, sizeof folder, "%s", temp_path("prefixes"));
    archs_each("tests/data/arch", note_arch, NULL);
    uint64_t seed = first;
    /* What the threads of the disk do in time differs between runs. */
    for (; seed < first + N_SEED || (!SANITIZED && !all_seen() && seed < first + 8 * N_SEED) ||
           time_now() < end;
         seed++) {
        if (seconds)
            fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        round_of(seed, folder);
    }
    alarm(0);
    if (seconds)
        fprintf(
            stderr,
            "%d rounds: %d answers, %d cancelled, %d without memory, %d beyond the cap, %d refused; "
            "%d steps failed, %llu pauses, %llu pages read and %llu restored, %llu of %llu drafts right\n",
            seen.n_round, seen.n_ok, seen.n_cancelled, seen.n_nomem, seen.n_nofit, seen.n_refused,
            seen.n_failed_step, (unsigned long long)seen.paused, (unsigned long long)seen.disk_read,
            (unsigned long long)seen.restored, (unsigned long long)seen.draft_right,
            (unsigned long long)seen.draft_n);
    assert_true(seen.n_round > N_SEED / 2 && seen.n_ok > N_SEED);
    if (!SANITIZED)
        assert_true(all_seen());
}

/* ---- one failed answer ---- */

/* Runs three requests in which the nth allocation of the steps fails. Returns the number of allocations. */
static int64_t fail_nth(world *w, int64_t nth, int *n_failed) {
    nib_error err = {0};
    int32_t n_left = 1;
    w->b = batch_must_open(w->e, &(nib_batch_options){.n_sequence = 3});
    for (int i = 0; i < w->n_work; i++) {
        w->all[i].ended = false;
        add(w, &w->all[i], i, NIB_OK);
    }
    fault_arm(FAULT_ALLOC, nth);
    while (n_left > 0)
        if (nib_batch_step(w->b, &n_left, &err) != NIB_OK)
            fail_msg("allocation %lld: the step failed: %s", (long long)nth, err.message);
    const int64_t n_call = fault_count(FAULT_ALLOC);
    fault_arm(FAULT_ALLOC, 0);
    const int before = seen.n_nomem;
    take_all(w); /* the other answers are whole */
    *n_failed = seen.n_nomem - before;
    for (int i = 0; i < w->n_work; i++)
        assert_true(w->all[i].ended);
    nib_batch_close(w->b);
    return n_call;
}

static void a_failed_answer_ends_alone(void **state) {
    (void)state;
    static world w = {.state = 1};
    static const char *const grammars[] = {"root ::= ([a-z] | [0-9] [0-9])*", NULL,
                                           "root ::= \"x\"+ | [a-f]*"};
    static const tiny_shape shape = {TYPE_Q4_0, 1, 64, 96, 4, 2, N_VOCAB, MAX_CTX, true};
    nib_engine_options o = engine_usual();
    int n_failed, n_all = 0;
    o.grammar = true;
    o.n_ctx = 128;
    w.words = w.faults = true;
    w.n_vocab = N_VOCAB;
    w.n_ctx = o.n_ctx;
    w.n_position = 3 * o.n_ctx;
    w.n_work = 3;
    w.e = engine_must_open(tiny_model_with_words("alone.gguf", &shape), &o, NULL);
    for (int i = 0; i < w.n_work; i++) {
        work *k = &w.all[i];
        nib_generate_options_init(&k->o);
        make_prompt(&w, k, (size_t)(5 + i));
        k->o.prompt = k->prompt;
        k->o.n_prompt = (size_t)(5 + i);
        k->o.n_predict = 20;
        k->o.ignore_eos = true;
        k->o.grammar = grammars[i];
        assert_int_equal(answer_alone(&w, k), NIB_OK);
    }
    for (int64_t n = 1; n <= fail_nth(&w, n, &n_failed); n++) {
        assert_true(n_failed <= 1);
        n_all += n_failed;
    }
    assert_true(n_all > 3); /* while answers were generated too, not only when they began */
    for (int i = 0; i < w.n_work; i++)
        nib_result_clear(&w.all[i].want);
    nib_engine_close(w.e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_answer_ends_alone),
                                       cmocka_unit_test(random_rounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
