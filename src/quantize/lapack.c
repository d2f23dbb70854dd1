/* lapack.c - see lapack.h. */
#include "quantize/lapack.h"

#include "base/num.h"

#include <dlfcn.h>
#include <pthread.h>

/* Fortran's calling convention: all by reference; the lengths of texts come last, and nobody looks at them.
 */
typedef void factor_fn(const char *uplo, const int *n, double *a, const int *lda, int *info, size_t n_uplo);
typedef void syrk_fn(const char *uplo, const char *trans, const int *n, const int *k, const float *alpha,
                     const float *a, const int *lda, const float *beta, float *c, const int *ldc,
                     size_t n_uplo, size_t n_trans);

static pthread_once_t once = PTHREAD_ONCE_INIT;
static factor_fn *potrf, *potri;
static syrk_fn *syrk;
static void (*set_threads)(int n);

static void find(void) {
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so", "liblapack.so.3"};
    for (size_t i = 0; i < NUM_COUNT(names) && !(potrf && potri); i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!library)
            continue;
        *(void **)&potrf = dlsym(library, "dpotrf_");
        *(void **)&potri = dlsym(library, "dpotri_");
        *(void **)&syrk = dlsym(library, "ssyrk_");
        *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
    }
}

nib_status lapack_check(nib_error *err) {
    pthread_once(&once, find);
    if (potrf && potri)
        return NIB_OK;
    return nib_fail(
        err, NIB_E_USAGE,
        "gptq needs OpenBLAS or LAPACK, and neither is installed: install libopenblas0-pthread (Debian)");
}

bool lapack_is_slow(void) {
    return !set_threads;
}

void lapack_use_threads(int n) {
    if (set_threads)
        set_threads(n);
}

bool lapack_inverse_factor(double *a, int n) {
    int info = 0;
    potrf("L", &n, a, &n, &info, 1);
    if (info == 0)
        potri("L", &n, a, &n, &info, 1);
    if (info == 0)
        potrf("L", &n, a, &n, &info, 1);
    return info == 0;
}

bool lapack_add_squares(float *c, const float *x, int n, int rows) {
    const float one = 1;
    if (!syrk)
        return false;
    syrk("L", "N", &n, &rows, &one, x, &n, &one, c, &n, 1, 1);
    return true;
}
