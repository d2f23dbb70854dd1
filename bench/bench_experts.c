/* bench_experts.c - how many uses of experts find them in memory: recorded choices of a router are replayed
 * by the table that the pager uses (weights/expert_table.h), by the least recently used order (a part of the
 * slots for each block), and by the order that knows the future (the same parts).
 *
 *     build/bench_experts [--percent 6,12,24] TRACE.csv...
 *
 * A trace has lines `turn,phase,step,layer,slot,expert,...`, in the order of the choices; lines that begin
 * with
 * '#' or a letter are skipped. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/expert_table.h"

enum { MAX_CHOICE = 1 << 20, MAX_EXPERT = 1 << 16, NEVER = INT32_MAX };

/* The choices of one visit are consecutive. */
typedef struct choice {
    int visit, block, expert;
    int next; /* the index of its next use; NEVER */
} choice;

static choice all[MAX_CHOICE];
static int n_choice, n_block, n_expert;

static bool load(const char *path) {
    FILE *f = fopen(path, "r");
    char line[256];
    int turn, phase, step, block, k, e, before[4] = {-1, -1, -1, -1}, visit = -1;
    static int last[MAX_EXPERT];
    n_choice = n_block = n_expert = 0;
    if (!f)
        return false;
    while (fgets(line, sizeof line, f) && n_choice < MAX_CHOICE) {
        if (sscanf(line, "%d,%d,%d,%d,%d,%d", &turn, &phase, &step, &block, &k, &e) != 6 || block < 0 ||
            e < 0)
            continue;
        const int now[4] = {turn, phase, step, block};
        visit += memcmp(now, before, sizeof now) != 0;
        memcpy(before, now, sizeof now);
        all[n_choice++] = (choice){visit, block, e, NEVER};
        n_block = block >= n_block ? block + 1 : n_block;
        n_expert = e >= n_expert ? e + 1 : n_expert;
    }
    fclose(f);
    if (n_choice == 0 || (int64_t)n_block * n_expert > MAX_EXPERT)
        return false;
    for (int i = 0; i < n_block * n_expert; i++)
        last[i] = NEVER;
    for (int i = n_choice - 1; i >= 0; i--) {
        int *at = &last[all[i].block * n_expert + all[i].expert];
        all[i].next = *at;
        *at = i;
    }
    return true;
}

/* The number of choices of the visit that begins with choice i. */
static int visit_length(int i) {
    int n = 1;
    while (i + n < n_choice && all[i + n].visit == all[i].visit)
        n++;
    return n;
}

static double by_table(int n_slot) {
    static expert experts[MAX_EXPERT];
    static expert_slot slots[MAX_EXPERT];
    static int32_t asked[MAX_EXPERT];
    static expert_use uses[MAX_EXPERT];
    expert_table t = {
        .experts = experts, .n_expert = n_block * n_expert, .slots = slots, .n_slot = n_slot, .asked = asked};
    for (int i = 0; i < t.n_expert; i++)
        experts[i] = (expert){.slot = -1};
    for (int i = 0; i < n_slot; i++)
        slots[i] = (expert_slot){EXPERT_EMPTY, -1, 0};
    for (int i = 0, n; i < n_choice; i += n) {
        int at, before;
        n = visit_length(i);
        for (int j = 0; j < n; j++)
            uses[j] = (expert_use){all[i + j].expert, 1};
        expert_table_ask(&t, all[i].block * n_expert, n_expert, uses, n, 1, false);
        while (t.n_asked > 0) {
            while ((at = expert_table_read(&t, &before)) >= 0)
                expert_table_arrived(&t, at, true);
            while ((at = expert_table_take(&t)) >= 0)
                expert_table_end(&t, at);
        }
    }
    return (double)t.n_hit / (double)t.n_used;
}

/* Each block has n_slot slots; what leaves is the one with the smallest key. */
static double by_order(int n_slot, bool knows_future) {
    static double key[MAX_EXPERT];
    static bool here[MAX_EXPERT];
    static int n_here[MAX_EXPERT];
    int n_hit = 0;
    memset(here, 0, sizeof here);
    memset(n_here, 0, sizeof n_here);
    for (int i = 0; i < n_choice; i++) {
        const int b = all[i].block, first = b * n_expert, at = first + all[i].expert;
        n_hit += here[at];
        if (!here[at] && n_here[b] == n_slot) {
            int out = -1;
            for (int j = first; j < first + n_expert; j++)
                if (here[j] && (out < 0 || key[j] < key[out]))
                    out = j;
            here[out] = false;
            n_here[b]--;
        }
        n_here[b] += !here[at];
        here[at] = true;
        key[at] = knows_future ? -(double)all[i].next : i;
    }
    return (double)n_hit / n_choice;
}

int main(int argc, char **argv) {
    const char *percents = "6,12,24,50";
    int first = 1;
    if (argc > 2 && !strcmp(argv[1], "--percent")) {
        percents = argv[2];
        first = 3;
    }
    if (first >= argc) {
        fprintf(stderr, "usage: bench_experts [--percent 6,12,24] TRACE.csv...\n");
        return 2;
    }
    printf("%-28s %8s %8s %8s %8s\n", "trace", "in RAM", "LRU", "nibble", "optimum");
    for (int i = first; i < argc; i++) {
        if (!load(argv[i])) {
            fprintf(stderr, "%s: no choices\n", argv[i]);
            return 4;
        }
        const char *name = strrchr(argv[i], '/') ? strrchr(argv[i], '/') + 1 : argv[i];
        for (const char *p = percents; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
            const int each = (int)lround(atof(p) / 100 * n_expert);
            const int longest = visit_length(0), n_slot = each > longest ? each : longest;
            printf("%-28s %6.1f %% %8.3f %8.3f %8.3f\n", name, 100.0 * n_slot / n_expert,
                   by_order(n_slot, false), by_table(n_slot * n_block), by_order(n_slot, true));
        }
    }
    return 0;
}
