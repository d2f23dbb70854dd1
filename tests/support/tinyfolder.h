/* tinyfolder.h - checkpoints as folders with random weights, large enough to be streamed, for tests of
 * features that GGUF files do not have. */
#ifndef NIB_TESTS_TINYFOLDER_H
#define NIB_TESTS_TINYFOLDER_H

/* 6 layers of width 256 in f32, a vocabulary of 300 and 128 positions. Each writes into the temporary folder
 * and returns the path. */
const char *tiny_folder_gpt2(void);          /* matrices stored [inputs, outputs] */
const char *tiny_folder_mistral(int window); /* every layer has the window */
const char *tiny_folder_gemma3(int window);  /* every second layer has the window */

#endif
