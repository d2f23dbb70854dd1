/* kernel_map.h - the strategy that computes a product of a given shape: the kernel map measured on this
 * machine, and the table that a product reads (ADAngel, section 4.4, where the map is a policy).
 *
 * A map has two levels: for each shape (rows, columns, format, bits of the activations) the packing of its
 * matrices; and for each shape in its packing and each bucket of activation rows a strategy, or none. It is
 * read once, when an engine is opened (its file: profile/kernel_map_file.h). For each of the model's matrices
 * kernel_map_packing gives the packing, and kernel_map_choice decides every bucket, by the map or else by the
 * rule. A product only looks up the bucket of its number of rows (choice_pick). All strategies give the same
 * bits, so a map affects only time. Read-only after construction; no locks. */
#ifndef NIB_KERNELS_KERNEL_MAP_H
#define NIB_KERNELS_KERNEL_MAP_H

#include "base/status.h"
#include "kernels/strategy.h"

enum { ROW_BUCKETS = 10, KERNEL_MAP_MAX_SHAPES = 4096 };

/* The buckets of activation rows: 1, 2, 3, 4, 5-8, 9-16, 17-32, 33-64, 65-128, and more. */
static inline int row_bucket(int64_t n_row) {
    if (n_row <= 4)
        return n_row < 1 ? 0 : (int)n_row - 1;
    return n_row > 128 ? ROW_BUCKETS - 1 : 65 - __builtin_clzll((unsigned long long)n_row - 1);
}
int64_t row_bucket_first(int bucket);
int64_t row_bucket_last(int bucket);      /* STRATEGY_ANY_ROWS for the last one */
const char *row_bucket_name(int bucket);  /* "1", "5-8", "129-" */
int row_bucket_by_name(const char *name); /* -1: there is none of that name */

typedef struct kernel_map_shape {
    int64_t n, k;
    char format[PACK_NAME]; /* pack_name of the weights */
    int act_bits;           /* of the activations */
    pack_kind packing;      /* the packing of its matrices, for a format that has parts and planes */
    const strategy *by_bucket[ROW_BUCKETS]; /* NULL: no choice */
} kernel_map_shape;

typedef struct kernel_map {
    kernel_map_shape *shapes;
    int n_shape;
    size_t cap;
} kernel_map; /* zeroed: no shapes */

/* Frees the shapes and leaves the map empty. */
void kernel_map_clear(kernel_map *p);
/* The shape's entry; NULL: there is none. */
const kernel_map_shape *kernel_map_find(const kernel_map *p, int64_t n, int64_t k, const char *format,
                                        int act_bits);
/* The shape's entry, added when it is not there. NIB_E_USAGE beyond KERNEL_MAP_MAX_SHAPES. */
nib_status kernel_map_add(kernel_map *p, int64_t n, int64_t k, const char *format, int act_bits,
                          kernel_map_shape **out, nib_error *err);

/* The packing of a matrix of this format (PACK_TILE): the map's, else the format's own. p may be NULL. */
pack_kind kernel_map_packing(const kernel_map *p, int64_t n, int64_t k, const pack_format *f, int act_bits);

/* The choice of one matrix: a strategy for every bucket, never NULL. */
struct kernel_choice {
    const strategy *by_bucket[ROW_BUCKETS];
};

/* Whether a strategy computes products of this format for every number of rows in a bucket. */
bool row_bucket_can(const strategy *s, const pack_format *f, int bucket);
/* The rule's strategy for a bucket: the one of its last row, or else of its first, that can compute the whole
 * bucket. Never NULL. */
const strategy *row_bucket_rule(const kernel_table *t, const pack_format *f, int bucket);
/* The choice of a matrix. The map's strategy is used if it can compute the bucket. p may be NULL: the rule
 * alone. f must be PACK_TILE. */
void kernel_map_choice(const kernel_map *p, const kernel_table *t, int64_t n, int64_t k, const pack_format *f,
                       int act_bits, kernel_choice *out);

static inline const strategy *choice_pick(const kernel_choice *r, int64_t n_row) {
    return r->by_bucket[row_bucket(n_row)];
}

#endif
