/* rotation.c - see rotation.h. */
#include "numbers/rotation.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

enum {
    MAX_ORDER = 512 /* of Paley's matrix: a row of it takes m^2 additions a column of the power of two */
};

/* ---- Paley's matrices ---- */

static bool is_prime(int64_t n) {
    for (int64_t i = 2; i * i <= n; i++)
        if (n % i == 0)
            return false;
    return n > 1;
}

/* The prime q with q + 1 = m and q = 3 modulo 4, or 2 (q + 1) = m and q = 1 modulo 4; 0: none. */
static int64_t prime_of(int64_t m) {
    if (m % 4 == 0 && is_prime(m - 1))
        return m - 1;
    return m % 4 == 0 && m / 2 % 4 == 2 && is_prime(m / 2 - 1) ? m / 2 - 1 : 0;
}

/* 1: a is a square modulo q and not 0; -1: it is not; 0: it is 0. */
static int residue(int64_t a, int64_t q) {
    a = (a % q + q) % q;
    for (int64_t i = 1; i < q && a; i++)
        if (i * i % q == a)
            return 1;
    return a ? -1 : 0;
}

/* Entry (i, k) of the matrix with zeros on its diagonal, of order q + 1, that both constructions begin with.
 */
static int conference(int64_t i, int64_t k, int64_t q) {
    if (i == 0 || k == 0)
        return i == k ? 0 : i == 0 || q % 4 == 1 ? 1 : -1;
    return residue(i - k, q);
}

static void fill_paley(int8_t *h, int64_t m, int64_t q) {
    static const int8_t off[2][2] = {{1, 1}, {1, -1}}, diagonal[2][2] = {{1, -1}, {-1, -1}};
    for (int64_t i = 0; i < m; i++)
        for (int64_t k = 0; k < m; k++) {
            if (q % 4 == 3) {
                h[i * m + k] = (int8_t)(conference(i, k, q) + (i == k));
                continue;
            }
            const int of = conference(i / 2, k / 2, q);
            h[i * m + k] = (int8_t)(of ? of * off[i % 2][k % 2] : diagonal[i % 2][k % 2]);
        }
}

/* ---- the rotation ---- */

/* The smallest order that leaves a power of two; 1: n is one, or no prime gives an order that does. */
static int64_t order_of(int64_t n) {
    int64_t m = n;
    while (m % 2 == 0)
        m /= 2;
    for (; m > 1 && m <= MAX_ORDER && n % m == 0; m *= 2)
        if (prime_of(m))
            return m;
    return 1;
}

nib_status rotation_open(rotation *r, int64_t n, nib_error *err) {
    const int64_t m = order_of(n);
    uint64_t seed = (uint64_t)n;
    *r = (rotation){.n = n, .m = m, .step = (n / m) & -(n / m)};
    r->first = m > 1 ? mem_array((size_t)(m * m), sizeof *r->first) : NULL;
    r->sign = mem_array((size_t)n, sizeof *r->sign);
    if (!r->sign || (m > 1 && !r->first)) {
        rotation_close(r);
        return nib_fail_nomem(err, (size_t)n * sizeof *r->sign, "a rotation");
    }
    if (r->first)
        fill_paley(r->first, m, prime_of(m));
    for (int64_t i = 0; i < n; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        r->sign[i] = (seed >> 63 ? 1.0f : -1.0f) / sqrtf((float)(m * r->step));
    }
    return NIB_OK;
}

void rotation_close(rotation *r) {
    mem_free(r->first);
    mem_free(r->sign);
    memset(r, 0, sizeof *r);
}

/* The second factor: pairs of values that are `half` apart, for each power of two. */
static void add_pairs(float *x, int64_t n, int64_t step, int64_t width) {
    for (int64_t half = width; half < step * width; half *= 2)
        for (int64_t i = 0; i < n * width; i += 2 * half)
            for (int64_t k = i; k < i + half; k++) {
                const float a = x[k], b = x[k + half];
                x[k] = a + b;
                x[k + half] = a - b;
            }
}

void rotation_apply(const rotation *r, float *x, int64_t width, float *scratch) {
    const int64_t part = r->step * width;
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t c = 0; c < width; c++)
            x[i * width + c] *= r->sign[i];
    add_pairs(x, r->n, r->step, width);
    if (r->m == 1)
        return;
    memcpy(scratch, x, (size_t)(r->n * width) * sizeof *x);
    memset(x, 0, (size_t)(r->n * width) * sizeof *x);
    for (int64_t i = 0; i < r->m; i++)
        for (int64_t k = 0; k < r->m; k++) {
            const float by = r->first[i * r->m + k];
            for (int64_t c = 0; c < part; c++)
                x[i * part + c] += by * scratch[k * part + c];
        }
}
