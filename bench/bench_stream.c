/* Streaming against the rates of the machine: bench_stream MODEL.gguf [rounds] [cap ...]. For each cap (a
 * share of the model's size such as 0.33, or bytes such as 400M; default 0.33 and 0.1), from the model's file
 * and from the packed one, rounds of: plain reads of as many bytes as some tokens stream (around the page
 * cache, 8 reads of 1 MiB in flight), and those tokens. A token takes at least the time of its bytes at that
 * rate, and at least its time with all weights in memory, which is measured first:
 *
 *     bound = min(disk rate / bytes streamed for a token, tokens a second with everything resident)
 *
 * Printed are medians, and the median over the rounds of measured / bound of the same round: a disk that
 * others use changes between rounds, less within one.
 *
 * A second bound ("read too") is for machines on which disk and processor share memory, caches and the host:
 * the same bytes are read by halves of a ring of 16 MiB, while one thread for each core reads the previous
 * half from memory once. The tokens' share of that rate is printed too. */
#include "quantile.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/read_queue.h"
#include "base/thread.h"
#include "hub/find.h"
#include "nib.h"
#include "base/rate.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, DEPTH = 8, MAX_ROUNDS = 50, N_RESIDENT = 32, N_CTX = 256 };
#define ROUND_BYTES (UINT64_C(1) << 30) /* that a round streams, about */

static const char *model;
static char folder[] = "/tmp/bench-stream-XXXXXX"; /* scratch */

/* Bytes a second of reading n_byte bytes of the file, from the end of the last call on, in a circle; 0: an
 * error. */
static double read_rate(const char *path, uint8_t *buffer, uint64_t n_byte) {
    static uint64_t at;
    file *f;
    read_queue *q;
    int idle[DEPTH], n_idle = DEPTH, tag = 0;
    if (file_open(path, FILE_DIRECT, &f, NULL))
        return 0;
    const uint64_t n_chunk = file_size(f) / CHUNK;
    if (n_chunk == 0 || read_queue_open(DEPTH, 0, buffer, (size_t)DEPTH * CHUNK, &q, NULL))
        return 0;
    for (int i = 0; i < DEPTH; i++)
        idle[i] = i;
    const double start = time_now();
    for (uint64_t sent = 0, done = 0; done < n_byte && tag >= 0;) {
        while (n_idle && sent < n_byte) {
            const int next = idle[--n_idle];
            const read_request what = {f, buffer + (size_t)next * CHUNK, at++ % n_chunk * CHUNK, CHUNK,
                                       CHUNK};
            read_queue_submit(q, next, &what);
            sent += CHUNK;
        }
        if (read_queue_wait(q, &tag, NULL))
            return 0;
        idle[n_idle++] = tag;
        done += CHUNK;
    }
    const double seconds = time_now() - start;
    read_queue_close(q);
    file_close(f);
    return (double)n_byte / seconds;
}

typedef struct half {
    const uint8_t *at;
    uint64_t sum[64]; /* of each thread */
} half;

static void read_half(void *arg, int thread, int n_thread) {
    half *h = arg;
    int64_t begin, end;
    pool_split(DEPTH * CHUNK, 4096, thread, n_thread, &begin, &end);
    h->sum[thread % 64] += rate_read(h->at + begin, (uint64_t)(end - begin), 3 /* prefetches nothing */);
}

/* The same by halves of a buffer of 2 * DEPTH * CHUNK. The pool's threads read one half while the other one
 * is being filled. */
static double read_too_rate(const char *path, uint8_t *buffer, uint64_t n_byte, pool *threads) {
    static uint64_t at;
    file *f;
    read_queue *q;
    half came = {0};
    int tag = 0;
    if (file_open(path, FILE_DIRECT, &f, NULL))
        return 0;
    const uint64_t n_chunk = file_size(f) / CHUNK, n_turn = n_byte / ((uint64_t)DEPTH * CHUNK) + 1;
    if (n_chunk == 0 || read_queue_open(DEPTH, 0, buffer, (size_t)2 * DEPTH * CHUNK, &q, NULL))
        return 0;
    const double start = time_now();
    for (uint64_t turn = 0; turn < n_turn; turn++) {
        uint8_t *to = buffer + (size_t)(turn % 2) * DEPTH * CHUNK;
        for (int i = 0; i < DEPTH; i++) {
            const read_request what = {f, to + (size_t)i * CHUNK, at++ % n_chunk * CHUNK, CHUNK, CHUNK};
            read_queue_submit(q, i, &what);
        }
        if (came.at)
            pool_run(threads, read_half, &came);
        for (int i = 0; i < DEPTH; i++)
            if (read_queue_wait(q, &tag, NULL) || tag < 0)
                return 0;
        came.at = to;
    }
    const double seconds = time_now() - start;
    read_queue_close(q);
    file_close(f);
    return (double)(n_turn * DEPTH * CHUNK) / seconds;
}

static nib_engine *open_engine(uint64_t cap, bool packed, nib_session **session) {
    nib_engine_options o;
    nib_engine *e;
    nib_error err;
    nib_engine_options_init(&o);
    o.n_ctx = N_CTX;
    o.ram = cap;
    o.stream = cap != NIB_AUTO;
    o.packed = packed ? NIB_PACKED_ON : NIB_PACKED_OFF;
    o.scratch = folder;
    if (nib_engine_open(model, &o, &e, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return NULL;
    }
    if (!nib_session_open(e, NULL, session, &err))
        return e;
    fprintf(stderr, "%s\n", err.message);
    nib_engine_close(e);
    return NULL;
}

/* Tokens a second of n after a prompt of one. */
static double token_rate(nib_session *s, int n) {
    int32_t tokens[N_CTX];
    nib_error err;
    for (int i = 0; i < N_CTX; i++)
        tokens[i] = i + 1;
    static int turn; /* a prefix that is not in the cache */
    tokens[0] = 1 + turn++ % 100;
    if (nib_session_sync(s, tokens, 1, &err))
        return 0;
    const double start = time_now();
    for (int i = 0; i < n; i++)
        if (nib_session_sync(s, tokens, (size_t)i + 2, &err))
            return 0;
    return n / (time_now() - start);
}

static double resident_rate(void) {
    nib_session *s;
    double values[5];
    nib_engine *e = open_engine(NIB_AUTO, true, &s);
    if (!e)
        return 0;
    for (int i = 0; i < 5; i++)
        values[i] = token_rate(s, N_RESIDENT);
    nib_session_close(s);
    nib_engine_close(e);
    return quantile(values, 5, 0.5);
}

static char *packed_path(void) {
    char *sub = path_join(folder, "packed"), *found = NULL;
    DIR *d = sub ? opendir(sub) : NULL;
    for (struct dirent *entry; d && !found && (entry = readdir(d));)
        if (strstr(entry->d_name, ".nibpack"))
            found = path_join(sub, entry->d_name);
    if (d)
        closedir(d);
    mem_free(sub);
    return found;
}

static int one_cap(const char *name, uint64_t cap, bool packed, const char *path, int rounds,
                   double resident) {
    nib_session *s;
    nib_traffic t;
    pool *threads = NULL;
    double disk[MAX_ROUNDS], too[MAX_ROUNDS], speed[MAX_ROUNDS], share[MAX_ROUNDS], of_too[MAX_ROUNDS];
    nib_engine *e = open_engine(cap, packed, &s);
    if (!e)
        return 1;
    nib_engine_traffic(e, &t);
    uint8_t *buffer = mem_map((size_t)2 * DEPTH * CHUNK);
    const bool ready = buffer && pool_open(thread_physical_cores(), &threads, NULL) == NIB_OK;
    const uint64_t each = NUM_MAX(t.pass, UINT64_C(1));
    const int n = (int)NUM_MIN(NUM_MAX(ROUND_BYTES / each, UINT64_C(2)), (uint64_t)N_CTX - 2);
    const uint64_t bytes = NUM_MAX(each * (uint64_t)n / CHUNK, UINT64_C(64)) * CHUNK;
    for (int r = 0; ready && r < rounds; r++) {
        disk[r] = read_rate(path, buffer, bytes);
        too[r] = read_too_rate(path, buffer, bytes, threads);
        speed[r] = token_rate(s, n);
        share[r] = speed[r] / NUM_MIN(disk[r] / (double)each, resident);
        of_too[r] = speed[r] / NUM_MIN(too[r] / (double)each, resident);
    }
    if (ready)
        printf("%-8s %-8s %9.1f %9.2f %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, packed ? "packed" : "file",
               (double)t.pass / (1 << 20), quantile(disk, rounds, 0.5) * 1e-9, resident,
               quantile(speed, rounds, 0.5), quantile(share, rounds, 0.5), quantile(too, rounds, 0.5) * 1e-9,
               quantile(of_too, rounds, 0.5));
    fflush(stdout);
    pool_close(threads);
    if (buffer)
        mem_unmap(buffer, (size_t)2 * DEPTH * CHUNK);
    nib_session_close(s);
    nib_engine_close(e);
    return !ready;
}

static bool parse_cap(const char *text, uint64_t size, uint64_t *cap) {
    char *end;
    const double share = strtod(text, &end);
    if (*end == 0 && share > 0 && share < 1) {
        *cap = (uint64_t)(share * (double)size);
        return true;
    }
    return num_parse_size(text, cap);
}

int main(int argc, char **argv) {
    static char *usual[] = {"0.33", "0.1"};
    char **caps = argc > 3 ? argv + 3 : usual, *path = NULL, command[64];
    const int n_cap = argc > 3 ? argc - 3 : 2, rounds = argc > 2 ? atoi(argv[2]) : 5;
    file *f;
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || model_find(argv[1], &path, NULL) ||
        path_is_dir(path) || file_open(path, 0, &f, NULL) || !mkdtemp(folder)) {
        fprintf(stderr, "usage: bench_stream MODEL.gguf [rounds] [cap ...]\n");
        return 2;
    }
    model = path;
    const uint64_t size = file_size(f);
    file_close(f);
    const double resident = resident_rate(); /* writes the packed file */
    char *packed = packed_path();
    int failed = !packed || resident <= 0;
    printf("%-8s %-8s %9s %9s %9s %9s %9s %9s %9s\n", "cap", "from", "MiB/token", "disk GB/s", "resident",
           "tok/s", "of bound", "read too", "of that");
    for (int i = 0; i < n_cap && !failed; i++) {
        uint64_t cap;
        failed = !parse_cap(caps[i], size, &cap) || one_cap(caps[i], cap, false, path, rounds, resident) ||
                 one_cap(caps[i], cap, true, packed, rounds, resident);
    }
    mem_free(packed);
    mem_free(path);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0 || failed;
}
