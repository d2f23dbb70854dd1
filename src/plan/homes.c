/* homes.c - see homes.h. */
#include "plan/homes.h"

#include "base/num.h"

enum { CUT = 4096 }; /* bytes: unknown pages may have any multiple of it */

static uint64_t max_sum_or(uint64_t a, uint64_t b) {
    uint64_t sum;
    return num_add_u64(a, b, &sum) ? sum : UINT64_MAX;
}

/* The state of filling a place with runs: consecutive pages of one block. */
typedef struct filler {
    const pager_page *pages;
    int n_page;
    uint8_t *home_of;
} filler;

/* The end (exclusive) of the run that begins with page `first`. */
static int end_of_run(const filler *f, int first) {
    const pager_page *at = &f->pages[first];
    int i = first;
    while (i < f->n_page && f->pages[i].block == at->block && f->pages[i].table == at->table &&
           f->pages[i].chosen == at->chosen)
        i++;
    return i;
}

/* Assigns further pages of a run, in order, while they fit the capacity; returns their bytes. */
static uint64_t fill_some(const filler *f, int first, int end, int place, uint64_t capacity) {
    uint64_t filled = 0;
    for (int i = first; i < end; i++) {
        if (f->home_of[i] != HOME_OPEN)
            continue;
        if (f->pages[i].bytes > capacity - filled)
            break;
        filled += f->pages[i].bytes;
        f->home_of[i] = (uint8_t)place;
    }
    return filled;
}

/* Whether the page is not read by every pass. */
static bool is_apart(const pager_page *page) {
    return page->table || page->chosen;
}

static uint64_t open_bytes(const filler *f, int first, int end) {
    uint64_t sum = 0;
    for (int i = first; i < end; i++)
        sum += is_apart(&f->pages[i]) || f->home_of[i] != HOME_OPEN ? 0 : f->pages[i].bytes;
    return sum;
}

/* Assigns whole experts while they fit the capacity, those of every block by rank; returns their bytes. */
static uint64_t fill_experts(const filler *f, int place, uint64_t capacity) {
    uint64_t filled = 0;
    int n = 0;
    for (int i = 0; i < f->n_page; i++)
        n = NUM_MAX(n, f->pages[i].rank + 1);
    for (int e = 0; e < n; e++)
        for (int i = 0; i < f->n_page; i++) {
            uint64_t bytes = 0;
            if (!f->pages[i].leads || f->pages[i].rank != e || f->home_of[i] != HOME_OPEN)
                continue;
            int j = i;
            do
                bytes += f->pages[j].bytes;
            while ((j = f->pages[j].other));
            if (bytes > capacity - filled)
                continue;
            filled += bytes;
            j = i;
            do
                f->home_of[j] = (uint8_t)place;
            while ((j = f->pages[j].other));
        }
    return filled;
}

static void fill_place(const filler *f, int place, uint64_t capacity) {
    const uint64_t total = open_bytes(f, 0, f->n_page);
    const double share = total ? NUM_MIN((double)capacity / (double)total, 1.0) : 1.0;
    uint64_t seen = 0, filled = 0;
    for (int i = 0, end; i < f->n_page; i = end) {
        end = end_of_run(f, i);
        if (is_apart(&f->pages[i]))
            continue;
        seen += open_bytes(f, i, end);
        const uint64_t now = (uint64_t)(share * (double)seen);
        if (now > filled)
            filled += fill_some(f, i, end, place, NUM_MIN(now, capacity) - filled);
    }
    for (int i = 0, end; i < f->n_page; i = end) { /* capacity that rounding has left */
        end = end_of_run(f, i);
        if (!is_apart(&f->pages[i]))
            filled += fill_some(f, i, end, place, capacity - filled);
    }
    filled += fill_experts(f, place, capacity - filled);
    for (int i = 0; i < f->n_page; i++)
        if (f->pages[i].head)
            filled += fill_some(f, i, i + 1, place, capacity - filled);
}

void homes_spread(const pager_page *pages, int n_page, const uint64_t left[PLACES], uint8_t *home_of) {
    static const int faster[] = {PLACE_GPU, PLACE_RAM};
    const filler f = {pages, n_page, home_of};
    for (size_t i = 0; i < NUM_COUNT(faster); i++)
        fill_place(&f, faster[i], left[faster[i]]);
    for (int i = 0; i < n_page; i++)
        if (home_of[i] == HOME_OPEN)
            home_of[i] = PLACE_DISK;
}

void homes_share(const uint64_t *bytes, int n_block, uint64_t capacity, uint64_t *kept) {
    uint64_t total = 0, seen = 0, all = 0;
    for (int b = 0; b < n_block; b++) {
        total += bytes[b];
        kept[b] = 0;
    }
    const double share = total ? NUM_MIN((double)capacity / (double)total, 1.0) : 1.0;
    for (int round = 0; round < 2; round++) /* the second round distributes what rounding down has left */
        for (int b = 0; b < n_block; b++) {
            seen += round ? 0 : bytes[b];
            const uint64_t max = round ? capacity : (uint64_t)(share * (double)seen);
            const uint64_t left = max > all ? max - all : 0, want = bytes[b] - kept[b];
            const uint64_t more = want <= left ? want : left / CUT * CUT;
            kept[b] += more;
            all += more;
        }
}

uint64_t homes_bytes(const pager_page *pages, int n_page, const uint8_t *home_of, int place) {
    uint64_t sum = 0;
    for (int i = 0; i < n_page; i++)
        sum += home_of[i] == place ? pages[i].bytes : 0;
    return sum;
}

uint64_t homes_whole(const pager_need *need, uint64_t others) {
    return max_sum_or(need->image, NUM_MAX(need->staging, others));
}

/* Staging for loading adds nothing: it is freed before the ring is allocated. */
uint64_t homes_min(const pager_need *need, uint64_t others) {
    const uint64_t running = max_sum_or(need->ring + need->row, others);
    return max_sum_or(need->vectors, NUM_MAX(running, need->stream_staging));
}
