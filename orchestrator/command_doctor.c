/* tandem doctor: looks at what tandem needs, and says what to do about what is missing. */
#include "common/base/clock.h"
#include "common/base/program.h"
#include "orchestrator/commands.h"
#include "orchestrator/workers.h"
#include "version.h"
#include "wire/transport.h"
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define VERSION_MAX   1024
#define MEMORY_LOW_KB (512u << 10) /* less free memory than this is worth a word */
#define FRAME_WAIT_MS 2000

typedef struct doctor {
  const flags *flags;
  int failed;
} doctor;

static void good(const char *what, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void good(const char *what, const char *format, ...) {
  va_list args;
  va_start(args, format);
  printf("ok    %-9s ", what);
  vprintf(format, args);
  putchar('\n');
  va_end(args);
}

static void bad(doctor *d, const char *what, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void bad(doctor *d, const char *what, const char *format, ...) {
  va_list args;
  va_start(args, format);
  printf("BAD   %-9s ", what);
  vprintf(format, args);
  putchar('\n');
  va_end(args);
  d->failed++;
}

/* ---- processor and memory ---- */

/* The value of "KEY : VALUE" in a file of /proc, or "". */
static void read_key(const char *path, const char *key, char *out, size_t size) {
  char line[512];
  FILE *file = fopen(path, "re");
  *out = 0;
  while (file && !*out && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (!colon || strncmp(line, key, strlen(key)) != 0) continue;
    snprintf(out, size, "%s", colon + 1 + strspn(colon + 1, " \t"));
    out[strcspn(out, "\n")] = 0;
  }
  if (file) fclose(file);
}

static void add_feature(char *list, size_t size, const char *name, bool has) {
  size_t used = strlen(list);
  if (has) snprintf(list + used, size - used, " %s", name);
}

static const char *cpu_features(char *out, size_t size) {
  *out = 0;
#if defined(__x86_64__) || defined(__i386__)
  add_feature(out, size, "avx2", __builtin_cpu_supports("avx2"));
  add_feature(out, size, "fma", __builtin_cpu_supports("fma"));
  add_feature(out, size, "f16c", __builtin_cpu_supports("f16c"));
  add_feature(out, size, "avx512f", __builtin_cpu_supports("avx512f"));
  add_feature(out, size, "avx512vnni", __builtin_cpu_supports("avx512vnni"));
#else
  add_feature(out, size, "none that is used here: plain C", true);
#endif
  return out;
}

static void check_cpu(doctor *d) {
  char model[200], features[200];
  struct utsname machine;
  (void)d;
  read_key("/proc/cpuinfo", "model name", model, sizeof model);
  if (!*model) snprintf(model, sizeof model, "%s", uname(&machine) == 0 ? machine.machine : "unknown");
  good("cpu", "%s;%s; %d threads for this process", model, cpu_features(features, sizeof features),
       program_processors());
}

static void check_memory(doctor *d) {
  char total[64], available[64];
  (void)d;
  read_key("/proc/meminfo", "MemTotal", total, sizeof total);
  read_key("/proc/meminfo", "MemAvailable", available, sizeof available);
  unsigned long long kb = strtoull(available, NULL, 10);
  good("memory", "%s, %s available%s", total, available,
       kb < MEMORY_LOW_KB ? ": little; a model must fit into it with its cache" : "");
}

/* ---- the model ---- */

static void check_model(doctor *d) {
  text_model m;
  err e = {0};
  if (!d->flags->model) {
    good("model", "not looked at: give one with -m (scripts/get_model.sh fetches the default one)");
    return;
  }
  int rc = text_model_open(&m, d->flags->model, &e);
  if (rc == ERR_OK) rc = text_model_load(&m, NULL, &e);
  if (rc) {
    bad(d, "model", "%s", e.text);
  } else {
    const model_config *c = &m.config;
    char fingerprint[33];
    hash_format(m.fingerprint, fingerprint);
    good("model", "%d layers of %d, %d heads (%d of keys), vocabulary %d, context %d, fingerprint %s",
         c->layers, c->embed, c->heads, c->kv_heads, c->vocab, c->context, fingerprint);
    if (!m.tokens)
      good("template", "none: %s", m.chat_error.text);
    else if (m.chat)
      good("template", "%s, built in", chat_template_name(m.chat));
    else
      bad(d, "template", "%s", m.chat_error.text);
  }
  text_model_close(&m);
}

/* ---- sockets: a frame there and back ---- */

typedef struct exchange {
  uv_loop_t loop;
  uv_timer_t patience;
  transport *server, *client;
  msg hello;
  uint64_t sent_us, took_us;
} exchange;

static void on_overdue(uv_timer_t *timer) {
  uv_stop(timer->loop);
}

static void on_server_message(void *context, peer_id from, const msg *m) {
  exchange *x = context;
  msg welcome = x->hello;
  if (m->type != MSG_HELLO) return;
  welcome.type = MSG_WELCOME;
  welcome.to = m->u.hello.incarnation;
  transport_send(x->server, from, &welcome);
}

static void on_client_message(void *context, peer_id from, const msg *m) {
  exchange *x = context;
  (void)from;
  if (m->type != MSG_WELCOME) return;
  x->took_us = clock_us() - x->sent_us;
  uv_stop(&x->loop);
}

static msg make_hello(void) {
  msg m = {.type = MSG_HELLO};
  m.u.hello = (msg_hello){
      .version_min = WIRE_VERSION_MIN, .version_max = WIRE_VERSION_MIN, .role = WIRE_ROLE_ORCHESTRATOR};
  program_random(&m.u.hello.incarnation, sizeof m.u.hello.incarnation, NULL);
  return m;
}

static int exchange_frames(exchange *x, const char *endpoint, err *e) {
  char bound[WIRE_STRING_MAX];
  wire_id self = x->hello.u.hello.incarnation;
  transport_options server = {.on_message = on_server_message, .context = x, .self = self};
  transport_options client = {.on_message = on_client_message, .context = x, .self = self};
  int rc = transport_open(&x->server, &x->loop, &server, e);
  if (rc == ERR_OK) rc = transport_open(&x->client, &x->loop, &client, e);
  if (rc == ERR_OK) rc = transport_bind(x->server, endpoint, bound, sizeof bound, e);
  if (rc) return rc;
  peer_id peer = transport_connect(x->client, bound, e);
  if (!peer) return e->code;
  x->sent_us = clock_us();
  transport_send(x->client, peer, &x->hello);
  uv_timer_start(&x->patience, on_overdue, FRAME_WAIT_MS, 0);
  uv_run(&x->loop, UV_RUN_DEFAULT);
  return x->took_us ? ERR_OK
                    : err_set(e, ERR_TIMEOUT, "no frame came through %s within %d ms", bound, FRAME_WAIT_MS);
}

static void check_socket(doctor *d, const char *what, const char *endpoint) {
  exchange x = {.hello = make_hello()};
  err e = {0};
  if (uv_loop_init(&x.loop) != 0) {
    bad(d, what, "cannot make an event loop: is the limit of open files (ulimit -n) too low?");
    return;
  }
  uv_timer_init(&x.loop, &x.patience);
  if (exchange_frames(&x, endpoint, &e))
    bad(d, what, "%s: %s", endpoint, e.text);
  else
    good(what, "%s: a frame there and back in %" PRIu64 " us", endpoint, x.took_us);
  transport_close(x.client);
  transport_close(x.server);
  uv_close((uv_handle_t *)&x.patience, NULL);
  uv_run(&x.loop, UV_RUN_DEFAULT);
  uv_loop_close(&x.loop);
}

static void check_sockets(doctor *d) {
  char directory[] = "/tmp/tandem-doctor-XXXXXX", endpoint[64], path[64];
  if (mkdtemp(directory)) {
    snprintf(endpoint, sizeof endpoint, "ipc://%s/socket", directory);
    check_socket(d, "ipc", endpoint);
    snprintf(path, sizeof path, "%s/socket", directory);
    unlink(path);
    rmdir(directory);
  } else {
    bad(d, "ipc", "cannot make a directory in /tmp: %s", strerror(errno));
  }
  check_socket(d, "tcp", "tcp://127.0.0.1:*");
}

/* ---- the other programs ---- */

static void check_worker(doctor *d, const char *name) {
  char said[VERSION_MAX], path[PATH_MAX], ours[200];
  err e = {0};
  snprintf(ours, sizeof ours, "%s %s (%s)", name, TANDEM_VERSION, TANDEM_COMMIT);
  if (workers_find(name, path, &e) || workers_ask_version(name, said, sizeof said, &e)) {
    bad(d, "worker", "%s", e.text);
    return;
  }
  said[strcspn(said, "\n")] = 0;
  if (strncmp(said, ours, strlen(ours)) == 0)
    good("worker", "%s: %s", path, said);
  else
    bad(d, "worker", "%s is '%s', but this is %s (%s): build or install all three together", path, said,
        TANDEM_VERSION, TANDEM_COMMIT);
}

int command_doctor(int argc, char **argv) {
  flags f;
  flags_parse(&f, FLAGS_DOCTOR, argc, argv);
  doctor d = {.flags = &f};
  good("tandem", "%s (%s)", TANDEM_VERSION, TANDEM_COMMIT);
  check_cpu(&d);
  check_memory(&d);
  check_worker(&d, "tandem-target");
  check_worker(&d, "tandem-draft");
  check_sockets(&d);
  check_model(&d);
  if (fflush(stdout) != 0) return STATUS_IO;
  if (d.failed == 0) return STATUS_OK;
  return command_error(STATUS_FAILED, "%d of these %s BAD: see above", d.failed,
                       d.failed == 1 ? "is" : "are");
}
