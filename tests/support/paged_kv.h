/* paged_kv.h - keys and values of one layer in pages without order in memory, between guards. */
#ifndef NIB_TESTS_PAGED_KV_H
#define NIB_TESTS_PAGED_KV_H

#include "kernels/kernels.h"
#include "support/guard.h"

typedef struct paged_kv {
    kv_view view;
    guarded memory;  /* pages, then the newest positions of kv8 and kv4; filled with NaN */
    uint8_t **pages; /* and after them those of the newest positions */
} paged_kv;

/* For n positions. */
paged_kv paged_kv_open(type_id type, int64_t n, int64_t n_kv_head, int64_t d_head);
void paged_kv_close(paged_kv *kv);
/* kv8, kv4: decodes a packed position of one head to d_head floats. */
void kv_read(const kv_view *kv, bool is_value, int64_t head, int64_t position, float *out);

#endif
