/* gguf_writer.h - writes a GGUF v3 file: keys and tensors are collected, then saved at once. */
#pragma once

#include "common/file/gguf.h"

typedef struct gguf_writer gguf_writer;

gguf_writer *gguf_writer_alloc(void);  /* NULL: no memory */
void gguf_writer_free(gguf_writer *w); /* NULL is allowed */

/* A key stands once in a file. Running out of memory is told by gguf_writer_save. */
void gguf_write_u32(gguf_writer *w, const char *key, uint32_t v);
void gguf_write_f32(gguf_writer *w, const char *key, float v);
void gguf_write_bool(gguf_writer *w, const char *key, bool v);
void gguf_write_text(gguf_writer *w, const char *key, const char *text);
void gguf_write_i32s(gguf_writer *w, const char *key, const int32_t *values, uint64_t count);
void gguf_write_f32s(gguf_writer *w, const char *key, const float *values, uint64_t count);
/* Numbers of two bytes, little-endian. */
void gguf_write_u16s(gguf_writer *w, const char *key, const void *values, uint64_t count);
/* As gguf_key_at gives them. */
void gguf_write_value(gguf_writer *w, gguf_string key, gguf_string value);
/* Its data outlives the writer. */
void gguf_write_tensor(gguf_writer *w, const gguf_tensor *t);

/* Writes the file beside itself and renames it, so that a file of this name is whole. ERR_IO, ERR_NOMEM. */
int gguf_writer_save(const gguf_writer *w, const char *path, err *e);
