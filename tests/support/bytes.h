/* bytes.h - builds binary files piece by piece in a test's memory, and records offsets of fields to damage.
 */
#ifndef NIB_TESTS_BYTES_H
#define NIB_TESTS_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct bytes { /* zero it first */
    uint8_t data[16384];
    size_t n;
} bytes;

/* Each returns where it wrote. Running over the capacity fails the test. */
size_t bytes_put(bytes *b, const void *data, size_t n);
size_t bytes_u8(bytes *b, uint8_t v);
size_t bytes_u32(bytes *b, uint32_t v);
size_t bytes_u64(bytes *b, uint64_t v);
size_t bytes_f32(bytes *b, float v);
size_t bytes_text(bytes *b,
                  const char *text); /* GGUF: length in 8 bytes, then the text; returns the length's place */
void bytes_align(bytes *b, size_t to);

#endif
