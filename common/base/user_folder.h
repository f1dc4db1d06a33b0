/* user_folder.h - where a user's own files are. Source: the XDG base directory specification 0.8. */
#pragma once

#include "common/base/err.h"

typedef enum { USER_FOLDER_STATE, USER_FOLDER_CONFIG, USER_FOLDER_CACHE } user_folder;

/* Writes FOLDER/tandem/NAME to out[PATH_MAX]; FOLDER is what XDG_STATE_HOME, XDG_CONFIG_HOME or
 * XDG_CACHE_HOME names where that is an absolute path, and otherwise lies in HOME. ERR_ARG: none of them is
 * set; ERR_LIMIT: the path would be too long. */
int user_folder_path(user_folder f, const char *name, char *out);
/* Makes the folders above `path` that are not there, for this user alone. If that fails, opening the file
 * will say so. */
void user_folder_make_parents(const char *path);
