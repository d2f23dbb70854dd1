/* kernels.c - fills the op table for this processor, and computes how much memory ops need. */
#include "kernels/kernels.h"
#include "nib_tools.h"

#include "base/num.h"
#include "base/status.h"
#include "kernels/act8.h"
#include "kernels/kernel_map.h"
#include "kernels/registry.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ISA = 16 };

static struct {
    const kernel_isa *rows[MAX_ISA]; /* the folders that can run here, by rank */
    kernel_table tables[MAX_ISA];
    int n, chosen;
} known;
static pthread_once_t known_once = PTHREAD_ONCE_INIT;

/* Inserts the folder's strategies before those of smaller instruction sets. */
static void add_strategies(kernel_table *t, const kernel_isa *isa) {
    int n = 0;
    while (isa->strategies && isa->strategies[n])
        n++;
    n = NUM_MIN(n, KERNELS_MAX_STRATEGY - t->n_strategy);
    for (int i = t->n_strategy - 1; i >= 0; i--) {
        t->strategies[i + n] = t->strategies[i];
        t->strategy_isa[i + n] = t->strategy_isa[i];
    }
    for (int i = 0; i < n; i++) {
        t->strategies[i] = isa->strategies[i];
        t->strategy_isa[i] = isa->name;
    }
    t->n_strategy += n;
}

static void find_tables(void) {
    for (int i = 0; kernel_isas[i] && known.n < MAX_ISA; i++) {
        if (!cpu_has_all(kernel_isas[i]->needs, NUM_COUNT(kernel_isas[i]->needs)))
            continue;
        int at = known.n++;
        for (; at > 0 && known.rows[at - 1]->rank > kernel_isas[i]->rank; at--)
            known.rows[at] = known.rows[at - 1];
        known.rows[at] = kernel_isas[i];
    }
    kernel_table table = {0};
    for (int i = 0; i < known.n; i++) {
        known.rows[i]->install(&table);
        add_strategies(&table, known.rows[i]);
        table.isa = known.rows[i]->name;
        known.tables[i] = table;
    }
    known.chosen = known.n - 1;
    const char *wanted = getenv("NIBBLE_ISA");
    for (int i = 0; wanted && i < known.n; i++)
        if (!strcmp(known.rows[i]->name, wanted))
            known.chosen = i;
}

const kernel_table *kernels_table(void) {
    pthread_once(&known_once, find_tables);
    return &known.tables[known.chosen];
}

const kernel_table *kernels_table_for(const char *isa) {
    pthread_once(&known_once, find_tables);
    for (int i = 0; i < known.n; i++)
        if (!strcmp(known.rows[i]->name, isa))
            return &known.tables[i];
    return NULL;
}

const kernel_isa *kernels_folder_at(int i) {
    pthread_once(&known_once, find_tables);
    return i >= 0 && i < known.n ? known.rows[i] : NULL;
}

const char *kernels_isa_at(int i) {
    pthread_once(&known_once, find_tables);
    return i >= 0 && i < known.n ? known.rows[i]->name : NULL;
}

nib_status nib_processor_check(nib_error *err) {
#define CPU_X(field, name, base) ", " name
    if (cpu_unknown_name())
        return nib_fail(
            err, NIB_E_USAGE,
            "NIBBLE_CPU: expected names among x86-64" CPU_FEATURES(CPU_X) ", separated by commas, found '%s'",
            cpu_unknown_name());
#undef CPU_X
    const char *isa = getenv("NIBBLE_ISA");
    if (!isa || !*isa || kernels_table_for(isa))
        return NIB_OK;
    char names[128] = "";
    size_t n = 0;
    for (int i = 0; kernels_isa_at(i) && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", kernels_isa_at(i));
    return nib_fail(err, NIB_E_USAGE, "NIBBLE_ISA: expected one of %s, found '%s'", names, isa);
}

const strategy *strategy_by_rule(const kernel_table *t, const pack_format *f, int64_t n_row) {
    for (int i = 0; i < t->n_strategy; i++) {
        const strategy *s = t->strategies[i];
        if (n_row >= s->rule_from && n_row <= s->rule_rows && s->can(f, n_row) &&
            (!s->suits || s->suits(f, n_row)))
            return s;
    }
    return t->strategies[t->n_strategy - 1];
}

void linear_run(const kernel_table *t, const linear_args *a, int64_t n0, int64_t n1) {
    if (n0 >= n1 || a->n_row <= 0)
        return;
    if (a->w->format.layout != PACK_TILE) {
        const bool sliced =
            a->sliced && t->linear_sliced && t->sliced_suits((type_id)a->w->format.type, a->n_row);
        (sliced ? t->linear_sliced : t->linear_rows)(a, n0, n1);
    } else if (a->choice) {
        choice_pick(a->choice, a->n_row)->run(a, n0, n1);
    } else {
        strategy_by_rule(t, &a->w->format, a->n_row)->run(a, n0, n1);
    }
    if (a->w->format.sparse)
        linear_sparse(a, n0, n1);
}

act_format act_format_for(const pack_format *f, int bits, int n8) {
    const bool row = f->scale == PACK_SCALE_TWO, short_group = f->group <= ACT8_GROUP;
    const int group = row ? PACK_GROUP_ROW : short_group ? ACT8_GROUP : f->group;
    return (act_format){.bits = (uint8_t)bits,
                        .group = (uint8_t)group,
                        .n8 = (uint8_t)(bits == 4 ? n8 : 0),
                        .rotated = f->rotated};
}

/* ---- outliers ---- */

/* A massive activation is a value that is far larger than the others of its row. The first token and some
 * separators have them, and every later token attends to those rows. In 8 bits such a value costs too much:
 * its neighbours in the group become zero, and its own error is as large as they are. So this outlier counts
 * as zero among the row's integers. Its product, a column of the weights times a float, is added to the
 * integer result.
 *
 * In 4 bits a value of a few times the others has the same effect on its group of 32. SmolLM2, perplexity of
 * 6 chunks of WikiText-2 with 4 bits everywhere (16 bits: 14.96): 24.0 with the values that 8 bits leave out;
 * 18.2, 17.1 and 16.8 with up to 16 that are beyond 6, 5 and 4 times the root mean square; 17.0 with up to
 * 32. */
static void put_in_order(outlier *list, int n) {
    for (int i = 1; i < n; i++)
        for (int j = i; j > 0 && list[j].at < list[j - 1].at; j--) {
            const outlier s = list[j];
            list[j] = list[j - 1];
            list[j - 1] = s;
        }
}

/* A large outlier may hide another one, so the test is repeated. */
int act_extract_outliers(const kernel_table *t, int bits, const float *x, int64_t k, float *without,
                         outlier *out) {
    const float share = act_outlier_share(bits, k);
    const int max = act_max_outliers(bits);
    outlier found[ACT_OUTLIERS];
    int n_found = t->outliers(x, k, share, found), all = 0;
    if (n_found > 0 && without != x)
        memcpy(without, x, (size_t)k * sizeof *x);
    for (; n_found > 0 && all < max; n_found = t->outliers(without, k, share, found))
        for (int i = 0; i < n_found && all < max; i++) {
            without[found[i].at] = 0;
            out[all++] = found[i];
        }
    put_in_order(out, all);
    return all;
}

size_t act_row_bytes(act_format f, int64_t k) {
    return (size_t)act_layout_of(f, k).bytes;
}

size_t linear_scratch_bytes(bool sliced) {
    pthread_once(&known_once, find_tables);
    const kernel_table *richest = &known.tables[known.n - 1];
    size_t max = NUM_MAX(STRATEGY_SCRATCH, sliced ? richest->sliced_scratch : 0);
    for (int i = 0; i < richest->n_strategy; i++)
        max = NUM_MAX(max, richest->strategies[i]->scratch);
    return max;
}

size_t linear_scratch_touched(const pack_format *f, int64_t n_row, int64_t k, bool sliced) {
    const kernel_table *t = kernels_table();
    if (f->layout != PACK_TILE)
        return sliced ? t->sliced_scratch : 0;
    const strategy *s = strategy_by_rule(t, f, n_row);
    return s->scratch_of ? s->scratch_of(n_row, k) : NUM_MAX(s->scratch, (size_t)STRATEGY_SCRATCH);
}
