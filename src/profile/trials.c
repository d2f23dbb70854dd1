/* trials.c - see trials.h. */
#include "profile/trials.h"

#include "base/mem.h"
#include "profile/profile_file.h"

#include <string.h>

enum { VERSION = 1, MAX_SEQUENCE = 1 << 20 };

char *trials_path(json_t *key) {
    return profile_keyed_path(key, "trials", "", ".json");
}

static nib_status read_one(const json_t *object, trial *out, nib_error *err) {
    NIB_TRY(profile_read_int(object, "n_sequence", 1, MAX_SEQUENCE, &out->n_sequence, err));
    NIB_TRY(profile_read_int(object, "kv_on_disk", 0, MAX_SEQUENCE, &out->kv_on_disk, err));
    return profile_read_number(object, "tok_s", 0, &out->tok_s, err);
}

static nib_status read_all(const json_t *document, void *to, nib_error *err) {
    trials *out = to;
    int64_t version;
    size_t i;
    const json_t *each;
    NIB_TRY(profile_read_int(document, "nibble_trials", VERSION, VERSION, &version, err));
    json_array_foreach(json_object_get(document, "plans"), i, each) {
        if (out->n < TRIALS_MAX)
            NIB_TRY(read_one(each, &out->list[out->n++], err));
    }
    return NIB_OK;
}

void trials_load(const char *path, trials *out) {
    nib_error why;
    *out = (trials){.n = 0};
    if (profile_load(path, NULL, read_all, out, NULL, &why) != NIB_OK)
        out->n = 0;
}

double trials_find(const trials *t, int64_t n_sequence, int64_t kv_on_disk) {
    for (int i = 0; i < t->n; i++)
        if (t->list[i].n_sequence == n_sequence && t->list[i].kv_on_disk == kv_on_disk)
            return t->list[i].tok_s;
    return 0;
}

static nib_status print_all(const trials *t, char **text, nib_error *err) {
    const size_t lost = jsonx_lost();
    json_t *plans = json_array();
    for (int i = 0; i < t->n; i++)
        json_array_append_new(plans, json_pack("{s:I, s:I, s:f}", "n_sequence",
                                               (json_int_t)t->list[i].n_sequence, "kv_on_disk",
                                               (json_int_t)t->list[i].kv_on_disk, "tok_s", t->list[i].tok_s));
    return profile_text(jsonx_built(json_pack("{s:i, s:o}", "nibble_trials", VERSION, "plans", plans), lost),
                        text, err);
}

nib_status trials_keep(const char *path, const trial *t, nib_error *err) {
    trials all;
    char *text = NULL;
    int i = 0;
    trials_load(path, &all);
    while (i < all.n && (all.list[i].n_sequence != t->n_sequence || all.list[i].kv_on_disk != t->kv_on_disk))
        i++;
    if (i == TRIALS_MAX) {
        memmove(all.list, all.list + 1, (TRIALS_MAX - 1) * sizeof *all.list);
        i--;
    }
    all.n = i == all.n ? all.n + 1 : all.n;
    all.n = all.n > TRIALS_MAX ? TRIALS_MAX : all.n;
    all.list[i] = *t;
    const nib_status status = print_all(&all, &text, err);
    return profile_save(path, status, text, err);
}
