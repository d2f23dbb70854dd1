/* order.c - see order.h. */
#include "sequence/order.h"

#include "base/num.h"
#include "sequence/sampler.h"

#include <string.h>

static const struct {
    const char *name;
    char letter;
} names[] = {{"penalties", SAMPLER_PENALTIES},
             {"dry", SAMPLER_DRY},
             {"top_n_sigma", SAMPLER_TOP_N_SIGMA},
             {"top_k", SAMPLER_TOP_K},
             {"typ_p", SAMPLER_TYPICAL},
             {"typical_p", SAMPLER_TYPICAL},
             {"typical", SAMPLER_TYPICAL},
             {"typ", SAMPLER_TYPICAL},
             {"top_p", SAMPLER_TOP_P},
             {"nucleus", SAMPLER_TOP_P},
             {"min_p", SAMPLER_MIN_P},
             {"xtc", SAMPLER_XTC},
             {"temperature", SAMPLER_TEMPERATURE},
             {"temp", SAMPLER_TEMPERATURE}};

nib_status order_check(const char *letters, nib_error *err) {
    const size_t n = strspn(letters, ORDER_DEFAULT);
    if (letters[n])
        return nib_fail(err, NIB_E_USAGE, "samplers: expected letters of %s, found '%c'", ORDER_DEFAULT,
                        letters[n]);
    return NIB_OK;
}

/* The letter of a name [n], which may have dashes instead of low lines, or is the letter; 0: it is none. */
static char letter_of(const char *text, size_t n) {
    for (size_t k = 0; k < NUM_COUNT(names); k++) {
        const char *name = names[k].name;
        size_t i = 0;
        while (i < n && name[i] == (text[i] == '-' ? '_' : text[i]))
            i++;
        if ((i == n && !name[n]) || (n == 1 && *text == names[k].letter))
            return names[k].letter;
    }
    return 0;
}

nib_status nib_sampling_order(nib_sampling *s, const char *list, nib_error *err) {
    char letters[NIB_MAX_SAMPLERS + 1] = "";
    size_t n = 0;
    for (const char *at = list; *at;) {
        const size_t n_name = strcspn(at, ";");
        const char letter = letter_of(at, n_name);
        if (!letter)
            return nib_fail(
                err, NIB_E_USAGE,
                "samplers: expected penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc or "
                "temperature, found '%.*s'",
                (int)NUM_MIN(n_name, 40), at);
        if (n == NIB_MAX_SAMPLERS)
            return nib_fail(err, NIB_E_USAGE, "samplers: expected at most %d, found more", NIB_MAX_SAMPLERS);
        letters[n++] = letter;
        at += n_name + (at[n_name] != 0);
    }
    if (n == 0)
        return nib_fail(err, NIB_E_USAGE, "samplers: expected at least one, found none");
    memcpy(s->samplers, letters, sizeof letters);
    return NIB_OK;
}

static bool has_effect(const nib_sampling *s, char letter) {
    switch ((sampler_letter)letter) {
    case SAMPLER_PENALTIES: return sampling_penalises(s);
    case SAMPLER_DRY: return sampling_has_dry(s);
    case SAMPLER_TOP_N_SIGMA: return s->top_n_sigma > 0;
    case SAMPLER_TOP_K: return s->top_k > 0;
    case SAMPLER_TYPICAL: return s->typical_p > 0 && s->typical_p < 1;
    case SAMPLER_TOP_P: return s->top_p < 1;
    case SAMPLER_MIN_P: return s->min_p > 0;
    case SAMPLER_XTC: return sampling_has_xtc(s);
    case SAMPLER_TEMPERATURE: return s->temperature != 1 || s->dynatemp_range > 0;
    }
    return false;
}

static void turn_off(nib_sampling *s, char letter) {
    switch ((sampler_letter)letter) {
    case SAMPLER_PENALTIES:
        s->repeat_penalty = 1;
        s->frequency_penalty = s->presence_penalty = 0;
        break;
    case SAMPLER_DRY: s->dry_multiplier = 0; break;
    case SAMPLER_TOP_N_SIGMA: s->top_n_sigma = 0; break;
    case SAMPLER_TOP_K: s->top_k = 0; break;
    case SAMPLER_TYPICAL: s->typical_p = 1; break;
    case SAMPLER_TOP_P: s->top_p = 1; break;
    case SAMPLER_MIN_P: s->min_p = 0; break;
    case SAMPLER_XTC: s->xtc_probability = 0; break;
    case SAMPLER_TEMPERATURE:
        s->temperature = 1;
        s->dynatemp_range = 0;
        break;
    }
}

void order_reduce(nib_sampling *how) {
    char *const letters = how->samplers;
    size_t n = 0;
    bool usual = true;
    if (!*letters)
        return;
    for (const char *all = ORDER_DEFAULT; *all; all++)
        if (!strchr(letters, *all))
            turn_off(how, *all);
    for (size_t i = 0; letters[i]; i++) {
        if (!has_effect(how, letters[i]))
            continue;
        usual =
            usual && (n == 0 || strchr(ORDER_DEFAULT, letters[n - 1]) < strchr(ORDER_DEFAULT, letters[i]));
        letters[n++] = letters[i];
    }
    letters[usual ? 0 : n] = 0;
}
