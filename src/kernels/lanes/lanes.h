/* lanes.h - the functions that a folder of kernels defines so that the float ops, written once in lanes/, can
 * be compiled for it.
 *
 * `vf` is 16 floats, `vm` a mask of 16 lanes. A folder defines them and the functions below in its own
 * lanes.h (static inline), then includes the ops. Every instruction set has the same 16 lanes and each
 * function is one correctly rounded operation, so the float ops give the same bits on all of them.
 *
 *   v_zero() v_set(f) v_load(p) v_store(p, v)        memory need not be aligned
 *   v_load_part(p, n) v_store_part(p, v, n)          the first n < 16 lanes; others: 0, not written
 *   v_add v_sub v_mul v_div                          rounded once
 *   v_fma(a, b, c) = a * b + c                       rounded once
 *   v_fnma(a, b, c) = c - a * b                      rounded once
 *   v_min(a, b) = a < b ? a : b                      so b if either is NaN
 *   v_max(a, b) = a > b ? a : b                      so b if either is NaN
 *   v_round(a)                                       to the nearest integer, ties to even
 *   v_abs(a) v_copysign(magnitude, sign)
 *   v_times_pow2(p, n)                               p * 2^n rounded once, p in 0.5..2, whole n in -152..130;
 *                                                    NaN if both are NaN
 *   v_less(a, b)                                     mask, false for NaN
 *   v_between(lo, hi)                                mask of the lanes lo <= i < hi (any ints)
 *   v_select(m, a, b)                                a where m, else b
 *   v_load_f16(p) v_load_f16_part(p, n) v_load_bf16(p)  16 halves widened
 *   v_store_f16(p, v)                                rounded to nearest even
 *   v_load_u8(p) v_load_u4(p, high)                  16 bytes, or the upper or lower 4 bits of each, widened
 *   v_load_e4m3(p) v_load_e2m1(p, high)              16 floats of 8 bits (not NaN), or of 4 bits, doubled
 *   v_sum(a)                                         lanes i and i + 8 first, then 4, 2, 1 apart
 *   v_largest(a)                                     v_max over the same tree
 *   v_before(&a, p)                                  p. The compiler computes `a` before it reads through the
 *                                                    result, where registers are few. No instruction
 *
 * and LANES_UNROLL before a loop of constant length that must unroll; ROWS_N, ROWS_M, ROWS_N1 (block of
 * linear_rows: weights' rows, activations' rows, weights' rows when there is one activation row),
 * ATTEND_TILE, ATTEND_VEC (pairs and vectors of accumulators beside each other in attend). */
#ifndef NIB_KERNELS_LANES_H
#define NIB_KERNELS_LANES_H

enum { LANES = 16 };

/* LANES_PLAIN: lanes are an array of 16 floats. Unrolled and inlined, they make functions that take a
 * compiler minutes, so loops are not unrolled. Under a sanitizer the vector lanes do so too. The order of
 * operations is the same either way.
 *
 * Under a sanitizer:
 * LANES_UNCHECKED: a function that reads and writes nothing but its arguments and its result. Checks of it
 * would find nothing, and would take most of a kernel's time. LANES_SHORT: a function of a few instructions,
 * which is inlined. The arguments and the result of a call would be copies in memory, and each copy would be
 * checked. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define LANES_SANITIZED
#endif
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LANES_SANITIZED
#endif
#ifdef LANES_SANITIZED
#define LANES_PLAIN
#define LANES_UNCHECKED __attribute__((no_sanitize("address", "undefined", "thread")))
#define LANES_SHORT     __attribute__((always_inline))
#else
#define LANES_UNCHECKED
#define LANES_SHORT
#endif
#ifdef LANES_PLAIN
#define LANES_UNROLL
#define LANES_INLINE static inline
#else
#ifdef __clang__
#define LANES_UNROLL _Pragma("clang loop unroll(full)")
#else
#define LANES_UNROLL _Pragma("GCC unroll 64")
#endif
#define LANES_INLINE static inline __attribute__((always_inline))
#endif

#endif
