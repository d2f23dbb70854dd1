/* hardware_rates.c - measures a machine: memory, disk, products, packing, and the time of a barrier. */
#include "measure/hardware_rates.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/read_queue.h"
#include "base/thread.h"
#include "measure/attend_rates.h"
#include "measure/gpu.h"
#include "measure/trial.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_PASSES = 512, FEW_PASSES = 3, BARRIERS = 200, TIMES = 50 };
#define FILE_BYTES (UINT64_C(128) << 20) /* size of the file that is read */
#define WRITE_ONCE (UINT64_C(4) << 20)
#define READ_PASS  (UINT64_C(32) << 20) /* maximum bytes of one timed pass over it */

static nib_status tell(const hardware_options *o, uint64_t done, nib_error *err) {
    if (o->progress && !o->progress(o->user, "measuring", done, 100))
        return nib_fail(err, NIB_E_CANCELLED, "cancelled");
    return NIB_OK;
}

/* ---- memory ---- */

static nib_status measure_memory(const machine *m, const hardware_options *o, double seconds, hardware *out,
                                 nib_error *err) {
    const uint64_t want = NUM_MAX((uint64_t)1 << 30, 3 * m->l3);
    const uint64_t n_byte = NUM_MIN(want, m->ram_free / 2);
    int counts = 1;
    for (int n = 1; n < m->n_core; n *= 2)
        counts++;
    for (int n = 1; out->n_memory < HARDWARE_MEMORY; n = NUM_MIN(2 * n, m->n_core)) {
        hardware_memory *at = &out->memory[out->n_memory++];
        at->n_thread = n;
        NIB_TRY(rate_memory_read(n, n_byte, seconds / counts, o->cancel, &at->read, err));
        if (n == m->n_core)
            break;
    }
    return NIB_OK;
}

/* ---- disk ---- */

/* Fills the buffer with noise, which a file system can neither skip nor compress. */
static void fill_noise(uint64_t *words, uint64_t n_byte, uint64_t seed) {
    uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t i = 0; i < n_byte / 8; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        words[i] = x;
    }
}

/* Writes the file; the commit syncs it. */
static nib_status write_file(const char *path, uint8_t *buffer, const canceller *cancel, nib_error *err) {
    file_writer *w;
    nib_status status = NIB_OK;
    NIB_TRY(path_make_folders(path, err));
    NIB_TRY(file_writer_open(path, &w, err));
    for (uint64_t at = 0; at < FILE_BYTES && status == NIB_OK; at += WRITE_ONCE) {
        fill_noise((uint64_t *)(void *)buffer, WRITE_ONCE, at + 1);
        status = file_writer_write(w, buffer, WRITE_ONCE, err);
        if (status == NIB_OK)
            status = cancel_check(cancel, err);
    }
    return file_writer_end(w, status, err);
}

typedef struct disk_job {
    file *f;
    read_queue *q;
    uint8_t *buffer;
    uint64_t n_byte; /* of the file that is read, a multiple of every block */
    uint64_t at;     /* offset of the next pass, so that passes do not reread what the disk has cached */
    const canceller *cancel;
} disk_job;

/* *seconds: time of reading `pass` bytes with `depth` reads of `size` bytes in flight. */
static nib_status read_pass(disk_job *j, int depth, uint64_t size, uint64_t pass, double *seconds,
                            nib_error *err) {
    const double start = time_now();
    uint64_t sent = 0, done = 0;
    int idle[MAX_READ_QUEUE], n_idle = depth;
    nib_status status = NIB_OK;
    for (int i = 0; i < depth; i++)
        idle[i] = i;
    while (done < sent || (sent < pass && status == NIB_OK)) {
        while (n_idle && sent < pass && status == NIB_OK) {
            const int tag = idle[--n_idle];
            const read_request what = {j->f, j->buffer + (uint64_t)tag * size, (j->at + sent) % j->n_byte,
                                       size, size};
            read_queue_submit(j->q, tag, &what);
            sent += size;
        }
        int tag;
        nib_error why;
        const nib_status one = read_queue_wait(j->q, &tag, &why);
        if (one != NIB_OK && status == NIB_OK) {
            status = one;
            if (err)
                *err = why;
        }
        if (tag < 0)
            break;
        idle[n_idle++] = tag;
        done += size;
        if (status == NIB_OK)
            status = cancel_check(j->cancel, err);
    }
    j->at = (j->at + sent) % j->n_byte;
    *seconds = time_now() - start;
    return status;
}

static nib_status disk_case(disk_job *j, int depth, uint64_t size, double seconds, hardware *out,
                            nib_error *err) {
    double values[MAX_PASSES];
    hardware_disk *to = &out->disk[out->n_disk];
    const double start = time_now();
    /* reads of one page are slow, so a pass has few of them */
    const uint64_t pass = NUM_MIN(NUM_MAX(size * 16, size > 4096 ? READ_PASS / 4 : size * 64), READ_PASS);
    int n = 0;
    j->at = j->at / size * size;
    for (; n < MAX_PASSES && (n < FEW_PASSES || time_now() - start < seconds); n++) {
        double s;
        NIB_TRY(read_pass(j, depth, size, pass, &s, err));
        values[n] = (double)pass / NUM_MAX(s, 1e-9);
    }
    *to = (hardware_disk){depth, size, rate_of(values, n)};
    out->n_disk++;
    return NIB_OK;
}

/* The last entries are what the pager does, and take most of the time: after a pause a virtual disk may be
 * several times faster for the first gigabytes, but plans need its sustained rate. */
static const struct {
    int depth;
    uint64_t size;
    int share;
} disk_cases[] = {{1, 4096, 1},    {1, 64 << 10, 1}, {8, 64 << 10, 1},  {1, 256 << 10, 1}, {1, 1 << 20, 1},
                  {4, 1 << 20, 1}, {16, 1 << 20, 1}, {8, 256 << 10, 6}, {8, 1 << 20, 6}};

static nib_status read_cases(const char *path, const canceller *cancel, double seconds, hardware *out,
                             nib_error *err) {
    enum { MAX_SIZE = 1 << 20 };
    const size_t n_buffer = (size_t)MAX_READ_QUEUE * MAX_SIZE;
    disk_job j = {.buffer = mem_map(n_buffer), .cancel = cancel};
    nib_status status = j.buffer ? NIB_OK : nib_fail_nomem(err, n_buffer, "reading");
    if (status == NIB_OK)
        status = file_open(path, FILE_DIRECT, &j.f, err);
    if (status == NIB_OK) {
        j.n_byte = file_size(j.f) / MAX_SIZE * MAX_SIZE;
        out->direct = file_is_direct(j.f);
        if (j.n_byte == 0)
            status = nib_fail(err, NIB_E_USAGE, "%s: expected a file of at least 1 MiB", path);
    }
    if (status == NIB_OK)
        status = read_queue_open(MAX_READ_QUEUE, 0, j.buffer, n_buffer, &j.q, err);
    if (status == NIB_OK)
        out->ring = read_queue_is_ring(j.q);
    const int n_case = NUM_COUNT(disk_cases);
    int shares = 0;
    for (int i = 0; i < n_case; i++)
        shares += disk_cases[i].share;
    for (int i = 0; i < n_case && status == NIB_OK; i++)
        status = disk_case(&j, disk_cases[i].depth, disk_cases[i].size,
                           seconds * disk_cases[i].share / shares, out, err);
    read_queue_close(j.q);
    file_close(j.f);
    if (j.buffer)
        mem_unmap(j.buffer, n_buffer);
    return status;
}

static nib_status write_own(const char *path, const canceller *cancel, nib_error *err) {
    uint8_t *buffer = mem_alloc_aligned(4096, WRITE_ONCE);
    const nib_status status =
        buffer ? write_file(path, buffer, cancel, err) : nib_fail_nomem(err, WRITE_ONCE, "a file to read");
    mem_free(buffer);
    return status;
}

/* Measures with a temporary file, which is removed afterwards. */
static nib_status measure_folder(const char *folder, const canceller *cancel, double seconds, hardware *out,
                                 nib_error *err) {
    char name[64];
    snprintf(name, sizeof name, "nibble-disk-rate-%ld.tmp", (long)getpid());
    char *path = path_join(folder, name);
    if (!path)
        return nib_fail_nomem(err, strlen(folder), "a file to read");
    nib_status status = write_own(path, cancel, err);
    if (status == NIB_OK)
        status = read_cases(path, cancel, seconds, out, err);
    (void)unlink(path);
    mem_free(path);
    return status;
}

/* Measures the disk of the cache folder. It was not requested, so if the folder cannot be written, the disk
 * is skipped. */
static nib_status measure_cache(const hardware_options *o, double seconds, hardware *out, nib_error *err) {
    nib_error why;
    char *cache = path_cache_dir();
    nib_status status = cache ? measure_folder(cache, o->cancel, seconds, out, &why)
                              : nib_fail(&why, NIB_E_IO, "expected a cache folder, found none");
    if (status == NIB_E_IO) {
        if (o->log)
            log_line(o->log, "the disk is not measured: %s", why.message);
        out->n_disk = 0;
        status = NIB_OK;
    } else if (status == NIB_OK) {
        snprintf(out->folder, sizeof out->folder, "%s", cache);
    } else if (err) {
        *err = why;
    }
    mem_free(cache);
    return status;
}

static nib_status measure_disk(const hardware_options *o, double seconds, hardware *out, nib_error *err) {
    if (!o->file && !o->folder)
        return measure_cache(o, seconds, out, err);
    snprintf(out->folder, sizeof out->folder, "%s", o->file ? o->file : o->folder);
    return o->file ? read_cases(o->file, o->cancel, seconds, out, err)
                   : measure_folder(o->folder, o->cancel, seconds, out, err);
}

/* ---- products ---- */

static rate rate_from(const trial_result *r, double work) {
    const trial_time *t = &r->times[r->chosen];
    const double best = work / t->best, low = best / (1 + t->spread);
    return (rate){best, low, low};
}

static nib_status measure_width(trial *t, pool *threads, pool *one, int bits, bool asym, double seconds,
                                hardware *out, nib_error *err) {
    enum { ROWS = 3072, COLUMNS = 4096, MANY = 512 };
    trial_shape shape = {.n = ROWS, .k = COLUMNS, .act_bits = 8, .count = 1};
    hardware_kernel *to = &out->kernels[out->n_kernel];
    trial_result r;
    if (!pack_uniform(bits, 64, asym, false, COLUMNS, &shape.format))
        return nib_fail(err, NIB_E_FAILED, "expected a format of %d bits, found none", bits);
    to->bits = bits;
    to->asym = asym;
    NIB_TRY(trial_set(t, &shape, err));
    trial_by_clock(t, true);
    NIB_TRY(trial_rows(t, 1, seconds / 4, &r, err));
    to->one_row = rate_from(&r, r.bytes);
    NIB_TRY(trial_rows(t, 2, seconds / 4, &r, err));
    to->two_rows = rate_from(&r, r.bytes);
    trial_by_clock(t, false); /* memory is not the bottleneck */
    NIB_TRY(trial_rows(t, MANY, seconds / 4, &r, err));
    to->many_rows = rate_from(&r, (double)ROWS * COLUMNS * MANY);
    trial_use(t, one);
    nib_status status = trial_rows(t, 1, seconds / 4, &r, err);
    trial_use(t, threads);
    if (status != NIB_OK)
        return status;
    to->one_thread = rate_from(&r, r.bytes);
    out->n_kernel++;
    return NIB_OK;
}

static nib_status measure_kernels(const hardware_options *o, pool *threads, uint64_t n_byte, double seconds,
                                  hardware *out, nib_error *err) {
    static const struct {
        int bits;
        bool asym;
    } widths[] = {{8, false}, {6, false}, {4, false}, {3, false}, {4, true}};
    pool *one;
    trial *t = NULL;
    NIB_TRY(pool_open(1, &one, err));
    nib_status status = trial_open(kernels_table(), threads, n_byte, o->cancel, &t, err);
    const int n_width = NUM_COUNT(widths);
    for (int i = 0; i < n_width && status == NIB_OK; i++)
        status = measure_width(t, threads, one, widths[i].bits, widths[i].asym, seconds / n_width, out, err);
    trial_close(t);
    pool_close(one);
    return status;
}

/* ---- packing, and barriers ---- */

/* Measures packing as the pager's reader does it: from bytes that were just read into memory to the slots of
 * a ring. */
static nib_status measure_pack(const hardware_options *o, double seconds, hardware *out, nib_error *err) {
    enum { K = 4096, FROM = 16 << 20, TO = 2 << 20 };
    double values[MAX_PASSES];
    pack_format f;
    uint64_t row, bytes;
    if (!pack_choose(TYPE_Q4_0, K, &f) || !type_row_bytes(TYPE_Q4_0, K, &row) ||
        !pack_bytes(&f, PACK_PANEL, K, &bytes))
        return nib_fail(err, NIB_E_FAILED, "expected a format to pack, found none");
    const uint64_t each = PACK_PANEL * row, n_from = FROM / each, n_to = NUM_MAX(TO / bytes, UINT64_C(1));
    uint8_t *raw = mem_map(n_from * each), *dst = mem_map(n_to * bytes);
    void *scratch = mem_alloc_aligned(64, pack_scratch_bytes(&f, K));
    const void *rows[PACK_PANEL];
    const double start = time_now();
    int n = 0;
    nib_status status = raw && dst && scratch ? NIB_OK : nib_fail_nomem(err, FROM + TO, "packing");
    if (status == NIB_OK) {
        fill_noise((uint64_t *)(void *)raw, n_from * each / 8 * 8, 7);
        uint64_t at = 0;
        for (; n < MAX_PASSES && status == NIB_OK && (n < FEW_PASSES || time_now() - start < seconds); n++) {
            const double begin = time_thread();
            for (int i = 0; i < 64; i++, at++) {
                for (uint64_t r = 0; r < PACK_PANEL; r++)
                    rows[r] = raw + at % n_from * each + r * row;
                pack_panel(&f, TYPE_Q4_0, PACK_PANEL, K, 0, PACK_PANEL, rows, dst + at % n_to * bytes,
                           scratch);
            }
            values[n] = 64 * (double)bytes / NUM_MAX(time_thread() - begin, 1e-9);
            status = cancel_check(o->cancel, err);
        }
        out->pack = rate_of(values, n);
    }
    if (raw)
        mem_unmap(raw, n_from * each);
    if (dst)
        mem_unmap(dst, n_to * bytes);
    mem_free(scratch);
    return status;
}

typedef struct barriers {
    pool *threads;
    double seconds; /* time of the first thread, after all threads have started */
} barriers;

static void barriers_run(void *arg, int thread, int n_thread) {
    barriers *m = arg;
    (void)n_thread;
    pool_barrier(m->threads);
    const double start = time_now();
    for (int i = 0; i < BARRIERS; i++)
        pool_barrier(m->threads);
    if (thread == 0)
        m->seconds = time_now() - start;
}

/* Takes the best of many short runs: a preempted thread delays the others for milliseconds, which would
 * distort the cost of an op. */
static nib_status measure_barriers(const hardware_options *o, pool *threads, hardware *out, nib_error *err) {
    barriers m = {.threads = threads};
    double best = INFINITY;
    for (int i = 0; i < TIMES; i++) {
        NIB_TRY(cancel_check(o->cancel, err));
        pool_run(threads, barriers_run, &m);
        best = NUM_MIN(best, m.seconds / BARRIERS);
    }
    out->barrier_s = best;
    return NIB_OK;
}

nib_status hardware_measure(const machine *m, const hardware_options *o, hardware *out, nib_error *err) {
    const double start = time_now(), all = NUM_MAX(o->seconds, 1);
    pool *threads;
    gpu_rates gpu;
    memset(out, 0, sizeof *out);
    NIB_TRY(tell(o, 0, err));
    /* The disk first: a folder that cannot be written ends it at once. */
    NIB_TRY(measure_disk(o, 0.35 * all, out, err));
    NIB_TRY(tell(o, 45, err));
    NIB_TRY(measure_memory(m, o, 0.12 * all, out, err));
    NIB_TRY(tell(o, 60, err));
    NIB_TRY(pool_open(m->n_core, &threads, err));
    const uint64_t n_byte = trial_bytes(m->l3, m->ram_free, (uint64_t)1 << 30);
    nib_status status = NIB_OK;
    out->n_thread = pool_size(threads);
    if (n_byte > 0) /* else little memory is free: defaults are used */
        status = measure_kernels(o, threads, n_byte, 0.27 * all, out, err);
    if (status == NIB_OK && n_byte > 0)
        status = attend_rates_measure(threads, n_byte, 0.1 * all, o->cancel, out, err);
    if (status == NIB_OK)
        status = measure_pack(o, 0.05 * all, out, err);
    if (status == NIB_OK)
        status = measure_barriers(o, threads, out, err);
    pool_close(threads);
    if (status == NIB_OK) {
        gpu_rates_measure(&gpu);
        out->link = gpu.link;
        out->gpu_read = gpu.read;
        out->gpu_macs = gpu.macs;
    }
    if (status == NIB_OK)
        status = tell(o, 100, err);
    out->seconds = time_now() - start;
    return status;
}
