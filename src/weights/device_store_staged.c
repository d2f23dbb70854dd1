/* device_store_staged.c - copies of resident weights from RAM to the device, through page-locked memory.
 *
 * A copy from other memory goes through the driver's own, by one thread: 7 GB/s on a host with an H200. Here
 * all threads fill one half while the other one is copied: 20 to 28 GB/s (docs/optimisation-log.md). The
 * memory is taken after the first block's pages were given back, which are more, and given back when the pass
 * ends. So the process's peak stays what it was. Without it weights are copied as they are. */
#include "weights/device_store_parts.h"

#include "base/num.h"

#include <string.h>

enum { MAX_HALF = 16 << 20, PAGE = 4096 };

static void fail(device_store *s) {
    store_staging_close(s);
    s->staging.failed = true;
}

bool store_staging_open(device_store *s) {
    store_staging *t = &s->staging;
    device *d = s->setup.device;
    const uint64_t half = NUM_MIN(s->given_back / 2 / PAGE * PAGE, (uint64_t)MAX_HALF);
    if (t->memory.at || t->failed || !s->setup.threads || !half)
        return t->memory.at;
    if (memory_region_open(&t->memory, device_host(), s->setup.ledger, NIB_OWNER_STAGING, 2 * half, false,
                           "copies to the device", NULL) != NIB_OK) {
        t->failed = true;
        return false;
    }
    t->pinned = d->kind->pin(d, t->memory.at, 2 * half, NULL) == NIB_OK;
    if (!t->pinned)
        fail(s);
    return t->pinned;
}

void store_staging_close(device_store *s) {
    store_staging *t = &s->staging;
    device *d = s->setup.device;
    for (int i = 0; i < 2; i++) /* a pass that failed may have left copies on their way */
        if (t->copied[i].at)
            d->kind->wait(d, t->copied[i], NULL);
    if (t->pinned)
        d->kind->unpin(d, t->memory.at, t->memory.bytes);
    memory_region_close(&t->memory);
    *t = (store_staging){.failed = false};
}

typedef struct filling {
    uint8_t *to;
    const uint8_t *from;
    uint64_t bytes;
} filling;

static void fill_part(void *arg, int thread, int n_thread) {
    enum { LINE = 64 };
    const filling *f = arg;
    int64_t begin, end;
    pool_split((int64_t)f->bytes, LINE, thread, n_thread, &begin, &end);
    memcpy(f->to + begin, f->from + begin, (size_t)(end - begin));
}

nib_status store_staging_copy(device_store *s, uint8_t *to, const uint8_t *from, uint64_t bytes,
                              nib_error *err) {
    store_staging *t = &s->staging;
    device *d = s->setup.device;
    const uint64_t each = t->memory.bytes / 2;
    for (uint64_t at = 0, n; at < bytes; at += n) {
        n = NUM_MIN(bytes - at, each);
        uint8_t *half = (uint8_t *)t->memory.at + (t->next ? each : 0);
        if (t->copied[t->next].at)
            NIB_TRY(d->kind->wait(d, t->copied[t->next], err));
        pool_run(s->setup.threads, fill_part, &(filling){half, from + at, n});
        NIB_TRY(d->kind->copy(d, DEVICE_LOAD_WEIGHTS, to + at, half, n, err));
        NIB_TRY(d->kind->mark(d, DEVICE_LOAD_WEIGHTS, &t->copied[t->next], err));
        t->next = 1 - t->next;
    }
    return NIB_OK;
}
