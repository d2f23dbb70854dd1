/* device_cuda.c - see device_cuda.h. */
#include "memory/device_cuda.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/status.h"
#include "kernels/cuda_load.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

enum { OUT_OF_MEMORY = 2 /* cudaErrorMemoryAllocation */, LATER = 64 << 20 /* docs/gpu.md */ };

/* An allocation: `at` is the caller's aligned address, `base` is CUDA's. */
typedef struct taken {
    uint8_t *at;
    void *base;
    uint64_t bytes;
} taken;

/* A stream and its latest marks. An older mark is represented by a later one, which implies it. */
enum { N_MARK = 8 };
typedef struct gpu_lane {
    cuda_stream stream; /* NULL: DEVICE_COMPUTE's */
    cuda_event marks[N_MARK];
    uint64_t n; /* number of marks set so far */
} gpu_lane;

typedef struct device_cuda {
    device base;
    const cuda_kernels *kernels;
    int index;
    cuda_device_info info;
    bool was_told; /* this device has reported the driver's bytes, which its opener charges */
    cuda_stream stream;
    gpu_lane lanes[DEVICE_N_LANE];
    pthread_mutex_t lock; /* protects `list` */
    taken *list;
    size_t n, max;
} device_cuda;

/* The current device of this thread. */
static _Thread_local const device_cuda *entered;

static const device_cuda *of(const device *d) {
    return (const device_cuda *)(const void *)d;
}

const cuda_kernels *device_cuda_kernels(const device *d) {
    return of(d)->kernels;
}

cuda_stream device_cuda_stream(const device *d) {
    return of(d)->stream;
}

/* Bit i is set while an open device has reported the driver's bytes of GPU i. */
static _Atomic uint64_t driver_told;

static uint64_t bit_of(const device_cuda *c) {
    return UINT64_C(1) << (c->index % 64);
}

uint64_t device_cuda_driver(device *d) {
    device_cuda *c = (device_cuda *)(void *)d;
    if (!c->info.driver)
        return 0;
    if (!c->was_told && (atomic_fetch_or(&driver_told, bit_of(c)) & bit_of(c)))
        return 0;
    c->was_told = true;
    return c->info.driver + LATER;
}

nib_status device_cuda_ok(const device *d, int error, const char *what, nib_error *err) {
    if (!error)
        return NIB_OK;
    const char *why = of(d)->kernels->error_text(error);
    return error == OUT_OF_MEMORY ? nib_fail(err, NIB_E_NOMEM, "the GPU, %s: %s", what, why)
                                  : nib_fail(err, NIB_E_DEVICE, "the GPU, %s: %s", what, why);
}

nib_status device_cuda_enter(const device *d, nib_error *err) {
    cuda_device_info info;
    if (entered == of(d))
        return NIB_OK;
    NIB_TRY(device_cuda_ok(d, of(d)->kernels->device_open(of(d)->index, &info), "choosing it", err));
    entered = of(d);
    return NIB_OK;
}

static void close_lane(const device_cuda *c, gpu_lane *l) {
    for (int i = 0; i < N_MARK; i++)
        if (l->marks[i])
            c->kernels->event_free(l->marks[i]);
    if (l->stream)
        c->kernels->stream_free(l->stream);
}

static void cuda_close(device *d) {
    device_cuda *c = (device_cuda *)(void *)d;
    for (int i = 0; i < DEVICE_N_LANE; i++)
        close_lane(c, &c->lanes[i]);
    if (c->stream)
        c->kernels->stream_free(c->stream);
    if (entered == c)
        entered = NULL;
    if (c->was_told)
        atomic_fetch_and(&driver_told, ~bit_of(c));
    pthread_mutex_destroy(&c->lock);
    mem_free(c->list);
    mem_free(c);
}

static nib_status cuda_open(int index, device **out, nib_error *err) {
    const cuda_kernels *kernels;
    nib_error why;
    int n = 0;
    if (cuda_load(&kernels, &why) != NIB_OK)
        return nib_fail(err, NIB_E_NOTFOUND, "no GPU can be used: %s", why.message);
    if (index < 0 || (kernels->device_count(&n) == 0 && index >= n))
        return nib_fail(err, NIB_E_NOTFOUND, "expected a GPU number below %d, found %d", n, index);
    device_cuda *c = mem_calloc(1, sizeof *c);
    if (!c)
        return nib_fail_nomem(err, sizeof *c, "the GPU");
    c->base.kind = &device_cuda_kind;
    c->kernels = kernels;
    c->index = index;
    pthread_mutex_init(&c->lock, NULL);
    nib_status status = device_cuda_ok(&c->base, kernels->device_open(index, &c->info), "opening it", err);
    if (status == NIB_OK)
        status = device_cuda_ok(&c->base, kernels->stream_new(&c->stream), "a stream", err);
    if (status != NIB_OK) {
        cuda_close(&c->base);
        return status;
    }
    entered = c;
    *out = &c->base;
    return NIB_OK;
}

/* What GPUs of a generation reach in each multiprocessor, by their makers' figures: a little less than these,
 * so that a plan is not too hopeful. */
static void rates_like(const cuda_device_info *of, device_info *out) {
    static const struct {
        int since;         /* compute capability */
        double read, macs; /* of a multiprocessor */
        double link;
    } all[] = {{75, 8e9, 4e11, 12e9},    {80, 13e9, 8e11, 22e9},    {86, 9e9, 2.5e11, 22e9},
               {90, 25e9, 1.8e12, 50e9}, {100, 45e9, 3.5e12, 50e9}, {120, 10e9, 3e11, 50e9}};
    for (size_t i = 0; i < NUM_COUNT(all) && all[i].since <= 10 * of->major + of->minor; i++) {
        out->read = of->n_sm * all[i].read;
        out->macs = of->n_sm * all[i].macs;
        out->link = all[i].link;
    }
}

static void cuda_info(const device *d, device_info *out) {
    const device_cuda *c = of(d);
    size_t left = 0, all = 0;
    *out = (device_info){.host_reads = false};
    snprintf(out->name, sizeof out->name, "%s", c->info.name);
    rates_like(&c->info, out);
    if (device_cuda_enter(d, NULL) == NIB_OK && c->kernels->memory_now(&left, &all) == 0) {
        out->free = left;
        out->bytes = all;
    }
}

/* ---- memory ---- */

static nib_status take_block(device_cuda *c, uint64_t n_byte, taken *out, nib_error *err) {
    const size_t all = (size_t)n_byte + DEVICE_CUDA_ALIGN - 1;
    NIB_TRY(device_cuda_enter(&c->base, err));
    NIB_TRY(device_cuda_ok(&c->base, c->kernels->alloc(&out->base, all), "taking memory", err));
    const uintptr_t first =
        ((uintptr_t)out->base + DEVICE_CUDA_ALIGN - 1) & ~(uintptr_t)(DEVICE_CUDA_ALIGN - 1);
    out->at = (uint8_t *)out->base + (first - (uintptr_t)out->base);
    out->bytes = n_byte;
    int e = c->kernels->fill(out->at, 0, (size_t)n_byte, c->stream);
    e = e ? e : c->kernels->stream_sync(c->stream);
    if (e)
        c->kernels->release(out->base);
    return device_cuda_ok(&c->base, e, "clearing memory", err);
}

/* GPU memory is resident at once, so `sparse` has no effect. */
static nib_status cuda_alloc(device *d, uint64_t n_byte, bool sparse, void **out, nib_error *err) {
    device_cuda *c = (device_cuda *)(void *)d;
    taken t = {0};
    (void)sparse;
    if (n_byte > SIZE_MAX / 2)
        return nib_fail_nomem(err, n_byte, "the GPU's memory");
    pthread_mutex_lock(&c->lock);
    nib_status status = mem_grow((void **)&c->list, &c->max, c->n + 1, sizeof *c->list)
                            ? nib_fail_nomem(err, sizeof *c->list, "a list of the GPU's memory")
                            : take_block(c, n_byte, &t, err);
    if (status == NIB_OK)
        c->list[c->n++] = t;
    pthread_mutex_unlock(&c->lock);
    *out = t.at;
    return status;
}

static void cuda_free(device *d, void *at, uint64_t n_byte) {
    device_cuda *c = (device_cuda *)(void *)d;
    (void)n_byte;
    device_cuda_enter(d, NULL);
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n; i++)
        if (c->list[i].at == at) {
            for (int l = 0; l < DEVICE_N_LANE; l++)
                if (c->lanes[l].stream)
                    c->kernels->stream_sync(c->lanes[l].stream);
            c->kernels->stream_sync(c->stream);
            c->kernels->release(c->list[i].base);
            c->list[i] = c->list[--c->n];
            break;
        }
    pthread_mutex_unlock(&c->lock);
}

static nib_status cuda_pin(device *d, void *host, uint64_t n_byte, nib_error *err) {
    void *there;
    NIB_TRY(device_cuda_enter(d, err));
    return device_cuda_ok(d, of(d)->kernels->map(host, (size_t)n_byte, &there), "locking host memory", err);
}

static void cuda_unpin(device *d, void *host, uint64_t n_byte) {
    (void)n_byte;
    device_cuda_enter(d, NULL);
    of(d)->kernels->unpin(host);
}

/* ---- lanes ---- */

static cuda_stream stream_of(const device_cuda *c, device_lane l) {
    return c->lanes[l].stream ? c->lanes[l].stream : c->stream;
}

static bool is_there(device_cuda *c, const void *p) {
    bool there = false;
    pthread_mutex_lock(&c->lock);
    for (size_t i = 0; i < c->n && !there; i++)
        there = (const uint8_t *)p >= c->list[i].at && (const uint8_t *)p < c->list[i].at + c->list[i].bytes;
    pthread_mutex_unlock(&c->lock);
    return there;
}

nib_status device_cuda_lane(device *d, device_lane lane, cuda_stream *out, nib_error *err) {
    device_cuda *c = (device_cuda *)(void *)d;
    const bool apart = lane != DEVICE_COMPUTE && lane != DEVICE_LOAD;
    NIB_TRY(device_cuda_enter(d, err));
    if (apart && !c->lanes[lane].stream)
        NIB_TRY(
            device_cuda_ok(d, c->kernels->stream_new(&c->lanes[lane].stream), "a stream for copies", err));
    *out = stream_of(c, lane);
    return NIB_OK;
}

static nib_status cuda_copy(device *d, device_lane lane, void *to, const void *from, uint64_t n_byte,
                            nib_error *err) {
    device_cuda *c = (device_cuda *)(void *)d;
    const cuda_kernels *k = c->kernels;
    const bool to_it = is_there(c, to), from_it = is_there(c, from);
    cuda_stream s;
    NIB_TRY(device_cuda_lane(d, lane, &s, err));
    return device_cuda_ok(d,
                          (to_it && from_it ? k->on_device
                           : to_it          ? k->to_device
                                            : k->to_host)(to, from, (size_t)n_byte, s),
                          "a copy", err);
}

static nib_status cuda_copy_rows(device *d, device_lane lane, void *to, uint64_t to_pitch, const void *from,
                                 uint64_t from_pitch, uint64_t n_byte, int64_t n_row, nib_error *err) {
    device_cuda *c = (device_cuda *)(void *)d;
    const bool by_kernel = lane == DEVICE_COMPUTE || lane == DEVICE_LOAD; /* few rows, which kernels await */
    cuda_stream s;
    NIB_TRY(device_cuda_lane(d, lane, &s, err));
    return device_cuda_ok(d,
                          c->kernels->copy_rows(to, (size_t)to_pitch, from, (size_t)from_pitch,
                                                (size_t)n_byte, (size_t)n_row, by_kernel, s),
                          "a copy of rows", err);
}

static nib_status cuda_arrange(device *d, device_lane lane, const view *matrix, bool arrived,
                               nib_error *err) {
    cuda_stream s;
    NIB_TRY(device_cuda_lane(d, lane, &s, err));
    return device_cuda_ok(d, of(d)->kernels->gtile(matrix, arrived, s), "ordering weights", err);
}

static bool cuda_looks_up(const pack_format *f) {
    return cuda_embeds(f);
}

static nib_status cuda_mark(device *d, device_lane lane, device_mark *out, nib_error *err) {
    device_cuda *c = (device_cuda *)(void *)d;
    const cuda_kernels *k = c->kernels;
    cuda_event *e = &c->lanes[lane].marks[c->lanes[lane].n % N_MARK];
    cuda_stream s;
    NIB_TRY(device_cuda_lane(d, lane, &s, err));
    nib_status status = *e ? NIB_OK : device_cuda_ok(d, k->event_new(e), "an event", err);
    if (status == NIB_OK)
        status = device_cuda_ok(d, k->event_record(*e, s), "a mark", err);
    if (status != NIB_OK) {
        k->stream_sync(s);
        return status;
    }
    *out = (device_mark){lane, ++c->lanes[lane].n};
    return NIB_OK;
}

static nib_status cuda_wait(device *d, device_mark mark, nib_error *err) {
    NIB_TRY(device_cuda_enter(d, err));
    return device_cuda_ok(d, of(d)->kernels->stream_sync(stream_of(of(d), mark.lane)), "waiting", err);
}

/* Lanes that share a stream need no wait. */
static nib_status cuda_follow(device *d, device_lane lane, device_mark mark, nib_error *err) {
    const device_cuda *c = of(d);
    cuda_stream s;
    if (mark.at == 0 || lane == mark.lane)
        return NIB_OK;
    NIB_TRY(device_cuda_lane(d, lane, &s, err));
    if (s == stream_of(c, mark.lane))
        return NIB_OK;
    return device_cuda_ok(d, c->kernels->stream_wait(s, c->lanes[mark.lane].marks[(mark.at - 1) % N_MARK]),
                          "waiting for another lane", err);
}

const device_kind device_cuda_kind = {
    .tier = NIB_TIER_VRAM,
    .open = cuda_open,
    .close = cuda_close,
    .info = cuda_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .pin = cuda_pin,
    .unpin = cuda_unpin,
    .copy = cuda_copy,
    .copy_rows = cuda_copy_rows,
    .mark = cuda_mark,
    .wait = cuda_wait,
    .follow = cuda_follow,
    .arrange = cuda_arrange,
    .tight_experts = true,
    .looks_up = cuda_looks_up,
};
