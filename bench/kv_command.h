/* kv_command.h - `tandem bench kv`: what it writes and what it takes to commit accepted rows in three ways.
 */
#pragma once

/* Returns the exit status. */
int kv_command(int argc, char **argv);
