/* guard.h - memory that ends exactly at the beginning of a page that cannot be accessed. */
#ifndef NIB_TESTS_GUARD_H
#define NIB_TESTS_GUARD_H

#include <stdbool.h>
#include <stddef.h>

enum { GUARD_FILL = 0xa5 };

typedef struct guarded {
    void *data; /* n bytes of GUARD_FILL; the byte after the last one, and the page before, cannot be accessed
                 */
    void *map;
    size_t n_map;
    bool read_only;
} guarded;

guarded
guard_open(size_t n_byte); /* data is aligned as far as n_byte allows (64 when it is a multiple of 64) */
void guard_read_only(guarded *g);
void guard_close(guarded *g);

#endif
