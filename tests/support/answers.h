/* answers.h - answers with penalties and a bias, computed by one engine in several ways. */
#ifndef NIB_TESTS_ANSWERS_H
#define NIB_TESTS_ANSWERS_H

#include "engine/engine.h"

enum { ANSWERS = 8, ANSWER_TOKENS = 40, ANSWER_VOCAB = 512 };

/* Answer i's options: greedy or drawn; penalties over some tokens, none or all; sometimes a bias, tokens
 * twice among them. The arrays that they point to are static. */
nib_generate_options answer_options(int i);

/* Computes all of them, each in a session of its own (together false) or in one batch. whole: probabilities
 * are requested, so that all logits are copied to the host. The vocabulary has at least ANSWER_VOCAB tokens.
 */
void answers_of(nib_engine *e, bool together, bool whole, int32_t (*out)[ANSWER_TOKENS]);

enum { PROMPT_ANSWER = 12 };

/* Answers n prompts in one batch of n_sequence, greedy and drawn in turn: prompt i has 3 + step * i tokens,
 * and every second one begins like the one before. The context has that many and the answer's. */
void answers_to_prompts(nib_engine *e, int n_sequence, int n, int step, int32_t (*out)[PROMPT_ANSWER]);

#endif
