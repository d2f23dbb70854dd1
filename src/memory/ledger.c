/* ledger.c - counts the bytes of every place by owner, under one lock. */
#include "memory/ledger.h"

#include "base/mem.h"
#include "base/num.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct account {
    uint64_t cap, planned, peak;
    uint64_t promised[NIB_N_OWNER];
    uint64_t resident[NIB_N_OWNER];
} account;

struct ledger {
    memory_places places;
    account of[PLACES];
    pthread_mutex_t *lock; /* apart, because functions that only read take it, too */
};

static const char *const owner_names[NIB_N_OWNER] = {"weights", "kv",     "activations",
                                                     "staging", "tables", "runtime"};

/* The value of a "Vm...: n kB" line of /proc/self/status, in bytes; 0: no such line. */
static uint64_t status_field(const char *text, const char *field) {
    const char *at = strstr(text, field);
    return at ? strtoull(at + strlen(field), NULL, 10) * 1024 : 0;
}

/* Zeros if the system reports no values. Uses no heap, because it runs while memory is short. */
static ledger_process look_at_system(void) {
    char text[8192];
    int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return (ledger_process){0, 0};
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return (ledger_process){status_field(text, "\nVmRSS:"), status_field(text, "\nVmHWM:")};
}

static ledger_process (*looker)(void) = look_at_system;

void ledger_set_process_usage(ledger_process (*look)(void)) {
    looker = look ? look : look_at_system;
}

ledger_process ledger_process_usage(void) {
    return looker();
}

static uint64_t sum(const uint64_t of[NIB_N_OWNER]) {
    uint64_t total = 0;
    for (int i = 0; i < NIB_N_OWNER; i++)
        total += of[i];
    return total;
}

static void note_peak(account *a) {
    a->peak = NUM_MAX(a->peak, sum(a->resident));
}

nib_status ledger_open(memory_places places, ledger **out, nib_error *err) {
    ledger *l = mem_calloc(1, sizeof *l);
    pthread_mutex_t *lock = mem_calloc(1, sizeof *lock);
    if (!l || !lock) {
        mem_free(l);
        mem_free(lock);
        return nib_fail_nomem(err, sizeof *l + sizeof *lock, "the memory ledger");
    }
    pthread_mutex_init(lock, NULL);
    l->lock = lock;
    l->places = places;
    for (int i = 0; i < PLACES; i++)
        l->of[i].cap = places.of[i].capacity;
    account *ram = &l->of[PLACE_RAM];
    if (ram->cap != NIB_AUTO)
        mem_return_unused();
    uint64_t now = ledger_process_usage().now;
    uint64_t need = now + (ram->cap == NIB_AUTO ? 0 : LEDGER_RUNTIME_MARGIN);
    if (need > ram->cap) {
        char cap[32], have[32];
        nib_status status =
            nib_fail(err, NIB_E_NOFIT, "RAM: the process alone needs %s, which exceeds the cap of %s",
                     num_format_cap(need, have), num_format_size(ram->cap, cap));
        ledger_close(l);
        return status;
    }
    ram->promised[NIB_OWNER_RUNTIME] = need;
    ram->resident[NIB_OWNER_RUNTIME] = now;
    note_peak(ram);
    *out = l;
    return NIB_OK;
}

void ledger_close(ledger *l) {
    if (!l)
        return;
    pthread_mutex_destroy(l->lock);
    mem_free(l->lock);
    mem_free(l);
}

static nib_status refuse(const account *a, int place, int owner, uint64_t n_byte, uint64_t held,
                         nib_error *err) {
    char asked[32], left[32], cap[32], would[32];
    uint64_t need;
    if (!num_add_u64(held, n_byte, &need))
        need = UINT64_MAX - 1;
    return nib_fail(err, NIB_E_NOFIT,
                    "%s: %s needs %s, but %s is free under the cap of %s; at least %s is needed",
                    place_names[place], owner_names[owner], num_format_size(n_byte, asked),
                    num_format_size(a->cap > held ? a->cap - held : 0, left), num_format_size(a->cap, cap),
                    num_format_cap(need, would));
}

nib_status ledger_reserve(ledger *l, int place, int owner, uint64_t n_byte, nib_error *err) {
    account *a = &l->of[place];
    nib_status status = NIB_OK;
    pthread_mutex_lock(l->lock);
    uint64_t held = sum(a->promised);
    if (held > a->cap || n_byte > a->cap - held)
        status = refuse(a, place, owner, n_byte, held, err);
    else
        a->promised[owner] += n_byte;
    pthread_mutex_unlock(l->lock);
    return status;
}

void ledger_touch(ledger *l, int place, int owner, uint64_t n_byte) {
    pthread_mutex_lock(l->lock);
    account *a = &l->of[place];
    a->resident[owner] += n_byte;
    assert(a->resident[owner] <= a->promised[owner]);
    note_peak(a);
    pthread_mutex_unlock(l->lock);
}

void ledger_unreserve(ledger *l, int place, int owner, uint64_t n_byte, uint64_t n_touched) {
    pthread_mutex_lock(l->lock);
    account *a = &l->of[place];
    assert(a->promised[owner] >= n_byte && a->resident[owner] >= n_touched);
    a->promised[owner] -= n_byte;
    a->resident[owner] -= n_touched;
    pthread_mutex_unlock(l->lock);
}

nib_status ledger_charge(ledger *l, int place, int owner, uint64_t n_byte, nib_error *err) {
    NIB_TRY(ledger_reserve(l, place, owner, n_byte, err));
    ledger_touch(l, place, owner, n_byte);
    return NIB_OK;
}

void ledger_release(ledger *l, int place, int owner, uint64_t n_byte) {
    ledger_unreserve(l, place, owner, n_byte, n_byte);
}

void ledger_measure_runtime(ledger *l, bool grows) {
    if (grows && l->of[PLACE_RAM].cap != NIB_AUTO)
        mem_return_unused();
    uint64_t now = ledger_process_usage().now;
    pthread_mutex_lock(l->lock);
    account *a = &l->of[PLACE_RAM];
    uint64_t others = sum(a->resident) - a->resident[NIB_OWNER_RUNTIME];
    uint64_t runtime = now > others ? now - others : 0;
    a->resident[NIB_OWNER_RUNTIME] = runtime;
    uint64_t margin = grows && a->cap != NIB_AUTO ? LEDGER_RUNTIME_MARGIN : 0;
    a->promised[NIB_OWNER_RUNTIME] = NUM_MAX(a->promised[NIB_OWNER_RUNTIME], runtime + margin);
    note_peak(a);
    pthread_mutex_unlock(l->lock);
}

uint64_t ledger_promised(const ledger *l, int place) {
    pthread_mutex_lock(l->lock);
    uint64_t total = sum(l->of[place].promised);
    pthread_mutex_unlock(l->lock);
    return total;
}

uint64_t ledger_cap(const ledger *l, int place) {
    return l->of[place].cap;
}

uint64_t ledger_free(const ledger *l, int place) {
    uint64_t held = ledger_promised(l, place), cap = l->of[place].cap;
    if (cap == NIB_AUTO)
        return NIB_AUTO;
    return cap > held ? cap - held : 0;
}

void ledger_plan(ledger *l, int place, uint64_t n_byte) {
    pthread_mutex_lock(l->lock);
    l->of[place].planned = n_byte;
    pthread_mutex_unlock(l->lock);
}

void ledger_report(const ledger *l, nib_memory *out) {
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(l->lock);
    for (int i = 0; i < PLACES; i++) {
        const account *a = &l->of[i];
        const int kind = l->places.of[i].kind;
        out->tier[kind].cap = a->cap;
        out->tier[kind].planned = a->planned;
        out->tier[kind].peak = a->peak;
    }
    for (int i = 0; i < NIB_N_OWNER; i++)
        out->owner[i] = l->of[PLACE_RAM].resident[i];
    pthread_mutex_unlock(l->lock);
    out->rss_peak = ledger_process_usage().peak;
}
