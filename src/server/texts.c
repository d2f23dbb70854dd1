/* texts.c - requests for the model's tokenizer and template alone, without an answer. */
#include "server/texts.h"

#include "base/jsonx.h"
#include "base/mem.h"
#include "base/num.h"
#include "server/call_parts.h"
#include "server/logprobs.h"
#include "server/prompts.h"

#include <stdio.h>
#include <string.h>

/* ---- tokenize ---- */

typedef struct tokenize_call {
    const char *content;
    bool add_special, parse_special, with_pieces;
} tokenize_call;

static const member rows[] = {
    {"content", MEMBER_TEXT, offsetof(tokenize_call, content), 0, 0},
    {"prompt", MEMBER_TEXT, offsetof(tokenize_call, content), 0, 0}, /* vLLM's names */
    {"add_special_tokens", MEMBER_BOOL, offsetof(tokenize_call, add_special), 0, 0},
    {"add_special", MEMBER_BOOL, offsetof(tokenize_call, add_special), 0, 0},
    {"parse_special", MEMBER_BOOL, offsetof(tokenize_call, parse_special), 0, 0},
    {"with_pieces", MEMBER_BOOL, offsetof(tokenize_call, with_pieces), 0, 0},
};
const member_table tokenize_members = {rows, NUM_COUNT(rows)};

/* A piece that is not valid UTF-8 becomes an array of its bytes. */
static json_t *piece_json(const nib_engine *e, int32_t token) {
    char *piece;
    size_t n;
    if (!token_text(e, token, &piece, &n))
        return NULL;
    json_t *value = json_stringn(piece, n);
    if (!value) {
        value = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(value, json_integer((unsigned char)piece[i]));
    }
    mem_free(piece);
    return value;
}

/* Writes the list of tokens. As JSON values the tokens of a text would take a hundred times its bytes. */
static void write_tokens(const nib_engine *e, const call_tokens *made, bool with_pieces, buffer *out) {
    char id[48];
    buffer_text(out, "{\"tokens\":[");
    for (size_t i = 0; i < made->n && !out->no_memory; i++) {
        snprintf(id, sizeof id, with_pieces ? "%s{\"id\":%d,\"piece\":" : "%s%d", i ? "," : "",
                 (int)made->tokens[i]);
        buffer_text(out, id);
        if (!with_pieces)
            continue;
        buffer_json(out, piece_json(e, made->tokens[i]));
        buffer_text(out, "}");
    }
    snprintf(id, sizeof id, "],\"count\":%zu}", made->n);
    buffer_text(out, id);
}

void texts_tokenize(exchange *x) {
    tokenize_call t = {.parse_special = true};
    json_t *body = body_parse(x->body.data, x->body.n, &x->why);
    call_tokens made = {0};
    if (!body)
        return;
    const json_t *prompt = member_get(body, "prompt"); /* vLLM's default is to add special tokens */
    t.add_special = prompt != NULL;
    members_read(body, &tokenize_members, &t, &x->why);
    if (!t.content)
        fault_field(&x->why, "content", "expected a string, found nothing");
    const json_t *given = prompt ? prompt : member_get(body, "content");
    const unsigned flags = (t.add_special ? (unsigned)NIB_TOKENIZE_BOS : 0) |
                           (t.parse_special ? (unsigned)NIB_TOKENIZE_SPECIAL : 0);
    if (!x->why.status &&
        prompt_tokenize(x->model->engine, t.content, NULL, json_string_length(given), flags, &made, &x->why))
        write_tokens(x->model->engine, &made, t.with_pieces, &x->reply);
    x->type = "application/json";
    nib_free(made.tokens);
    json_decref(body);
}

/* ---- detokenize ---- */

static bool read_ids(const json_t *list, int32_t **ids, size_t *n, fault *why) {
    size_t i;
    const json_t *id;
    if (!json_is_array(list))
        return fault_field(why, "tokens", "expected an array of token ids");
    *n = json_array_size(list);
    *ids = mem_array(*n + 1, sizeof **ids);
    if (!*ids)
        return fault_set(why, 503, NULL, "out of memory");
    json_array_foreach(list, i, id) {
        (*ids)[i] = json_id(id);
        if ((*ids)[i] < 0)
            return fault_field(why, "tokens", "expected a token id at index %zu", i);
    }
    return true;
}

void texts_detokenize(exchange *x) {
    json_t *body = body_parse(x->body.data, x->body.n, &x->why);
    int32_t *ids = NULL;
    size_t n = 0, n_byte = 0;
    char *text = NULL;
    nib_error err;
    if (body && read_ids(json_object_get(body, "tokens"), &ids, &n, &x->why)) {
        if (nib_detokenize(x->model->engine, ids, n, &text, &n_byte, &err))
            fault_engine(&x->why, &err);
        else
            exchange_json(x, json_pack("{s:o, s:o}", "content", jsonx_string(text, n_byte), "prompt",
                                       jsonx_string(text, n_byte)));
    }
    nib_free(text);
    mem_free(ids);
    json_decref(body);
}

/* ---- the tokenizer ---- */

static json_t *special_json(const nib_engine *e, int32_t token) {
    size_t n = 0;
    const char *text = token >= 0 ? nib_token_piece(e, token, &n) : NULL;
    return text ? jsonx_string(text, n) : json_null();
}

/* What evaluators read to use the model's tokenizer through /tokenize, in vLLM's form. */
void texts_tokenizer_info(exchange *x) {
    pthread_mutex_lock(&x->s->lock);
    const served *m = model_loaded(x->s);
    const nib_engine *e = m ? m->engine : NULL;
    const nib_model_info *info = e ? nib_engine_info(e) : NULL;
    json_t *value = e ? json_pack("{s:o, s:o, s:b, s:I}", "bos_token", special_json(e, info->bos),
                                  "eos_token", special_json(e, info->eos), "add_bos_token",
                                  (int)info->add_bos, "model_max_length", (json_int_t)info->n_ctx)
                      : NULL;
    pthread_mutex_unlock(&x->s->lock);
    if (m)
        exchange_json(x, value);
    else
        fault_set(&x->why, 503, NULL, "no model is loaded: a request that names one loads it");
}

/* ---- the template ---- */

void texts_apply_template(exchange *x) {
    call c;
    char *text = NULL;
    uint8_t *marks = NULL;
    if (call_parse(CALL_CHAT, x->body.data, x->body.n, &x->s->defaults, &c, &x->why) &&
        prompt_render(x->model, &c, &text, &marks, &x->why))
        exchange_json(x, json_pack("{s:o}", "prompt", jsonx_string(text, strlen(text))));
    nib_free(text);
    nib_free(marks);
    call_clear(&c);
}
