/* engine.h - an engine for the modules above: opening one with more options than nib.h, and the parts of it
 * that sessions and measurements use. Only engine/ sees its fields. */
#ifndef NIB_ENGINE_ENGINE_H
#define NIB_ENGINE_ENGINE_H

#include "engine/parts.h"
#include "engine/residual_kinds.h"
#include "sequence/generation.h"
#include "sequence/sequence.h"
#include "text/tokenizer.h"

/* nib_engine_open; want NULL: nothing. */
nib_status engine_open(const char *name, const nib_engine_options *options, const engine_want *want,
                       nib_engine **out, nib_error *err);

/* False: it was opened for its vocabulary only, and has no parts. */
bool engine_has_weights(const nib_engine *e);
engine_parts engine_parts_of(nib_engine *e);
/* The text side. */
const char *engine_path(const nib_engine *e);
const container *engine_container(const nib_engine *e);
const tokenizer *engine_tokenizer(const nib_engine *e); /* NULL: the checkpoint has none */

/* ---- for tuning residuals ---- */

/* The kinds of products that have residuals; NULL: none. Valid until the engine is closed. */
const residual_kinds *engine_residual_kinds(const nib_engine *e);
/* What each kind gets from the next pass on. Any thread. */
void engine_residuals_choose(nib_engine *e, const tune_choice *choice);
/* The most blocks of a GPU that fetch; 1: the processor computes. And the most channels of each 1,024. */
int engine_fetch_blocks(const nib_engine *e);
int64_t engine_max_channels(const nib_engine *e);
/* Bytes of residuals in RAM, and of them those that a token reads with that choice. */
uint64_t engine_residual_bytes(const nib_engine *e);
uint64_t engine_residual_read(const nib_engine *e, const tune_choice *choice);

/* ---- for sequences ---- */

/* A nib_kv_type as a number format; false: there is none, or 0. */
bool engine_kv_type(int kv, type_id *out);
/* What sequences with that type and answers are made with. The pool of a type is made when it is first asked
 * for. Any thread. */
nib_status engine_sequence_memory(nib_engine *e, type_id kv_type, sequence_memory *out, nib_error *err);
/* Those keys and values in a folder of at most `max` bytes, for sequences of n_ctx positions; *out NULL,
 * which is said in the log, where they cannot be kept: they depend on the length of their sequence, or are
 * not in RAM. Closed before the engine. */
nib_status engine_open_prefixes(nib_engine *e, type_id kv_type, const char *folder, uint64_t max,
                                int64_t n_ctx, kv_disk **out, nib_error *err);
generation_setup engine_generation_setup(const nib_engine *e);
/* Around a generation: while others go on at the same time, their times are not one sequence's. Between them
 * what it took, which predictions learn from: it left so many positions. */
void engine_generation_begin(nib_engine *e);
void engine_generation_end(nib_engine *e);
void engine_generation_took(nib_engine *e, int64_t n_position, const nib_result *r);
/* Bytes of a session's tokens and logits. */
uint64_t engine_session_tables(const nib_engine *e, int64_t n_ctx);
/* Whether a sequence can have so many positions: NIB_E_USAGE where the model has learned fewer, NIB_E_NOFIT
 * where the machine's memory could never hold them. */
nib_status engine_check_positions(const nib_engine *e, type_id kv_type, int64_t n_ctx, nib_error *err);
/* Puts before a NIB_E_NOFIT of a session or a batch what the engine keeps room for; returns status. */
nib_status engine_name_sessions(const nib_engine *e, nib_status status, nib_error *err);

#endif
