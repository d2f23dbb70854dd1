/* cpu.c - a feature may be used if CPUID reports it, XGETBV shows that the system saves its registers, and
 * NIBBLE_CPU allows it. */
#include "base/cpu.h"

#include "base/num.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *base;
    size_t at; /* of the field */
} known[] = {
#define CPU_X(field, name, base) {name, base, offsetof(cpu_features, field)},
    CPU_FEATURES(CPU_X)
#undef CPU_X
};

static cpu_features features;
static char model_name[64] = "unknown processor";
static bool is_intel;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Bits of XCR0 (Intel SDM vol. 1, 13.3). */
#define XCR0_AVX    0x6u
#define XCR0_AVX512 0xe6u
#define XCR0_AMX    0x60000u

/* Linux gives the AMX tile registers only to processes that ask (Documentation/arch/x86/xstate.rst). */
#define ARCH_REQ_XCOMP_PERM 0x1023
#define XFEATURE_XTILEDATA  18

static uint64_t xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low | (uint64_t)high << 32;
}

static bool bit(uint32_t word, int n) {
    return word >> n & 1;
}

static void detect_vendor(void) {
    uint32_t name[3], a;
    if (__get_cpuid(0, &a, &name[0], &name[2], &name[1]))
        is_intel = !memcmp(name, "GenuineIntel", sizeof name);
}

static void detect_name(void) {
    uint32_t words[12], a, b, c, d;
    if (!__get_cpuid(0x80000000u, &a, &b, &c, &d) || a < 0x80000004u)
        return;
    for (unsigned i = 0; i < 3; i++)
        __get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2], &words[4 * i + 3]);
    char text[sizeof words + 1];
    memcpy(text, words, sizeof words);
    text[sizeof words] = 0;
    const char *start = text + strspn(text, " ");
    size_t n = strlen(start);
    while (n > 0 && start[n - 1] == ' ')
        n--;
    if (n > 0) {
        memcpy(model_name, start, n);
        model_name[n] = 0;
    }
}

static void detect(void) {
    uint32_t a, b, c, d;
    detect_vendor();
    detect_name();
    if (!__get_cpuid(1, &a, &b, &c, &d) || !bit(c, 27)) /* OSXSAVE */
        return;
    uint64_t saved = xcr0();
    bool fma = bit(c, 12), f16c = bit(c, 29);
    uint32_t b7, c7, d7, a71, b71, c71, d71;
    if (!__get_cpuid_count(7, 0, &a, &b7, &c7, &d7))
        return;
    if (a < 1 || !__get_cpuid_count(7, 1, &a71, &b71, &c71, &d71))
        a71 = 0;
    cpu_features *f = &features;
    if ((saved & XCR0_AVX) == XCR0_AVX) {
        f->avx2 = bit(b7, 5) && fma && f16c;
        f->avx_vnni = f->avx2 && bit(a71, 4);
    }
    if (f->avx2 && (saved & XCR0_AVX512) == XCR0_AVX512) {
        f->avx512 = bit(b7, 16) && bit(b7, 17) && bit(b7, 30) && bit(b7, 31);
        f->avx512_vnni = f->avx512 && bit(c7, 11);
        f->avx512_vbmi = f->avx512 && bit(c7, 1);
        f->avx512_bitalg = f->avx512 && bit(c7, 12);
        f->avx512_vpopcntdq = f->avx512 && bit(c7, 14);
        f->avx512_bf16 = f->avx512 && bit(a71, 5);
    }
    if (f->avx512 && bit(d7, 24) && (saved & XCR0_AMX) == XCR0_AMX &&
        syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0) {
        f->amx_bf16 = bit(d7, 22);
        f->amx_int8 = bit(d7, 25);
    }
}
#else
static void detect(void) {}
#endif

static bool *field(cpu_features *f, size_t i) {
    return (bool *)((char *)f + known[i].at);
}

/* Index of the feature that is named by n bytes at text; the number of rows if there is none. */
static size_t find(const char *text, size_t n) {
    size_t i = 0;
    while (i < NUM_COUNT(known) && (strlen(known[i].name) != n || strncmp(known[i].name, text, n) != 0))
        i++;
    return i;
}

/* Allows the named feature and all that it builds on. */
static void allow(cpu_features *f, const char *text, size_t n) {
    for (size_t i = find(text, n); i < NUM_COUNT(known); i = find(known[i].base, strlen(known[i].base)))
        *field(f, i) = true;
}

/* The next word of NIBBLE_CPU; *at begins at the list and advances. NULL after the last. */
static const char *next_word(const char **at, size_t *n) {
    *at += strspn(*at, ",");
    const char *word = *at;
    *n = strcspn(word, ",");
    *at += *n;
    return *n ? word : NULL;
}

static const char *limit(void) {
    const char *list = getenv("NIBBLE_CPU");
    return list ? list : "";
}

static void detect_once(void) {
    detect();
    if (!*limit())
        return;
    cpu_features allowed = {0};
    size_t n;
    for (const char *at = limit(), *word; (word = next_word(&at, &n));)
        allow(&allowed, word, n);
    for (size_t i = 0; i < NUM_COUNT(known); i++)
        *field(&features, i) = *field(&features, i) && *field(&allowed, i);
}

const cpu_features *cpu_get(void) {
    pthread_once(&once, detect_once);
    return &features;
}

const char *cpu_unknown_name(void) {
    size_t n;
    for (const char *at = limit(), *word; (word = next_word(&at, &n));)
        if (find(word, n) == NUM_COUNT(known) && (n != strlen("x86-64") || strncmp(word, "x86-64", n) != 0))
            return word;
    return NULL;
}

bool cpu_has_all(const char *const *names, size_t n) {
    cpu_get();
    for (size_t i = 0; i < n && names[i]; i++) {
        const size_t row = find(names[i], strlen(names[i]));
        if (row == NUM_COUNT(known) || !*field(&features, row))
            return false;
    }
    return true;
}

const char *cpu_model_name(void) {
    pthread_once(&once, detect_once);
    return model_name;
}

bool cpu_is_intel(void) {
    pthread_once(&once, detect_once);
    return is_intel;
}
