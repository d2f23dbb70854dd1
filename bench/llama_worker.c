/* llama_worker.c - measures llama.cpp on one model, in a process of its own: side_by_side.py and cgroup.py
 * run it beside nibble. Compiled by llama.py against the headers and libraries that the PyPI package
 * llama-cpp-python brings; never part of nibble. Prints one JSON line.
 *
 *   llama_worker MODEL pp|tg|start|batch -n N -t THREADS -r REPEATS -c CONTEXT -s SEQUENCES
 *
 * -k 0: no rearranged copies of the weights, which would not fit in a cgroup; they are read from the mapped
 * file.
 *
 * batch: SEQUENCES sequences with a prompt of N tokens each, then N tokens of each, all in one decode. The
 * rate is tokens a second of all sequences, as llama-batched-bench counts its S_TG. The next token is the
 * likeliest. Time counts from just before the model is opened; memory is the whole process's peak. */
#include <llama.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX = 4096 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static long long peak_bytes(void) {
    char line[256];
    long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmHWM: %lld", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib * 1024;
}

static void silent(enum ggml_log_level level, const char *text, void *user) {
    (void)user;
    if (level == GGML_LOG_LEVEL_ERROR)
        fputs(text, stderr);
}

static void decode(struct llama_context *ctx, llama_token *ids, int n) {
    if (llama_decode(ctx, llama_batch_get_one(ids, n)) || !llama_get_logits_ith(ctx, -1)) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double rate(struct llama_context *ctx, llama_token *ids, int n, int prompt) {
    llama_memory_clear(llama_get_memory(ctx), true);
    if (!prompt)
        decode(ctx, ids, 1);
    double start = now();
    if (prompt)
        decode(ctx, ids, n);
    for (int i = 1; !prompt && i <= n; i++)
        decode(ctx, ids + i, 1);
    return n / (now() - start);
}

static void decode_batch(struct llama_context *ctx, struct llama_batch *b) {
    if (llama_decode(ctx, *b)) {
        fprintf(stderr, "llama_decode failed\n");
        exit(1);
    }
}

static void add(struct llama_batch *b, llama_token id, int position, int sequence, int wants_logits) {
    const int i = b->n_tokens++;
    b->token[i] = id;
    b->pos[i] = position;
    b->n_seq_id[i] = 1;
    b->seq_id[i][0] = sequence;
    b->logits[i] = (int8_t)wants_logits;
}

static llama_token likeliest(struct llama_context *ctx, int row, long long n_vocab) {
    const float *logits = llama_get_logits_ith(ctx, row);
    long long best = 0;
    for (long long i = 1; i < n_vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (llama_token)best;
}

/* Prompts differ in every token and every run. */
static double batch_rate(struct llama_context *ctx, long long n_vocab, int n_seq, int n, int run) {
    struct llama_batch b = llama_batch_init(n_seq > n ? n_seq : n, 0, 1);
    static llama_token next[MAX];
    llama_memory_clear(llama_get_memory(ctx), true);
    for (int s = 0; s < n_seq; s++) {
        b.n_tokens = 0;
        for (int i = 0; i < n; i++)
            add(&b, (llama_token)(((i + 1) * 2654435761LL + (run * 1000 + s) * 40503LL) % n_vocab), i, s,
                i == n - 1);
        decode_batch(ctx, &b);
        next[s] = likeliest(ctx, -1, n_vocab);
    }
    const double start = now();
    for (int i = 0; i < n; i++) {
        b.n_tokens = 0;
        for (int s = 0; s < n_seq; s++)
            add(&b, next[s], n + i, s, 1);
        decode_batch(ctx, &b);
        for (int s = 0; s < n_seq; s++)
            next[s] = likeliest(ctx, s, n_vocab);
    }
    const double seconds = now() - start;
    llama_batch_free(b);
    return (double)n_seq * n / seconds;
}

int main(int argc, char **argv) {
    int n = 512, threads = 2, repeats = 3, n_ctx = 0, n_seq = 1, copies = 1;
    for (int i = 3; i + 1 < argc; i += 2) {
        int *to = !strcmp(argv[i], "-n")   ? &n
                  : !strcmp(argv[i], "-t") ? &threads
                  : !strcmp(argv[i], "-r") ? &repeats
                  : !strcmp(argv[i], "-c") ? &n_ctx
                  : !strcmp(argv[i], "-s") ? &n_seq
                  : !strcmp(argv[i], "-k") ? &copies
                                           : NULL;
        if (!to || (*to = atoi(argv[i + 1])) < 0)
            argc = 0;
    }
    if (argc < 3 || n < 1 || n >= MAX || repeats >= MAX || n_seq < 1 || n_seq > 256) {
        fprintf(stderr,
                "usage: llama_worker MODEL pp|tg|start|batch [-n N] [-t THREADS] [-r REPEATS] [-c CONTEXT] "
                "[-s SEQUENCES] [-k 0]\n");
        return 2;
    }
    llama_log_set(silent, NULL);
    llama_backend_init();
    double begin = now();
    struct llama_model_params how = llama_model_default_params();
    how.use_extra_bufts = copies != 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], how);
    if (!model)
        return 1;
    struct llama_context_params params = llama_context_default_params();
    const int batch = !strcmp(argv[2], "batch");
    params.n_ctx = (uint32_t)(n_ctx ? n_ctx : batch ? n_seq * (2 * n + 16) : n + 16);
    params.n_seq_max = (uint32_t)n_seq;
    params.kv_unified = true;
    params.n_batch = (uint32_t)(n > 512 ? n : 512);
    params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = threads;
    struct llama_context *ctx = llama_init_from_model(model, params);
    if (!ctx)
        return 1;
    static llama_token ids[MAX];
    static double rates[MAX];
    const long long n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (long long i = 0; i < MAX; i++)
        ids[i] = (llama_token)((i + 1) % n_vocab); /* as nibble bench: routers have a memory along them */
    if (!strcmp(argv[2], "start")) {
        decode(ctx, ids, 16);
        double first = now() - begin;
        decode(ctx, ids + 16, 1);
        printf("{\"start_s\": %.6f, \"rss\": %lld}\n", first, peak_bytes());
        return 0;
    }
    const int prompt = !strcmp(argv[2], "pp");
    for (int i = repeats > 1 ? -1 : 0; i < repeats; i++) { /* the first one warms up */
        const double r = batch ? batch_rate(ctx, n_vocab, n_seq, n, i + 2) : rate(ctx, ids, n, prompt);
        if (i >= 0)
            rates[i] = r;
    }
    qsort(rates, (size_t)repeats, sizeof *rates, by_size);
    printf("{\"tok_s\": %.4f, \"min\": %.4f, \"max\": %.4f, \"rss\": %lld}\n", rates[repeats / 2], rates[0],
           rates[repeats - 1], peak_bytes());
    return 0;
}
