/* device_disk.c - see device_disk.h. */
#include "memory/device_disk.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/num.h"
#include "base/read_queue.h"
#include "base/thread.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* An allocation. */
typedef struct extent {
    struct extent *next;
    uint8_t *at;
    uint64_t bytes;
    file *f;
} extent;

typedef enum work_kind { WORK_READ, WORK_WRITE, WORK_FOLLOW } work_kind;

typedef struct work {
    work_kind kind;
    file *f;
    void *memory;
    uint64_t offset, n_byte;
    device_mark after; /* WORK_FOLLOW */
} work;

struct disk;

typedef struct lane {
    struct disk *disk;
    device_lane name;
    pthread_t thread;
    bool running;
    read_queue *reads; /* of the lane that loads */
    work *list;        /* works [begun, queued), at their numbers minus `first` */
    size_t max;
    uint64_t first, queued, done;
    nib_error failure; /* of the first work that failed; the next ones are not begun until it is told */
} lane;

enum { N_LANE = 2 };

typedef struct disk {
    device base;
    char *folder;
    extent *extents;
    pthread_mutex_t lock; /* of all that is below */
    pthread_cond_t changed;
    bool stop;
    device_disk_seconds time;
    lane lanes[N_LANE];
} disk;

static disk *disk_of(device *d) {
    return (disk *)(void *)d;
}

/* The lane with a thread; NULL: copies are complete when the call returns. */
static lane *lane_of(disk *d, device_lane name) {
    for (int i = 0; i < N_LANE; i++)
        if (d->lanes[i].name == name)
            return &d->lanes[i];
    return NULL;
}

/* ---- the threads ---- */

/* Reads n pieces together. */
static nib_status read_all(lane *l, const work *list, size_t n, nib_error *err) {
    nib_status status = NIB_OK;
    for (size_t i = 0; i < n; i++) {
        const read_request what = {.f = list[i].f,
                                   .out = list[i].memory,
                                   .offset = list[i].offset,
                                   .n_byte = list[i].n_byte,
                                   .min = list[i].n_byte};
        read_queue_submit(l->reads, (int)i, &what);
    }
    for (int tag; n > 0; n--) {
        const nib_status now = read_queue_wait(l->reads, &tag, status == NIB_OK ? err : NULL);
        status = status == NIB_OK ? now : status;
    }
    return status;
}

/* The next works that are done together: reads, or one other. They are copied to `out`. */
static size_t take(const lane *l, work *out) {
    size_t n = 0;
    for (uint64_t i = l->done; i < l->queued && n < MAX_READ_QUEUE; i++) {
        const work *next = &l->list[i - l->first];
        if (n > 0 && next->kind != WORK_READ)
            break;
        out[n++] = *next;
        if (next->kind != WORK_READ)
            break;
    }
    return n;
}

static bool has_passed(disk *d, device_mark mark) {
    const lane *l = lane_of(d, mark.lane);
    return !l || l->done >= mark.at;
}

/* Does n works. The lock is held, and not while reading and writing. */
static nib_status do_works(lane *l, const work *list, size_t n, nib_error *err) {
    disk *d = l->disk;
    while (list->kind == WORK_FOLLOW && !d->stop && !has_passed(d, list->after))
        pthread_cond_wait(&d->changed, &d->lock);
    if (list->kind == WORK_FOLLOW)
        return NIB_OK;
    double *time = list->kind == WORK_READ ? &d->time.read : &d->time.write;
    pthread_mutex_unlock(&d->lock);
    const double begun = time_now();
    const nib_status status = list->kind == WORK_READ
                                  ? read_all(l, list, n, err)
                                  : file_write_at(list->f, list->memory, list->offset, list->n_byte, err);
    pthread_mutex_lock(&d->lock);
    *time += time_now() - begun;
    return status;
}

static void *work_on(void *arg) {
    lane *l = arg;
    disk *d = l->disk;
    work now[MAX_READ_QUEUE];
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        const size_t n = take(l, now);
        if (n == 0) {
            pthread_cond_wait(&d->changed, &d->lock);
            continue;
        }
        nib_error why;
        if (l->failure.status == NIB_OK && do_works(l, now, n, &why) != NIB_OK)
            l->failure = why;
        l->done += n;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static nib_status lane_open(disk *d, lane *l, device_lane name, nib_error *err) {
    *l = (lane){.disk = d, .name = name};
    if (name == DEVICE_LOAD_CACHE)
        NIB_TRY(read_queue_open(MAX_READ_QUEUE, 0, NULL, 0, &l->reads, err));
    const int code = pthread_create(&l->thread, NULL, work_on, l);
    l->running = code == 0;
    return code ? nib_fail_errno(err, "cannot start a thread for copies:", "pthread_create", code) : NIB_OK;
}

/* Queues a work. Only the owner's thread queues. */
static nib_status queue(lane *l, const work *what, nib_error *err) {
    disk *d = l->disk;
    nib_status status = NIB_OK;
    pthread_mutex_lock(&d->lock);
    if (l->done == l->queued)
        l->first = l->done;
    const size_t n = (size_t)(l->queued - l->first) + 1;
    if (mem_grow((void **)&l->list, &l->max, n, sizeof *l->list))
        status = nib_fail_nomem(err, n * sizeof *l->list, "a list of copies");
    else
        l->list[l->queued++ - l->first] = *what;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    return status;
}

/* ---- the kind ---- */

static void disk_close(device *base) {
    disk *d = disk_of(base);
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    for (int i = 0; i < N_LANE; i++) {
        if (d->lanes[i].running)
            pthread_join(d->lanes[i].thread, NULL);
        read_queue_close(d->lanes[i].reads);
        mem_free(d->lanes[i].list);
    }
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    mem_free(d->folder);
    mem_free(d);
}

static const device_kind device_disk_kind;

nib_status device_disk_open(const char *folder, device **out, nib_error *err) {
    static const device_lane names[N_LANE] = {DEVICE_LOAD_CACHE, DEVICE_STORE_CACHE};
    disk *d = mem_calloc(1, sizeof *d);
    char *copy = mem_strdup(folder);
    if (!d || !copy) {
        mem_free(d);
        mem_free(copy);
        return nib_fail_nomem(err, sizeof *d, "a disk");
    }
    d->base = (device){.kind = &device_disk_kind, .place = PLACE_DISK};
    d->folder = copy;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    nib_status status = NIB_OK;
    for (int i = 0; i < N_LANE && status == NIB_OK; i++)
        status = lane_open(d, &d->lanes[i], names[i], err);
    if (status != NIB_OK) {
        disk_close(&d->base);
        return status;
    }
    *out = &d->base;
    return NIB_OK;
}

static void disk_info(const device *d, device_info *out) {
    (void)d;
    *out = (device_info){.host_reads = false};
    snprintf(out->name, sizeof out->name, "disk");
}

static nib_status disk_alloc(device *base, uint64_t n_byte, bool sparse, void **out, nib_error *err) {
    disk *d = disk_of(base);
    (void)sparse;
    extent *e = mem_calloc(1, sizeof *e);
    if (!e)
        return nib_fail_nomem(err, sizeof *e, "a piece of a disk");
    e->bytes = n_byte;
    const nib_status status = file_open_scratch(d->folder, n_byte, &e->f, err);
    if (status != NIB_OK) {
        mem_free(e);
        return status;
    }
    e->at = mem_addresses((size_t)n_byte);
    if (!e->at) {
        file_close(e->f);
        mem_free(e);
        return nib_fail_nomem(err, n_byte, "addresses for a disk");
    }
    e->next = d->extents;
    d->extents = e;
    *out = e->at;
    return NIB_OK;
}

static void disk_free(device *base, void *at, uint64_t n_byte) {
    for (extent **e = &disk_of(base)->extents; *e; e = &(*e)->next)
        if ((*e)->at == at) {
            extent *gone = *e;
            *e = gone->next;
            mem_addresses_end(gone->at, (size_t)n_byte);
            file_close(gone->f);
            mem_free(gone);
            return;
        }
}

/* The allocation with this address; NULL: it is in RAM. */
static const extent *extent_of(const disk *d, const void *at) {
    const uint8_t *byte = at;
    for (const extent *e = d->extents; e; e = e->next)
        if (byte >= e->at && byte < e->at + e->bytes)
            return e;
    return NULL;
}

static nib_status disk_copy(device *base, device_lane name, void *to, const void *from, uint64_t n_byte,
                            nib_error *err) {
    disk *d = disk_of(base);
    const extent *there = extent_of(d, to), *here = extent_of(d, from);
    work in = {.kind = WORK_READ, .memory = to, .n_byte = n_byte},
         out = {.kind = WORK_WRITE, .memory = (void *)(uintptr_t)from, .n_byte = n_byte};
    if (here) {
        in.f = here->f;
        in.offset = (uint64_t)((const uint8_t *)from - here->at);
    }
    if (there) {
        out.f = there->f;
        out.offset = (uint64_t)((uint8_t *)to - there->at);
    }
    lane *l = lane_of(d, name);
    if (!there && !here) {
        memcpy(to, from, (size_t)n_byte);
        return NIB_OK;
    }
    assert(l && !(there && here));
    return queue(l, here ? &in : &out, err);
}

static nib_status disk_copy_rows(device *d, device_lane name, void *to, uint64_t to_pitch, const void *from,
                                 uint64_t from_pitch, uint64_t n_byte, int64_t n_row, nib_error *err) {
    for (int64_t i = 0; i < n_row; i++)
        NIB_TRY(disk_copy(d, name, (uint8_t *)to + (uint64_t)i * to_pitch,
                          (const uint8_t *)from + (uint64_t)i * from_pitch, n_byte, err));
    return NIB_OK;
}

static nib_status disk_mark(device *base, device_lane name, device_mark *out, nib_error *err) {
    disk *d = disk_of(base);
    const lane *l = lane_of(d, name);
    (void)err;
    pthread_mutex_lock(&d->lock);
    *out = (device_mark){name, l ? l->queued : 0};
    pthread_mutex_unlock(&d->lock);
    return NIB_OK;
}

static nib_status disk_wait(device *base, device_mark mark, nib_error *err) {
    disk *d = disk_of(base);
    lane *l = lane_of(d, mark.lane);
    nib_status status = NIB_OK;
    const double begun = time_now();
    pthread_mutex_lock(&d->lock);
    while (!has_passed(d, mark))
        pthread_cond_wait(&d->changed, &d->lock);
    d->time.wait += time_now() - begun;
    if (l && l->failure.status != NIB_OK) {
        status = l->failure.status;
        if (err)
            *err = l->failure;
        l->failure = (nib_error){NIB_OK, ""};
    }
    pthread_mutex_unlock(&d->lock);
    return status;
}

device_disk_seconds device_disk_time(device *base) {
    disk *d = disk_of(base);
    pthread_mutex_lock(&d->lock);
    const device_disk_seconds all = d->time;
    pthread_mutex_unlock(&d->lock);
    return all;
}

static nib_status disk_follow(device *base, device_lane name, device_mark mark, nib_error *err) {
    lane *l = lane_of(disk_of(base), name);
    if (!l)
        return disk_wait(base, mark, err);
    return queue(l, &(work){.kind = WORK_FOLLOW, .after = mark}, err);
}

static const device_kind device_disk_kind = {
    .tier = NIB_TIER_DISK,
    .close = disk_close,
    .info = disk_info,
    .alloc = disk_alloc,
    .free = disk_free,
    .copy = disk_copy,
    .copy_rows = disk_copy_rows,
    .mark = disk_mark,
    .wait = disk_wait,
    .follow = disk_follow,
    .whole_pages = true,
};
