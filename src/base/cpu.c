/* cpu.c - CPUID says what the processor has, XGETBV what the system saves; both must agree. */
#include "base/cpu.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

static cpu_features features;
static char model_name[64] = "unknown processor";
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

const cpu_features *cpu_get(void) {
    pthread_once(&once, detect);
    return &features;
}

static bool has(const char *name) {
    const cpu_features *cpu = cpu_get();
#define CPU_X(field, spelled)                                                                                \
    if (!strcmp(name, spelled))                                                                              \
        return cpu->field;
    CPU_FEATURES(CPU_X)
#undef CPU_X
    return false;
}

bool cpu_has_all(const char *const *names, size_t n) {
    for (size_t i = 0; i < n && names[i]; i++)
        if (!has(names[i]))
            return false;
    return true;
}

const char *cpu_model_name(void) {
    pthread_once(&once, detect);
    return model_name;
}
