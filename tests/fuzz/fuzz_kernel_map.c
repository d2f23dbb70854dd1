/* Any bytes as a kernel map: read or refused; a map that was read gives every matrix a strategy that can
 * compute it. */
#include "profile/kernel_map_file.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse(const char *text, size_t n) {
    static const machine here = {.cpu = "a cpu", .features = "avx2", .n_core = 2, .l1d = 1, .l2 = 2, .l3 = 3};
    const kernel_table *t = kernels_table_for("ref");
    const kernel_map_key key = {&here, t, 2};
    kernel_map p = {0};
    kernel_map_report report;
    pack_format f;
    if (kernel_map_parse(text, n, &key, &p, &report, NULL) == NIB_OK && pack_choose(TYPE_Q4_0, 32, &f))
        for (int i = 0; i < p.n_shape; i++) {
            kernel_choice r;
            kernel_map_choice(&p, t, p.shapes[i].n, p.shapes[i].k, &f, p.shapes[i].act_bits, &r);
            for (int b = 0; b < ROW_BUCKETS; b++)
                if (!r.by_bucket[b] || !row_bucket_can(r.by_bucket[b], &f, b))
                    abort();
        }
    kernel_map_clear(&p);
}

/* As a whole file, and as the products of a map that belongs to the machine. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char head[] =
        "{\"nibble_kernel_map\":1,\"machine\":{\"cpu\":\"a cpu\",\"features\":\"avx2\","
        "\"cores\":2,\"l1d\":1,\"l2\":2,\"l3\":3},\"isa\":\"ref\",\"threads\":2,"
        "\"strategies\":\"%016llx\",\"products\":";
    char *text = malloc(sizeof head + size + 32);
    parse((const char *)data, size);
    if (!text)
        return 0;
    const int n = sprintf(text, head, (unsigned long long)kernel_map_strategies(kernels_table_for("ref")));
    memcpy(text + n, data, size);
    text[(size_t)n + size] = '}';
    parse(text, (size_t)n + size + 1);
    free(text);
    return 0;
}
