/* nearest_word.h - what a wrong word was most likely meant to be. */
#pragma once

#define NEAREST_WORDS_MAX 160

/* The one of `count` words that `wrong` is few changes away from, for its length; or NULL. */
const char *nearest_word(const char *wrong, const char *const *words, int count);
