/* calibrate.h - the calibration tokens of measurements. */
#ifndef NIB_MEASURE_CALIBRATE_H
#define NIB_MEASURE_CALIBRATE_H

#include "formats/container.h"
#include "tokenizer/tokenizer.h"

enum {
    MIN_CALIBRATE = 8,          /* minimum tokens of a prompt: shorter lines of a file are skipped */
    MAX_CALIBRATE = 64,         /* maximum tokens of a prompt: longer lines are cut into pieces */
    CALIBRATE_MAX_PROMPT = 1024 /* maximum number of prompts: the rest of a file is skipped */
};

typedef struct calibration {
    int32_t *tokens; /* of all prompts, one after the other; each begins with BOS if the model requires it */
    int64_t *begin;  /* [n_prompt + 1]: prompt i is tokens[begin[i]..begin[i + 1]) */
    int n_prompt;
    char hash[40];    /* key of the tokens, in hexadecimal digits */
    char content[40]; /* the model's content key */
    char what[192];   /* description for people: "12 prompts of nibble's own, 463 tokens" */
} calibration;

/* The vocabulary for the prompts. */
typedef struct calibration_source {
    const char *path; /* of the model, for messages */
    const container *container;
    const tokenizer *tokenizer; /* NULL: the model has none */
    int64_t n_vocab;            /* without a tokenizer: ids are below it */
    bool long_texts; /* nibble's own prompts also have the texts of profile/texts.def: five times as
                        many tokens, for sums over channels rather than for trials */
} calibration_source;

/* Reads the prompts from a file, one a line (so any text works), or, with NULL, takes nibble's own
 * (profile/prompts.def, and profile/texts.def if requested). Without a tokenizer the lines are token ids with
 * commas or spaces between them, and NULL gives twelve prompts of arbitrary ids, which represent real text
 * poorly; `what` names the source. NIB_E_IO: no such file; NIB_E_USAGE: no line is long enough, or an invalid
 * id. */
nib_status calibrate(const calibration_source *from, const char *path, calibration *out, nib_error *err);
void calibration_clear(calibration *c); /* zeroed is fine */

int64_t calibration_longest(const calibration *c); /* tokens of the longest prompt */

#endif
