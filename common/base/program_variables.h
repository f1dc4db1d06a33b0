/* program_variables.h - variables TANDEM_SOMETHING of the environment that nobody reads. */
#pragma once

/* A warning on stderr for each, with the name that it may have been meant to be; programs that this one
 * starts leave it out. Before there are threads: the environment is marked. */
void program_check_variables(const char *program);
