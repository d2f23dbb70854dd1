/* places.c - see places.h. */
#include "cluster/places.h"

#include "base/num.h"
#include "base/thread.h"
#include "profile/machine.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads a cap of n characters. */
static nib_status parse_cap(const char *text, size_t n, const char *as_in, uint64_t *out, nib_error *err) {
    char size[32] = "";
    memcpy(size, text, NUM_MIN(n, sizeof size - 1));
    if (n >= sizeof size || !num_parse_size(size, out) || *out == 0)
        return nib_fail(err, NIB_E_USAGE, "expected a cap as in %s, found '%s'", as_in, size);
    return NIB_OK;
}

/* Reads one part of n characters into a place, whose other fields are set. */
static nib_status parse_device(const char *text, size_t n, cluster_place *out, nib_error *err) {
    const char *colon = memchr(text, ':', n);
    char *end;
    const long gpu = strtol(text, &end, 10);
    const size_t n_name = colon ? (size_t)(colon - text) : n;
    if (n_name > 0 && isdigit((unsigned char)*text) && end == text + n_name && gpu < CLUSTER_MAX_RANK) {
        memcpy(out->backend, "cuda", sizeof "cuda");
        out->gpu = (int)gpu;
    } else if (n_name == 0 || n_name >= sizeof out->backend)
        return nib_fail(err, NIB_E_USAGE, "expected numbers of GPUs or cpu, as in 0,1, found '%.64s'", text);
    else {
        memcpy(out->backend, text, n_name);
        out->backend[n_name] = '\0';
        NIB_TRY(nib_backend_check(out->backend, err));
    }
    if (colon)
        NIB_TRY(parse_cap(colon + 1, n - n_name - 1, "0:16G", out->gpu >= 0 ? &out->vram : &out->ram, err));
    return NIB_OK;
}

/* Reads a list of n characters into new places like `like`. */
static nib_status parse_list(const char *text, size_t n, const cluster_place *like, cluster_places *out,
                             nib_error *err) {
    const char *const end = text + n;
    for (;; text++) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        const size_t n_part = (size_t)((comma ? comma : end) - text);
        if (out->n == CLUSTER_MAX_RANK)
            return nib_fail(err, NIB_E_USAGE, "expected at most %d devices, found more", CLUSTER_MAX_RANK);
        cluster_place *p = &out->place[out->n];
        *p = *like;
        NIB_TRY(parse_device(text, n_part, p, err));
        if (strcmp(p->backend, out->place[0].backend) != 0)
            return nib_fail(err, NIB_E_USAGE, "expected GPUs alone or processors alone, found %s after %s",
                            p->backend, out->place[0].backend);
        out->n++;
        text += n_part;
        if (text == end)
            return NIB_OK;
    }
}

static void count_beside(cluster_places *p) {
    p->simulated = false;
    for (int i = 0; i < p->n; i++) {
        p->simulated = p->simulated || p->place[i].rates[0];
        p->place[i].n_beside = 0;
        for (int k = 0; k < p->n; k++)
            p->place[i].n_beside += p->place[k].host == p->place[i].host;
    }
}

static const cluster_place no_place = {.gpu = -1, .ram = NIB_AUTO, .vram = NIB_AUTO, .disk = NIB_AUTO};

nib_status cluster_places_parse(const char *text, cluster_places *out, nib_error *err) {
    out->n = 0;
    out->over_network = false;
    const nib_status status = parse_list(text, strlen(text), &no_place, out, err);
    count_beside(out);
    return status == NIB_OK ? NIB_OK : nib_fail_prefix(err, status, "devices");
}

/* ---- a file of hosts ---- */

/* The next word of a line; *n 0: none. */
static const char *next_word(const char **at, const char *end, size_t *n) {
    while (*at < end && isspace((unsigned char)**at))
        ++*at;
    const char *word = *at;
    while (*at < end && !isspace((unsigned char)**at))
        ++*at;
    *n = (size_t)(*at - word);
    return word;
}

/* Characters that no shell of a launcher reads in another way. */
static bool is_plain(const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && !strchr("/._-+@:%", text[i]))
            return false;
    return n > 0 && text[0] != '-';
}

static nib_status take_text(const char *text, size_t n, const char *what, char *out, size_t size,
                            nib_error *err) {
    if (n == 0 || n >= size)
        return nib_fail(err, NIB_E_USAGE, "expected %s of 1 to %zu characters, found %zu", what, size - 1, n);
    memcpy(out, text, n);
    out[n] = '\0';
    return NIB_OK;
}

static bool is_key(const char *key, const char *word, size_t n) {
    return strlen(key) == n && memcmp(key, word, n) == 0;
}

/* Reads KEY=VALUE. */
static nib_status parse_key(const char *word, size_t n, cluster_place *to, nib_error *err) {
    const char *is = memchr(word, '=', n);
    const size_t n_key = is ? (size_t)(is - word) : n, n_value = n - n_key - 1;
    const struct {
        const char *key;
        uint64_t *to;
    } caps[] = {{"ram", &to->ram}, {"vram", &to->vram}, {"disk", &to->disk}};
    const struct {
        const char *key;
        char *to;
    } texts[] = {{"model", to->model}, {"program", to->program}, {"rates", to->rates}};
    for (size_t i = 0; is && i < NUM_COUNT(caps); i++)
        if (is_key(caps[i].key, word, n_key))
            return parse_cap(is + 1, n_value, "ram=16G", caps[i].to, err);
    for (size_t i = 0; is && i < NUM_COUNT(texts); i++) {
        if (!is_key(texts[i].key, word, n_key))
            continue;
        NIB_TRY(take_text(is + 1, n_value, "a path", texts[i].to, CLUSTER_PATH, err));
        if (texts[i].to == to->program && !is_plain(to->program, n_value))
            return nib_fail(err, NIB_E_USAGE,
                            "expected a program's path without characters that shells read, found '%.64s'",
                            to->program);
        return NIB_OK;
    }
    return nib_fail(
        err, NIB_E_USAGE,
        "expected ram=, vram=, disk=, model=, program= or rates=, found '%.*s' after the host's devices",
        (int)NUM_MIN(n, 64), word);
}

static nib_status parse_line(const char *line, const char *end, int host, cluster_places *out,
                             nib_error *err) {
    cluster_place like = no_place;
    size_t n, n_devices = sizeof "cpu" - 1;
    const char *devices = "cpu", *word = next_word(&line, end, &n);
    like.host = host;
    NIB_TRY(take_text(word, n, "a host's name", like.name, sizeof like.name, err));
    if (!is_plain(word, n))
        return nib_fail(err, NIB_E_USAGE, "expected a host's name, found '%s'", like.name);
    word = next_word(&line, end, &n);
    if (n > 0 && !memchr(word, '=', n)) {
        devices = word;
        n_devices = n;
        word = next_word(&line, end, &n);
    }
    for (; n > 0; word = next_word(&line, end, &n))
        NIB_TRY(parse_key(word, n, &like, err));
    if (host == 0 && (like.model[0] || like.program[0]))
        return nib_fail(
            err, NIB_E_USAGE,
            "the first line is this machine, with the command's own model and program; expected no "
            "model= and program= here");
    return parse_list(devices, n_devices, &like, out, err);
}

nib_status cluster_hosts_parse(const char *text, cluster_places *out, nib_error *err) {
    int n_line = 0, n_host = 0;
    out->n = 0;
    out->over_network = true;
    for (const char *next; *text; text = next) {
        const char *line_end = text + strcspn(text, "\n");
        const char *end = text + strcspn(text, "#\n"), *at = text;
        size_t n;
        char where[32];
        next = line_end + (*line_end == '\n');
        n_line++;
        next_word(&at, end, &n);
        if (n == 0)
            continue;
        const nib_status status = parse_line(text, end, n_host++, out, err);
        snprintf(where, sizeof where, "line %d", n_line);
        if (status != NIB_OK)
            return nib_fail_prefix(err, status, where);
    }
    count_beside(out);
    return out->n ? NIB_OK : nib_fail(err, NIB_E_USAGE, "expected a line for each host, found none");
}

int cluster_threads(int n_thread, int n_beside) {
    return n_thread > 0 ? n_thread : NUM_MAX(thread_physical_cores() / NUM_MAX(n_beside, 1), 1);
}

uint64_t cluster_free(int n_beside) {
    machine here;
    machine_detect(&here);
    return (here.ram_free - here.ram_free / 8) / (uint64_t)NUM_MAX(n_beside, 1);
}

void cluster_place_options(const cluster_place *place, nib_engine_options *o) {
    const struct {
        uint64_t cap, *to;
    } caps[] = {{place->ram, &o->ram}, {place->vram, &o->vram}, {place->disk, &o->disk}};
    for (size_t i = 0; i < NUM_COUNT(caps); i++)
        if (caps[i].cap != NIB_AUTO)
            *caps[i].to = caps[i].cap;
    o->n_thread = cluster_threads(o->n_thread, place->n_beside);
}
