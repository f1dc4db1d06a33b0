/* model_hashing.h - learns the hash of a model's file before anybody is served. */
#pragma once

#include "orchestrator/service/text_model.h"

#define MODEL_HASHING_SIGNALS_MAX 3

/* A file that no program has read may take a while: it is read in a thread, so that any of these signals ends
 * the reading (a loop that watches them too is told of it as ever), and the hash stays unknown. Nothing else
 * of this program goes on meanwhile; its workers load the same file. */
void model_hashing_learn(text_model *m, const int *signals, int count);
