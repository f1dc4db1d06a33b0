/* draft_arguments.h - the command line of tandem-draft. */
#pragma once

#include "common/file/gguf.h"
#include "wire/worker_program.h"

/* context 0: the drafter's own default; sessions: those of a model; draft and device are never NULL. A wrong
 * flag ends the program. */
flag_values draft_arguments_parse(int argc, char **argv);

/* What --draft-type makes of a head's matrices; GGUF_F32: it was not given. */
gguf_type draft_arguments_type(const flag_values *v);
