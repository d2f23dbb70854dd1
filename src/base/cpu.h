/* cpu.h - the instruction sets that may be used, detected once: those that the processor has and the system
 * supports (CPUID and XGETBV), limited by NIBBLE_CPU.
 *
 * NIBBLE_CPU=LIST makes this processor act as a smaller one. LIST is names of features, separated by commas.
 * Each includes the features that it builds on; x86-64 is a processor with none of them. Kernels, packers and
 * tests ask only here, so a hidden feature is hidden from all of them. NIBBLE_ISA chooses among the remaining
 * kernels. */
#ifndef NIB_BASE_CPU_H
#define NIB_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>

/* X(field, name as NIBBLE_CPU and `nibble hw` spell it, the name of what it builds on) */
#define CPU_FEATURES(X)                                                                                      \
    X(avx2, "avx2", "x86-64") /* with fma and f16c */                                                        \
    X(avx_vnni, "avx_vnni", "avx2")                                                                          \
    X(avx512, "avx512", "avx2") /* f, bw, dq, vl */                                                          \
    X(avx512_vnni, "avx512_vnni", "avx512")                                                                  \
    X(avx512_bf16, "avx512_bf16", "avx512")                                                                  \
    X(avx512_vbmi, "avx512_vbmi", "avx512")                                                                  \
    X(avx512_bitalg, "avx512_bitalg", "avx512")                                                              \
    X(avx512_vpopcntdq, "avx512_vpopcntdq", "avx512")                                                        \
    X(amx_int8, "amx_int8", "avx512")                                                                        \
    X(amx_bf16, "amx_bf16", "avx512")

typedef struct cpu_features {
#define CPU_X(field, name, base) bool field;
    CPU_FEATURES(CPU_X)
#undef CPU_X
} cpu_features;

const cpu_features *cpu_get(void); /* static; detected at the first call, from any thread */
/* NIBBLE_CPU from its first unknown word (neither a feature nor x86-64) to its end, for an error message;
 * NULL if all words are known. With an unknown word no feature is allowed. */
const char *cpu_unknown_name(void);
/* Whether every feature in names[0..n) may be used; the list may end early with NULL. An unknown name counts
 * as missing. */
bool cpu_has_all(const char *const *names, size_t n);
const char *cpu_model_name(void); /* for people; dispatch looks at features only */
/* Whether Intel made the processor. Distances of prefetches depend on it; which kernels run does not. */
bool cpu_is_intel(void);

#endif
