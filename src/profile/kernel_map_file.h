/* kernel_map_file.h - the kernel map (kernels/kernel_map.h) as a file, with the machine that it was measured
 * on.
 *
 * A small JSON file that a person can read, compare and edit, under $XDG_CACHE_HOME/nibble/kernels/, one for
 * each processor, instruction set, number of threads and set of strategies (they are in its name and in it):
 *
 *     {"nibble_kernel_map": 1,
 *      "machine": {"cpu": "...", "features": "avx2 ...", "cores": 2, "l1d": ..., "l2": ..., "l3": ...},
 *      "isa": "avx512", "threads": 2, "strategies": "0123456789abcdef",
 *      "products": [{"n": 1536, "k": 576, "format": "q4_1", "activation": "a8",
 *                    "rows": {"1": "avx512/padding.direct", "5-8": "avx512/padding.blocked"}},
 *                   {"n": 64, "k": 96, "format": "u2g32", "activation": "a4", "packing": "planes",
 *                    "rows": {}},
 *                   {"n": 64, "k": 96, "format": "u2g32p", "activation": "a4",
 *                    "rows": {"1": "avx512pop/bitwise"}}]}
 *
 * "packing": matrices of the format are packed in planes, and their kernels are listed under that name.
 *
 * The file is not trusted. A map of another machine is not an error: it is not used. A choice that names an
 * unknown strategy is skipped. A wrong map can only cost time (kernel_map.h). */
#ifndef NIB_PROFILE_KERNEL_MAP_FILE_H
#define NIB_PROFILE_KERNEL_MAP_FILE_H

#include "base/log.h"
#include "kernels/kernel_map.h"
#include "profile/machine.h"

/* The machine and the strategies that a map is for. */
typedef struct kernel_map_key {
    const machine *machine;
    const kernel_table *table;
    int n_thread;
} kernel_map_key;

/* A hash of the table's strategies: a map that was made with other strategies is not used. */
uint64_t kernel_map_strategies(const kernel_table *t);

/* The path of this key's map; caller frees with mem_free. NULL: no memory, or no cache folder. */
char *kernel_map_path(const kernel_map_key *key);

typedef struct kernel_map_report {
    int n_shape, n_choice; /* shapes and choices that were used */
    int n_left_out;        /* unknown shapes and choices, which are skipped */
    char other[160];       /* what differs if the map is another machine's; "": it is this machine's */
} kernel_map_report;

/* Adds the shapes of the text to *out, and replaces those that it has already. NIB_E_MODEL: it is no kernel
 * map. Another machine's map gives NIB_OK, adds nothing and fills report->other. */
nib_status kernel_map_parse(const char *text, size_t n_byte, const kernel_map_key *key, kernel_map *out,
                            kernel_map_report *report, nib_error *err);
/* The same from a file; NIB_E_NOTFOUND: no such file. */
nib_status kernel_map_load(const char *path, const kernel_map_key *key, kernel_map *out,
                           kernel_map_report *report, nib_error *err);
/* The file is whole or absent. Makes its folders. */
nib_status kernel_map_save(const char *path, const kernel_map_key *key, const kernel_map *p, nib_error *err);

#endif
