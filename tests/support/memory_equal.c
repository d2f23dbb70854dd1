/* memory_equal.c - assert_memory_equal for large memory. cmocka compares byte after byte, which is two fifths
 * of the time of tests that compare models; memcmp compares first, and cmocka reports the difference. A
 * sanitizer checks the reads of memcmp, but not those of cmocka's library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

void __real__assert_memory_equal(const void *a, const void *b, size_t n, const char *file, int line);
void __wrap__assert_memory_equal(const void *a, const void *b, size_t n, const char *file, int line);

void __wrap__assert_memory_equal(const void *a, const void *b, size_t n, const char *file, int line) {
    if (memcmp(a, b, n) != 0)
        __real__assert_memory_equal(a, b, n, file, line);
}
