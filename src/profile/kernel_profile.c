/* kernel_profile.c - see kernel_profile.h. */
#include "profile/kernel_profile.h"

#include "base/num.h"

nib_status kernel_profile_keep(void *user, const trial_shape *shape, int bucket, const trial_result *result,
                               nib_error *err) {
    char format[PACK_NAME];
    policy_shape *of;
    pack_name(&shape->format, format);
    NIB_TRY(policy_add(user, shape->n, shape->k, format, shape->act_bits, &of, err));
    of->by_bucket[bucket] = result->times[result->chosen].strategy;
    return NIB_OK;
}

static nib_status one_shape(const kernel_profile_options *o, trial *t, const trial_shape *shape, int done,
                            int all, double end, kernel_profile_fn fn, void *user, nib_error *err) {
    NIB_TRY(trial_set(t, shape, err));
    for (int b = 0; b < POLICY_BUCKETS; b++, done++) {
        trial_result result;
        const double left = end - time_now();
        if (o->progress && !o->progress(o->user, "timing kernels", (uint64_t)done, (uint64_t)all))
            return nib_fail(err, NIB_E_CANCELLED, "cancelled");
        NIB_TRY(trial_rows(t, trial_rows_of(b), NUM_MAX(left, 0) / (all - done), &result, err));
        NIB_TRY(fn(user, shape, b, &result, err));
    }
    return NIB_OK;
}

nib_status kernel_profile(const kernel_profile_options *o, const trial_shape *shapes, int n_shape,
                          kernel_profile_fn fn, void *user, nib_error *err) {
    trial *t;
    const double end = time_now() + o->seconds;
    const int all = n_shape * POLICY_BUCKETS;
    nib_status status = NIB_OK;
    NIB_TRY(trial_open(o->table, o->threads, o->n_byte, &t, err));
    for (int i = 0; i < n_shape && status == NIB_OK; i++)
        status = one_shape(o, t, &shapes[i], i * POLICY_BUCKETS, all, end, fn, user, err);
    trial_close(t);
    return status;
}
