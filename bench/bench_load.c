/* Times loading: bench_load MODEL [rounds] [RAM cap, e.g. 400M]. Each opening runs in a process of its own,
 * so that its peak is its own. "cold": the files are dropped from the page cache first; "read once": the
 * model's file read with O_DIRECT and no work on it, before and after each opening: the disk of a virtual
 * machine changes its rate from one second to the next, so the time of an opening is divided by the mean of
 * the two reads around it. The median of these ratios counts, and the quartiles are printed beside it. With a
 * cap, generation with streamed blocks is timed as well. The packed file goes to a folder of its own, which
 * is removed. */
#include "quantile.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/read_queue.h"
#include "base/thread.h"
#include "hub/find.h"
#include "nib.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 1 << 20, DEPTH = 4, MAX_ROUNDS = 200, N_GEN = 8 };

typedef struct result {
    double open_s, cpu_s, first_s, tok_s;
    uint64_t above; /* bytes of the peak above the resident size after opening */
    int failed;
} result;

/* One figure of all rounds. */
typedef struct series {
    int n;
    double values[MAX_ROUNDS];
} series;

typedef struct trial {
    const char *name;
    bool cold, packed;
    uint64_t ram;
    series open_s, ratio, cpu_s, first_s, tok_s; /* ratio to reading the file once, at the same time */
    uint64_t above;                              /* the worst */
} trial;

static void add(series *s, double value) {
    if (s->n < MAX_ROUNDS)
        s->values[s->n++] = value;
}

/* share: 0.5 is the median. */
static double of(series *s, double share) {
    return quantile(s->values, s->n, share);
}

/* A "Vm...: n kB" line of /proc/self/status in bytes. */
static uint64_t status_field(const char *field) {
    char line[256];
    unsigned long long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, field, strlen(field)))
            sscanf(line + strlen(field), ": %llu", &kb);
    if (f)
        fclose(f);
    return (uint64_t)kb * 1024;
}

static const char *model;
static char folder[] = "/tmp/bench-load-XXXXXX"; /* scratch */
static char *packed_file;                        /* in it, after it was written */

static void drop(const char *path) {
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0)
        return;
    fsync(fd); /* dirty pages stay */
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

/* Seconds to read the file once: through a small buffer; or, with `fresh`, into as much untouched memory, as
 * every loader has to. */
static double read_once(const char *path, bool fresh) {
    file *f;
    read_queue *q;
    int tag, next = 0, n_busy = 0;
    uint64_t at = 0;
    if (file_open(path, FILE_DIRECT, &f, NULL))
        return 0;
    const size_t n_buffer = fresh ? (size_t)file_size(f) + CHUNK : DEPTH * CHUNK;
    uint8_t *buffer = mem_map(n_buffer);
    if (!buffer)
        return 0;
    if (!fresh)
        memset(buffer, 1, n_buffer);
    double start = time_now();
    if (read_queue_open(DEPTH, 0, fresh ? NULL : buffer, fresh ? 0 : n_buffer, &q, NULL))
        return 0;
    while (at < file_size(f) || n_busy > 0) {
        if (at < file_size(f) && n_busy < DEPTH) {
            uint64_t n = NUM_MIN(file_size(f) - at, (uint64_t)CHUNK);
            read_request what = {f, buffer + (fresh ? at : (uint64_t)next * CHUNK), at, CHUNK, n};
            read_queue_submit(q, next, &what);
            next = n_busy + 1 < DEPTH ? next + 1 : next;
            n_busy++;
            at += n;
            continue;
        }
        if (read_queue_wait(q, &tag, NULL))
            return 0;
        n_busy--;
        next = tag;
    }
    read_queue_close(q);
    double seconds = time_now() - start;
    file_close(f);
    mem_unmap(buffer, n_buffer);
    return seconds;
}

/* Processor time of the process. */
static double cpu_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void one_life(const trial *t, result *r) {
    nib_engine_options o;
    nib_engine *e;
    nib_session *s;
    nib_error err;
    int32_t tokens[N_GEN + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    nib_engine_options_init(&o);
    o.n_ctx = 64;
    o.ram = t->ram;
    o.stream = t->ram != NIB_AUTO;
    o.packed = t->packed ? NIB_PACKED_ON : NIB_PACKED_OFF;
    o.scratch = folder;
    r->failed = 1;
    double start = time_now();
    if (nib_engine_open(model, &o, &e, &err)) {
        fprintf(stderr, "%s\n", err.message);
        return;
    }
    r->open_s = time_now() - start;
    r->cpu_s = cpu_now();
    r->above = status_field("VmHWM") - status_field("VmRSS");
    if (nib_session_open(e, NULL, &s, &err) || nib_session_sync(s, tokens, 1, &err))
        return;
    r->first_s = time_now() - start;
    start = time_now();
    for (size_t i = 0; i < N_GEN; i++)
        if (nib_session_sync(s, tokens, i + 2, &err))
            return;
    r->tok_s = N_GEN / (time_now() - start);
    nib_session_close(s);
    nib_engine_close(e);
    r->failed = 0;
}

/* The host of a virtual machine takes free memory away and gives it back at the first touch, at about 1 GB/s:
 * let it happen outside the timed part. */
static void wake_memory(void) {
    struct stat info;
    if (stat(model, &info))
        return;
    size_t n = (size_t)info.st_size + ((size_t)64 << 20);
    void *p = mem_map(n);
    if (p)
        memset(p, 1, n);
    mem_unmap(p, n);
}

/* False: it failed, and printed the reason. */
static bool run(const trial *t, result *r) {
    int ends[2];
    *r = (result){.failed = 1};
    if (pipe(ends))
        return false;
    wake_memory();
    drop(t->cold ? model : NULL);
    drop(t->cold ? packed_file : NULL);
    pid_t child = fork();
    if (child == 0) {
        one_life(t, r);
        _exit(write(ends[1], r, sizeof *r) != sizeof *r);
    }
    close(ends[1]);
    if (child < 0 || read(ends[0], r, sizeof *r) != sizeof *r)
        r->failed = 1;
    close(ends[0]);
    if (child > 0)
        waitpid(child, NULL, 0);
    return !r->failed;
}

static void note(trial *t, const result *r, double once) {
    add(&t->open_s, r->open_s);
    add(&t->ratio, r->open_s / once);
    add(&t->cpu_s, r->cpu_s);
    add(&t->first_s, r->first_s);
    add(&t->tok_s, r->tok_s);
    t->above = NUM_MAX(t->above, r->above);
}

static void find_packed(void) {
    char command[64];
    static char path[4096];
    snprintf(command, sizeof command, "ls %s/packed/*.nibpack 2>&-", folder);
    FILE *list = popen(command, "r");
    if (list && fgets(path, sizeof path, list)) {
        path[strcspn(path, "\n")] = 0;
        packed_file = path;
    }
    if (list)
        pclose(list);
}

static void warm(const char *path) {
    static char sink[CHUNK];
    int fd = open(path, O_RDONLY);
    while (fd >= 0 && read(fd, sink, sizeof sink) > 0)
        continue;
    if (fd >= 0)
        close(fd);
}

static void tell(trial *t, bool with_rate) {
    if (t->ratio.n == 0) {
        printf("%-26s  failed\n", t->name);
        return;
    }
    printf("%-26s %8.3f %7.2f %6.2f..%.2f %8.3f %8.3f %10.1f", t->name, of(&t->open_s, 0.5),
           of(&t->ratio, 0.5), of(&t->ratio, 0.25), of(&t->ratio, 0.75), of(&t->cpu_s, 0.5),
           of(&t->first_s, 0.5), (double)t->above / (1 << 20));
    if (with_rate && t->ram != NIB_AUTO)
        printf(" %10.2f", of(&t->tok_s, 0.5));
    printf("\n");
}

/* The model's file read once, into memory that is touched (`once`) or fresh (`into`). */
typedef struct plain_reads {
    series once, into, into_ratio;
} plain_reads;

static double read_cold(plain_reads *p) {
    drop(model);
    const double s = read_once(model, false);
    add(&p->once, s);
    return s;
}

static void one_round(plain_reads *plain, trial *trials, int n_trial) {
    double before = read_cold(plain), after;
    wake_memory();
    drop(model);
    const double into = read_once(model, true);
    after = read_cold(plain);
    add(&plain->into, into);
    add(&plain->into_ratio, into / ((before + after) / 2));
    for (int i = 0; i < n_trial; i++) {
        trial *t = &trials[i];
        result r;
        before = after;
        if (!t->cold)
            warm(t->packed ? packed_file : model);
        const bool good = run(t, &r);
        after = read_cold(plain);
        if (good)
            note(t, &r, (before + after) / 2);
    }
}

static void tell_all(plain_reads *plain, trial *trials, int n_trial, bool with_rate) {
    struct stat info;
    stat(model, &info);
    const double once = of(&plain->once, 0.5);
    printf("read once with O_DIRECT: %.3f s (%.3f..%.3f), %.2f GB/s\n", once, of(&plain->once, 0),
           of(&plain->once, 1), (double)info.st_size / once * 1e-9);
    printf("the same into fresh memory: %.3f s, %.2f of it\n", of(&plain->into, 0.5),
           of(&plain->into_ratio, 0.5));
    printf("%-26s %8s %7s %12s %8s %8s %10s%s\n", "", "open, s", "/ once", "quarters", "cpu, s", "token, s",
           "above, MiB", with_rate ? "      tok/s" : "");
    for (int i = 0; i < n_trial; i++)
        tell(&trials[i], with_rate);
}

int main(int argc, char **argv) {
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    uint64_t cap = NIB_AUTO;
    char *path = NULL, command[64];
    if (argc < 2 || rounds < 1 || rounds > MAX_ROUNDS || (argc > 3 && !num_parse_size(argv[3], &cap)) ||
        model_find(argv[1], &path, NULL) || path_is_dir(path) || !mkdtemp(folder)) {
        fprintf(stderr, "usage: bench_load MODEL.gguf [rounds] [RAM cap]\n");
        return 2;
    }
    model = path;
    static trial trials[] = {{.name = "cold", .cold = true, .packed = false, .ram = NIB_AUTO},
                             {.name = "warm", .cold = false, .packed = false, .ram = NIB_AUTO},
                             {.name = "packed file, cold", .cold = true, .packed = true, .ram = NIB_AUTO},
                             {.name = "packed file, warm", .cold = false, .packed = true, .ram = NIB_AUTO},
                             {.name = "streamed", .cold = true, .packed = false},
                             {.name = "streamed from packed file", .cold = true, .packed = true}};
    static plain_reads plain;
    const int n_trial = cap == NIB_AUTO ? 4 : 6;
    trials[4].ram = trials[5].ram = cap;
    result first;
    run(&trials[2], &first); /* writes it */
    find_packed();
    for (int r = 0; r < rounds; r++)
        one_round(&plain, trials, n_trial);
    tell_all(&plain, trials, n_trial, cap != NIB_AUTO);
    snprintf(command, sizeof command, "rm -r %s", folder);
    return system(command) != 0;
}
