/* socket_folder.h - a private folder for the sockets of one process, and for a file that it hands to the
 * programs that it starts, which is removed when the process ends. */
#pragma once

#include "common/base/err.h"
#include <sys/un.h>

#define SOCKET_FOLDER_MAX    80       /* bytes, so that a socket's path fits into sockaddr_un */
#define SOCKET_NAME_MAX      16       /* of a name in it */
#define SOCKET_FOLDER_CORPUS "corpus" /* the file */
#define SOCKET_ENDPOINT_MAX  (SOCKET_FOLDER_MAX + SOCKET_NAME_MAX + 16)

_Static_assert(SOCKET_FOLDER_MAX + SOCKET_NAME_MAX <= sizeof(((struct sockaddr_un *)0)->sun_path),
               "a socket's path must fit");

typedef struct socket_folder {
  char path[SOCKET_FOLDER_MAX]; /* "": none */
  int lock; /* a file in it, locked while this process lives, so that others recognise a folder that was left
               behind */
} socket_folder; /* all zero at first */

/* Makes the folder in TMPDIR if that is short enough and can be written, else in /tmp. First it removes
 * folders there that killed programs of this user have left behind. ERR_IO. */
int socket_folder_make(socket_folder *f, err *e);
/* A path of "" is allowed. */
void socket_folder_remove(socket_folder *f);
/* "ipc://FOLDER/NAME" */
void socket_folder_endpoint(char out[SOCKET_ENDPOINT_MAX], const char *folder, const char *name);
/* "FOLDER/corpus" */
void socket_folder_corpus(char out[SOCKET_ENDPOINT_MAX], const char *folder);
