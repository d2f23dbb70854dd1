/* config_check.c - checks sizes that belong together: of a mixer, of a mixture, of compressed attention. */
#include "model/config.h"

/* The sizes of the family's mixer, whose kernels have limits (kernels.h). */
nib_status config_check_mixer(mixer_kind mixer, const config *c, nib_error *err) {
    const hparams *hp = &c->hp;
    bool any = false;
    for (int64_t i = 0; i < hp->n_layer; i++)
        any = any || (c->layer[i] & LAYER_RECURRENT);
    if (!any)
        return NIB_OK;
    const bool heads = mixer == MIXER_SSD || mixer == MIXER_DELTA || mixer == MIXER_KDA;
    const int64_t max_state = mixer == MIXER_DELTA || mixer == MIXER_KDA ? 512
                              : mixer == MIXER_SCAN                      ? 256
                                                                         : 1 << 14;
    if (mixer == MIXER_NONE)
        return NIB_OK;
    if (hp->rec_tap < 2 || hp->rec_tap > 8)
        return nib_fail(err, NIB_E_MODEL, "taps of the short convolution: expected 2 to 8, found %lld",
                        (long long)hp->rec_tap);
    if (mixer != MIXER_CONV &&
        (hp->rec_inner < 1 || hp->rec_inner > 1 << 20 || hp->rec_state < 1 || hp->rec_state > max_state))
        return nib_fail(err, NIB_E_MODEL,
                        "recurrent layers: expected values of 1 to %d and states of 1 to %lld, found %lld "
                        "and %lld",
                        1 << 20, (long long)max_state, (long long)hp->rec_inner, (long long)hp->rec_state);
    if (heads && (hp->rec_head < 1 || hp->rec_inner % hp->rec_head != 0 || hp->rec_group < 1 ||
                  hp->rec_head % hp->rec_group != 0))
        return nib_fail(err, NIB_E_MODEL,
                        "recurrent layers: expected heads that divide the width %lld, and groups that divide "
                        "the heads, found %lld heads in %lld groups",
                        (long long)hp->rec_inner, (long long)hp->rec_head, (long long)hp->rec_group);
    return NIB_OK;
}

nib_status config_check_experts(const hparams *hp, nib_error *err) {
    const int64_t n_group = hp->n_expert_group > 1 ? hp->n_expert_group : 1,
                  group_used = n_group > 1 ? hp->n_group_used : 1;
    if (hp->n_expert == 0)
        return NIB_OK;
    if (hp->n_expert % n_group != 0 || group_used < 1 || group_used > n_group)
        return nib_fail(
            err, NIB_E_MODEL,
            "expected some of the groups into which the %lld experts are divided, found %lld of %lld",
            (long long)hp->n_expert, (long long)group_used, (long long)n_group);
    const int64_t most = hp->n_expert / n_group * group_used;
    if (hp->n_expert_used < 1 || hp->n_expert_used > most || hp->n_expert_used > ROUTE_MAX_USED)
        return nib_fail(err, NIB_E_MODEL, "n_expert_used: expected 1 to %lld experts of a row, found %lld",
                        (long long)(most < ROUTE_MAX_USED ? most : ROUTE_MAX_USED),
                        (long long)hp->n_expert_used);
    return NIB_OK;
}

/* Entries of compressed attention are in the pages of the positions where they end. */
nib_status config_check_entries(const hparams *hp, nib_error *err) {
    const int64_t every[] = {hp->pool_chosen, hp->pool_all};
    if (hp->pool_all == 0)
        return NIB_OK;
    for (int i = 0; i < 2; i++)
        if (every[i] < 2 || (ENTRY_PAGE % every[i] != 0 && every[i] % ENTRY_PAGE != 0))
            return nib_fail(err, NIB_E_MODEL,
                            "compress_rates: expected a divisor or a multiple of %d, above 1, found %lld",
                            ENTRY_PAGE, (long long)every[i]);
    const bool indexed = hp->index_head > 0 && hp->index_width >= hp->n_rot && hp->index_used > 0;
    if (hp->n_rot < 2 || hp->n_rot > ROPE_MAX || !indexed || hp->n_kv_head != 1 || hp->window < 1 ||
        hp->q_low_rank < 1 || hp->o_low_rank < 1 || hp->o_group < 1 || hp->n_head % hp->o_group != 0)
        return nib_fail(
            err, NIB_E_MODEL,
            "compressed attention: expected one KV head, a window, rows of low rank for queries and "
            "outputs, groups that divide the heads, and an index whose heads are as wide as what is "
            "rotated");
    return NIB_OK;
}
