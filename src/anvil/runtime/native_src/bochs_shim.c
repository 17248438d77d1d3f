/* Loaded before the bochscpu extension, whose undefined symbols it then answers.
 *
 * 1. The extension wants two functions of glibc 2.38 under their C23 names; older glibc has them under the plain ones.
 * 2. It creates one fixed CPU model. Its call of that model's factory lands here, and another factory is called.
 * 3. A hang is noticed by an alarm whose handler is C: the emulator does not let Python run.
 *
 * Linked with no library: what is declared here comes from the process's own libc.
 */

#include "linux.h"

extern u64 strtoull(const char *text, char **end, int base);
extern int vsscanf(const char *text, const char *format, __builtin_va_list arguments);
extern void *dlopen(const char *path, int flags);
extern void *dlsym(void *library, const char *name);
extern void (*signal(int number, void (*handler)(int)))(int);
extern int setitimer(int which, const u64 *timer, u64 *old);
extern i64 write(int descriptor, const void *data, u64 n);
extern void _exit(int code) __attribute__((noreturn));

u64 __isoc23_strtoull(const char *text, char **end, int base) { return strtoull(text, end, base); }

int __isoc23_sscanf(const char *text, const char *format, ...) {
  __builtin_va_list arguments;
  __builtin_va_start(arguments, format);
  int count = vsscanf(text, format, arguments);
  __builtin_va_end(arguments);
  return count;
}

/* ---- the CPU model ---- */

typedef void *(*factory)(void *cpu);

static const char *extension_path, *factory_name;

/* To be called before the extension is loaded. The strings must stay. */
void shim_choose_model(const char *path_of_extension, const char *name_of_factory) {
  extension_path = path_of_extension;
  factory_name = name_of_factory;
}

/* create_corei3_cnl_cpuid(BX_CPU_C *), the factory of the extension's fixed model. */
void *_Z23create_corei3_cnl_cpuidP8BX_CPU_C(void *cpu) {
  enum { RTLD_LAZY = 1, RTLD_NOLOAD = 4 };
  factory make = (factory)dlsym(dlopen(extension_path, RTLD_LAZY | RTLD_NOLOAD), factory_name);
  return make != 0 ? make(cpu) : 0;
}

/* ---- hangs ---- */

enum { SIGALRM = 14 };

static const u8 *report;
static u64 report_bytes;
static int report_descriptor;

static void on_alarm(int number) {
  (void)number;
  write(report_descriptor, report, report_bytes);
  _exit(0);
}

/* After `milliseconds` (0: never) write the `bytes` of `data`, as they are then, to `descriptor` and end the process. */
void shim_alarm(u64 milliseconds, int descriptor, const u8 *data, u64 bytes) {
  u64 timer[4] = {0, 0, milliseconds / 1000, milliseconds % 1000 * 1000};
  report_descriptor = descriptor;
  report = data;
  report_bytes = bytes;
  signal(SIGALRM, on_alarm);
  setitimer(0, timer, 0);
}
