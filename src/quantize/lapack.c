/* lapack.c - see lapack.h. Right-looking Cholesky: for each block of columns, factorise its diagonal tile,
 * solve for the tiles below, and subtract their products from the remaining triangle, tile by tile. */
#include "quantize/lapack.h"

#include "base/cpu.h"
#include "base/num.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TILE = 256 /* rows and columns: half a MiB of doubles, which fits a core's cache */ };

/* Fortran's calling convention: all arguments are references; lengths of texts come last, and are not used.
 */
typedef void potrf_fn(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t n_uplo);
typedef void trsm_fn(const char *side, const char *uplo, const char *trans, const char *diag, const int *m,
                     const int *n, const double *alpha, const double *a, const int *lda, double *b,
                     const int *ldb, size_t n_side, size_t n_uplo, size_t n_trans, size_t n_diag);
typedef void dgemm_fn(const char *trans_a, const char *trans_b, const int *m, const int *n, const int *k,
                      const double *alpha, const double *a, const int *lda, const double *b, const int *ldb,
                      const double *beta, double *c, const int *ldc, size_t n_trans_a, size_t n_trans_b);
typedef void sgemm_fn(const char *trans_a, const char *trans_b, const int *m, const int *n, const int *k,
                      const float *alpha, const float *a, const int *lda, const float *b, const int *ldb,
                      const float *beta, float *c, const int *ldc, size_t n_trans_a, size_t n_trans_b);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static potrf_fn *potrf;
static trsm_fn *trsm;
static dgemm_fn *dgemm;
static sgemm_fn *sgemm;
static bool is_openblas;
static char note[96];

static bool has_all(void) {
    return potrf && trsm && dgemm && sgemm;
}

/* OpenBLAS chooses its kernels by the processor's model when it is loaded. For an unknown model it chooses
 * SSE3 kernels, whatever the features are. Returns OpenBLAS's name of a better choice; NULL: its choice is
 * good, or none is better. */
static const char *better_core(void *library) {
    static const char *const old[] = {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem"};
    char *(*core)(void) = NULL;
    *(void **)&core = dlsym(library, "openblas_get_corename");
    const char *now = core ? core() : "";
    const char *better = cpu_get()->avx512 ? "SkylakeX" : cpu_get()->avx2 ? "Haswell" : NULL;
    for (size_t i = 0; better && i < NUM_COUNT(old); i++)
        if (!strcmp(now, old[i])) {
            snprintf(note, sizeof note, "OpenBLAS does not know this processor: kernels of %s, not of %s",
                     better, old[i]);
            return better;
        }
    return NULL;
}

/* Loads the library; reloads it if another choice of kernels is better. A choice of the user is kept. */
static void *load(const char *name) {
    static const char variable[] = "OPENBLAS_CORETYPE";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *better = library && !getenv(variable) ? better_core(library) : NULL;
    if (!better)
        return library;
    dlclose(library);
    setenv(variable, better, 0);
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    unsetenv(variable);
    return library;
}

static void find(void) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so", "liblapack.so.3"};
    for (size_t i = 0; i < NUM_COUNT(names) && !has_all(); i++) {
        void (*set_threads)(int) = NULL;
        void *library = load(names[i]);
        if (!library)
            continue;
        *(void **)&potrf = dlsym(library, "dpotrf_");
        *(void **)&trsm = dlsym(library, "dtrsm_");
        *(void **)&dgemm = dlsym(library, "dgemm_");
        *(void **)&sgemm = dlsym(library, "sgemm_");
        *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
        is_openblas = set_threads != NULL;
        if (set_threads)
            set_threads(1);
    }
}

nib_status lapack_check(nib_error *err) {
    pthread_once(&once, find);
    if (has_all())
        return NIB_OK;
    return nib_fail(
        err, NIB_E_USAGE,
        "gptq: expected OpenBLAS or LAPACK, found neither: install libopenblas0-pthread (Debian)");
}

const char *lapack_note(void) {
    return note;
}

bool lapack_is_slow(void) {
    return !is_openblas;
}

/* ---- tiles ---- */

typedef struct tiling {
    void (*compute)(void *of, int64_t i);
    void *of;
    int64_t n;
    atomic_llong next;
} tiling;

static void take_tiles(void *arg, int thread, int n_thread) {
    tiling *t = arg;
    (void)thread, (void)n_thread;
    for (long long i; (i = atomic_fetch_add(&t->next, 1)) < t->n;)
        t->compute(t->of, i);
}

static void run_tiles(pool *threads, int64_t n, void (*compute)(void *of, int64_t i), void *of) {
    tiling t = {.compute = compute, .of = of, .n = n};
    pool_run(threads, take_tiles, &t);
}

/* Row and column of tile i, counted column by column over the tiles on and below the diagonal of n x n tiles.
 */
static void tile_at(int64_t i, int64_t n, int64_t *row, int64_t *column) {
    int64_t c = 0;
    for (; i >= n - c; c++)
        i -= n - c;
    *row = c + i;
    *column = c;
}

static int part_of(int64_t n, int64_t at) {
    return (int)NUM_MIN(n - at, (int64_t)TILE);
}

/* ---- Cholesky ---- */

typedef struct factoring {
    double *a;
    int64_t n, at; /* size of the matrix; first column of the current block */
} factoring;

static bool factor_diagonal(const factoring *f) {
    const int n = part_of(f->n, f->at), stride = (int)f->n;
    int info = 0;
    potrf("L", &n, f->a + f->at * f->n + f->at, &stride, &info, 1);
    return info == 0;
}

static void solve(void *of, int64_t i) {
    const factoring *f = of;
    const int64_t row = f->at + (i + 1) * TILE;
    const int m = part_of(f->n, row), n = part_of(f->n, f->at), stride = (int)f->n;
    const double one = 1;
    double *columns = f->a + f->at * f->n;
    trsm("R", "L", "T", "N", &m, &n, &one, columns + f->at, &stride, columns + row, &stride, 1, 1, 1, 1);
}

static void subtract(void *of, int64_t i) {
    const factoring *f = of;
    int64_t row, column;
    tile_at(i, num_div_up(f->n - f->at, TILE) - 1, &row, &column);
    row = f->at + (row + 1) * TILE;
    column = f->at + (column + 1) * TILE;
    const int m = part_of(f->n, row), n = part_of(f->n, column), k = TILE, stride = (int)f->n;
    const double one = 1, minus_one = -1, *columns = f->a + f->at * f->n;
    dgemm("N", "T", &m, &n, &k, &minus_one, columns + row, &stride, columns + column, &stride, &one,
          f->a + column * f->n + row, &stride, 1, 1);
}

bool lapack_cholesky(double *a, int64_t n, pool *threads) {
    factoring f = {.a = a, .n = n};
    for (; f.at < n; f.at += TILE) {
        const int64_t n_left = num_div_up(n - f.at, TILE) - 1;
        if (!factor_diagonal(&f))
            return false;
        run_tiles(threads, n_left, solve, &f);
        run_tiles(threads, n_left * (n_left + 1) / 2, subtract, &f);
    }
    return true;
}

/* ---- products ---- */

typedef struct squaring {
    float *c;
    const float *x;
    int64_t n, n_row;
} squaring;

static void add_tile(void *of, int64_t i) {
    const squaring *s = of;
    int64_t row, column;
    tile_at(i, num_div_up(s->n, TILE), &row, &column);
    row *= TILE;
    column *= TILE;
    const int m = part_of(s->n, row), n = part_of(s->n, column), k = (int)s->n_row, stride = (int)s->n;
    const float one = 1;
    sgemm("N", "T", &m, &n, &k, &one, s->x + row, &stride, s->x + column, &stride, &one,
          s->c + column * s->n + row, &stride, 1, 1);
}

void lapack_add_squares(float *c, const float *x, int64_t n, int64_t n_row, pool *threads) {
    squaring s = {.c = c, .x = x, .n = n, .n_row = n_row};
    const int64_t n_tile = num_div_up(n, TILE);
    run_tiles(threads, n_tile * (n_tile + 1) / 2, add_tile, &s);
}

void lapack_dots(float *out, int64_t n_out, const float *x, int64_t n_x, const float *y, int64_t n_y,
                 int64_t k, int64_t stride) {
    const int m = (int)n_x, n = (int)n_y, depth = (int)k, from = (int)stride, to = (int)n_out;
    const float one = 1, zero = 0;
    sgemm("T", "N", &m, &n, &depth, &one, x, &from, y, &from, &zero, out, &to, 1, 1);
}
