/* pack_isa.c - chooses the packers that this processor can run. */
#include "numbers/pack_isa.h"

#include "base/cpu.h"
#include "base/num.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 8 };

static struct {
    pack_isa rows[MAX]; /* by rank, each completed with functions that it inherits */
    int n, best;
} known;
static pthread_once_t known_once = PTHREAD_ONCE_INIT;

static void inherit(pack_isa *to, const pack_isa *from) {
    to->tile = to->tile ? to->tile : from->tile;
    to->round = to->round ? to->round : from->round;
    to->encode = to->encode ? to->encode : from->encode;
    for (int i = 0; i < TYPE_COUNT; i++)
        to->chunk[i] = to->chunk[i] ? to->chunk[i] : from->chunk[i];
}

/* Whether NIBBLE_ISA excludes it. */
static bool is_beyond(const pack_isa *isa, const char *wanted) {
    for (size_t i = 0; i < NUM_COUNT(isa->beyond) && isa->beyond[i]; i++)
        if (!strcmp(isa->beyond[i], wanted))
            return true;
    return false;
}

static void find(void) {
    for (int i = 0; pack_isas[i] && known.n < MAX; i++) {
        if (!cpu_has_all(pack_isas[i]->needs, NUM_COUNT(pack_isas[i]->needs)))
            continue;
        int at = known.n++;
        for (; at > 0 && known.rows[at - 1].rank > pack_isas[i]->rank; at--)
            known.rows[at] = known.rows[at - 1];
        known.rows[at] = *pack_isas[i];
    }
    for (int i = 1; i < known.n; i++)
        inherit(&known.rows[i], &known.rows[i - 1]);
    const char *wanted = getenv("NIBBLE_ISA");
    for (int i = 0; i < known.n; i++)
        if (!wanted || !is_beyond(&known.rows[i], wanted))
            known.best = i;
}

const pack_isa *pack_isa_at(int i) {
    pthread_once(&known_once, find);
    return i >= 0 && i < known.n ? &known.rows[i] : NULL;
}

const pack_isa *pack_isa_best(void) {
    pthread_once(&known_once, find);
    return &known.rows[known.best];
}
