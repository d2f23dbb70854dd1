/* bench_prefix.c - a prompt whose KV pages have left the device: computed again, copied back from RAM, or
 * read from disk.
 *
 *     build/bench/bench_prefix MODEL [BACKEND [LENGTH [PROMPTS [FOLDER [VRAM]]]]]
 *
 * BACKEND is cpu, cuda or auto. A batch with memory for one sequence answers PROMPTS (4) different prompts of
 * LENGTH (2048) tokens twice, 4 tokens each. Each row is the median time of a prompt of the second turn, to
 * the end of its answer: without any cache, with a cache in RAM, and with one in FOLDER (a new one in /tmp),
 * which another engine has filled. VRAM is a cap in MiB. The answers are compared. */
#include "base/num.h"
#include "base/thread.h"
#include "nib_batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ANSWER = 4, MAX_PROMPT = 64 };

typedef struct bench {
    const char *path, *backend;
    int64_t length;
    uint64_t vram;
    int n_prompt;
    int32_t *tokens;                    /* [length] */
    int32_t want[MAX_PROMPT][N_ANSWER]; /* the answers without a cache */
    bool known;
} bench;

static void die(const char *what) {
    fprintf(stderr, "bench_prefix: %s\n", what);
    exit(1);
}

static nib_engine *open_engine(const bench *b) {
    nib_engine_options o;
    nib_engine *e;
    nib_error err;
    nib_engine_options_init(&o);
    o.backend = b->backend;
    o.vram = b->vram;
    o.n_ctx = b->length + N_ANSWER;
    o.kv_type = NIB_KV_F16;
    if (nib_engine_open(b->path, &o, &e, &err))
        die(err.message);
    return e;
}

/* Answers prompt i; returns the seconds. */
static double answer(bench *b, nib_engine *e, nib_batch *batch, int i, int64_t *n_computed) {
    nib_generate_options o;
    nib_result r;
    nib_error err;
    int64_t id;
    int32_t n_left = 1;
    const int64_t n_vocab = nib_engine_info(e)->n_vocab;
    for (int64_t t = 0; t < b->length; t++)
        b->tokens[t] = (int32_t)(((t + 1) * 7919 + i * 104729) % n_vocab);
    nib_generate_options_init(&o);
    o.prompt = b->tokens;
    o.n_prompt = (size_t)b->length;
    o.n_predict = N_ANSWER;
    o.ignore_eos = true;
    o.sampling.temperature = 0;
    const double begun = time_now();
    if (nib_batch_add(batch, &o, &id, &err))
        die(err.message);
    while (n_left > 0)
        if (nib_batch_step(batch, &n_left, &err))
            die(err.message);
    const double seconds = time_now() - begun;
    if (!nib_batch_take(batch, &id, &r, &err) || err.status != NIB_OK)
        die(err.message);
    if (b->known && memcmp(b->want[i], r.tokens, sizeof b->want[i]) != 0)
        die("an answer changed");
    memcpy(b->want[i], r.tokens, sizeof b->want[i]);
    *n_computed = r.prompt_n;
    nib_result_clear(&r);
    return seconds;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Answers all prompts, and prints the median if `name` is given. */
static void turn(bench *b, nib_engine *e, nib_batch *batch, const char *name) {
    double seconds[MAX_PROMPT];
    int64_t n_computed = 0;
    for (int i = 0; i < b->n_prompt; i++)
        seconds[i] = answer(b, e, batch, i, &n_computed);
    b->known = true;
    qsort(seconds, (size_t)b->n_prompt, sizeof *seconds, by_value);
    if (name)
        printf("%s\t%.1f ms\t%lld of %lld rows computed\n", name, seconds[b->n_prompt / 2] * 1e3,
               (long long)n_computed, (long long)b->length);
}

/* Two turns; with a folder each in an engine of its own. */
static void measure(bench *b, const char *name, const nib_batch_options *o) {
    nib_engine *e = open_engine(b);
    nib_batch *batch;
    nib_error err;
    if (nib_batch_open(e, o, &batch, &err))
        die(err.message);
    turn(b, e, batch, NULL);
    if (o->prefix_cache) {
        nib_batch_close(batch); /* writes the rest */
        nib_engine_close(e);
        e = open_engine(b);
        if (nib_batch_open(e, o, &batch, &err))
            die(err.message);
    }
    turn(b, e, batch, name);
    nib_batch_counts c;
    nib_batch_count(batch, &c);
    printf("  %.0f MiB of RAM for pages, %.0f MiB on disk, %llu pages saved, %llu restored, %llu read, %llu "
           "not written\n",
           (double)c.ram_bytes / (1 << 20), (double)c.disk_bytes / (1 << 20), (unsigned long long)c.ram_saved,
           (unsigned long long)c.ram_restored, (unsigned long long)c.disk_read,
           (unsigned long long)c.disk_missed);
    nib_batch_close(batch);
    nib_engine_close(e);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/nibble-prefix-XXXXXX", command[64];
    if (argc < 2)
        die("usage: bench_prefix MODEL [BACKEND [LENGTH [PROMPTS [FOLDER [VRAM]]]]]");
    bench b = {.path = argv[1],
               .backend = argc > 2 ? argv[2] : NULL,
               .length = argc > 3 ? atoll(argv[3]) : 2048,
               .vram = argc > 6 ? strtoull(argv[6], NULL, 10) << 20 : NIB_AUTO,
               .n_prompt = argc > 4 ? atoi(argv[4]) : 4};
    if (b.length < 2 || b.n_prompt < 1 || b.n_prompt > MAX_PROMPT)
        die("expected a length of 2 or more, and 1 to 64 prompts");
    b.tokens = calloc((size_t)b.length, sizeof *b.tokens);
    const char *at = argc > 5 ? argv[5] : mkdtemp(folder);
    if (!b.tokens || !at)
        die("out of memory, or no folder");
    const uint64_t ram = UINT64_C(8) << 30;
    nib_batch_options o = {.n_sequence = 1, .n_position = b.length + N_ANSWER};
    measure(&b, "computed again", &o);
    o.cache_ram = ram;
    measure(&b, "kept in RAM", &o);
    o.cache_ram = 0;
    o.prefix_cache = at;
    o.prefix_bytes = ram;
    measure(&b, "read from disk", &o);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    if (at == folder && system(command))
        die("the folder cannot be removed");
    free(b.tokens);
    return 0;
}
