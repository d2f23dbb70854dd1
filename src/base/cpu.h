/* cpu.h - what this processor and the system really let us use (CPUID and XGETBV), found once. */
#ifndef NIB_BASE_CPU_H
#define NIB_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>

/* X(field, name as NIBBLE_ISA and `nibble hw` spell it) */
#define CPU_FEATURES(X)                                                                                      \
    X(avx2, "avx2") /* with fma and f16c */                                                                  \
    X(avx_vnni, "avx_vnni")                                                                                  \
    X(avx512, "avx512") /* f, bw, dq, vl */                                                                  \
    X(avx512_vnni, "avx512_vnni")                                                                            \
    X(avx512_bf16, "avx512_bf16")                                                                            \
    X(avx512_bitalg, "avx512_bitalg")                                                                        \
    X(avx512_vpopcntdq, "avx512_vpopcntdq")                                                                  \
    X(amx_int8, "amx_int8")                                                                                  \
    X(amx_bf16, "amx_bf16")

typedef struct cpu_features {
#define CPU_X(field, name) bool field;
    CPU_FEATURES(CPU_X)
#undef CPU_X
} cpu_features;

const cpu_features *cpu_get(void);
/* Whether this processor has every feature of n names, or of as many as come before a NULL; false when there
 * is no such name. */
bool cpu_has_all(const char *const *names, size_t n);
const char *cpu_model_name(void); /* for people; dispatch looks at features only */

#endif
