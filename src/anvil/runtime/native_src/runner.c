/* The runner: runs kernels in a process of their own, natively, under qemu-user, or on a board over ssh.
 *
 * A server on stdin and stdout. The client owns the address space: it decides where memory and code lie, so nothing but
 * READ and RUN needs an answer and a whole example travels in one round trip. A kernel that faults, or does not return
 * in time, is reported with the row it was in; then the process ends and the client starts another.
 *
 * Request: struct request, then its payload.           Answer: u64 0, then the payload, or struct fault.
 *   MAP     address, bytes, fill                         none   fresh read-write memory, every byte `fill`
 *   UNMAP   address, bytes                               none
 *   WRITE   address, bytes; payload: the bytes           none
 *   PROTECT address, bytes, PROT_* bits                  none
 *   READ    address, bytes                               the bytes
 *   RUN     rows, words, threads, milliseconds;          none but the 0
 *           payload: struct row[rows], i64[words]
 * All numbers are little endian; addresses and sizes of MAP, UNMAP and PROTECT are multiples of the page size.
 */

#include "linux.h"

enum operation { MAP = 1, UNMAP, WRITE, PROTECT, READ, RUN };

struct request {
  u64 operation, a, b, c, d;
};

enum fault_kind { KERNEL_SIGNAL = 1, NO_MEMORY = 2, BAD_REQUEST = 3 };

struct fault {
  u64 kind, signal, address;
  i64 row, tid; /* -1: not inside a kernel */
};

typedef void (*kernel_fn)(const i64 *words, i64 tid, i64 nthreads);
struct row {
  kernel_fn kernel;
  i64 first_word;
};

enum { PROT_READ = 1, PROT_WRITE = 2, PROT_EXEC = 4, MAP_PRIVATE_ANONYMOUS = 0x22 };
enum { SIGILL = 4, SIGTRAP = 5, SIGBUS = 7, SIGFPE = 8, SIGSEGV = 11, SIGALRM = 14 };
enum { PAGE = 4096, BUFFER = 1 << 16 };

static i64 current_row = -1, current_tid = -1;

/* ---- the byte stream ---- */

static u8 input[BUFFER], output[BUFFER];
static u64 input_at, input_end, output_end;

__attribute__((noreturn)) static void leave(i64 code) {
  for (;;) system_call(SYS_exit_group, code, 0, 0, 0, 0, 0);
}

static void copy(void *to, const void *from, u64 n) {
  u8 *target = to;
  const u8 *source = from;
  for (u64 i = 0; i < n; i++) target[i] = source[i];
}

static void write_all(const u8 *data, u64 n) {
  while (n > 0) {
    i64 written = system_call(SYS_write, 1, (i64)data, (i64)n, 0, 0, 0);
    if (written <= 0) leave(1);
    data += written;
    n -= (u64)written;
  }
}

static void flush(void) {
  write_all(output, output_end);
  output_end = 0;
}

static void send(const void *data, u64 n) {
  if (n > BUFFER - output_end) flush();
  if (n > BUFFER) {
    write_all(data, n);
    return;
  }
  copy(output + output_end, data, n);
  output_end += n;
}

static u64 read_some(void *to, u64 n) {
  i64 got = system_call(SYS_read, 0, (i64)to, (i64)n, 0, 0, 0);
  if (got <= 0) leave(got < 0); /* the client has closed its end */
  return (u64)got;
}

/* Answers are held back while requests are waiting: one write answers a whole batch. */
static void receive(void *to, u64 n) {
  u8 *target = to;
  while (n > 0) {
    if (input_at == input_end) {
      flush();
      if (n >= BUFFER) {
        u64 got = read_some(target, n);
        target += got;
        n -= got;
        continue;
      }
      input_end = read_some(input, BUFFER);
      input_at = 0;
    }
    u64 part = input_end - input_at < n ? input_end - input_at : n;
    copy(target, input + input_at, part);
    input_at += part;
    target += part;
    n -= part;
  }
}

/* ---- faults ---- */

__attribute__((noreturn)) static void report(u64 kind, u64 signal, u64 address) {
  struct fault fault = {kind, signal, address, current_row, current_tid};
  send(&fault, sizeof fault);
  flush();
  leave(0);
}

struct signal_info {
  int signal, error, code, padding;
  u64 address;
};

static void on_signal(int signal, struct signal_info *info, void *context) {
  (void)context;
  report(KERNEL_SIGNAL, (u64)signal, signal == SIGALRM ? 0 : info->address);
}

/* The kernel's own layouts, not libc's. */
struct signal_action {
  void (*handler)(int, struct signal_info *, void *);
  u64 flags;
#if defined(__x86_64__) || defined(__aarch64__)
  void (*restorer)(void);
#endif
  u64 mask;
};
struct signal_stack {
  void *base;
  int flags;
  u64 bytes;
};

static u8 alternate_stack[1 << 16] __attribute__((aligned(64)));

static void never_returns(void) { leave(1); }

static void catch_signals(void) {
  enum { SA_SIGINFO = 4, SA_RESTORER = 0x04000000, SA_ONSTACK = 0x08000000 };
  static const int signals[] = {SIGILL, SIGTRAP, SIGBUS, SIGFPE, SIGSEGV, SIGALRM};
  struct signal_stack stack = {alternate_stack, 0, sizeof alternate_stack};
  system_call(SYS_sigaltstack, (i64)&stack, 0, 0, 0, 0, 0);
  struct signal_action action = {.handler = on_signal, .flags = SA_SIGINFO | SA_ONSTACK, .mask = ~0ul};
#if defined(__x86_64__) || defined(__aarch64__)
  action.flags |= SA_RESTORER;
  action.restorer = never_returns;
#else
  (void)never_returns;
#endif
  for (u64 i = 0; i < sizeof signals / sizeof *signals; i++)
    system_call(SYS_rt_sigaction, signals[i], (i64)&action, 0, sizeof action.mask, 0, 0);
}

/* Deliver SIGALRM after `milliseconds`; 0 cancels. */
static void set_alarm(u64 milliseconds) {
  u64 timer[4] = {0, 0, milliseconds / 1000, milliseconds % 1000 * 1000};
  system_call(SYS_setitimer, 0, (i64)timer, 0, 0, 0, 0);
}

/* ---- memory ---- */

/* Map at exactly `address`, or anywhere when it is 0. */
static u8 *map(u64 address, u64 bytes) {
  i64 got = system_call(SYS_mmap, (i64)address, (i64)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE_ANONYMOUS, -1, 0);
  if (got < 0 && got > -4096) report(NO_MEMORY, 0, bytes);
  if (address != 0 && (u64)got != address) report(NO_MEMORY, 0, bytes);
  return (u8 *)got;
}

static void fill(u64 address, u64 bytes, u8 value) {
  u64 pattern = value * 0x0101010101010101ul;
  u64 *words = (u64 *)address;
  for (u64 i = 0; i < bytes / 8; i++) words[i] = pattern;
}

static void synchronise_code(u64 begin, u64 end) {
#if defined(__aarch64__)
  enum { LINE = 16 }; /* no line is smaller */
  for (u64 at = begin; at < end; at += LINE) __asm__ volatile("dc cvau, %0" ::"r"(at) : "memory");
  __asm__ volatile("dsb ish" ::: "memory");
  for (u64 at = begin; at < end; at += LINE) __asm__ volatile("ic ivau, %0" ::"r"(at) : "memory");
  __asm__ volatile("dsb ish\n isb" ::: "memory");
#elif defined(__riscv)
  __asm__ volatile("fence.i" ::: "memory");
#endif
  (void)begin, (void)end;
}

static void protect(u64 address, u64 bytes, u64 protection) {
  if (protection & PROT_EXEC) synchronise_code(address, address + bytes);
  if (system_call(SYS_mprotect, (i64)address, (i64)bytes, (i64)protection, 0, 0, 0) != 0)
    report(BAD_REQUEST, 0, address);
}

/* ---- running ---- */

static u8 *job;
static u64 job_bytes;

static void run(u64 rows, u64 words, u64 threads, u64 milliseconds) {
  u64 program_bytes = rows * sizeof(struct row), bytes = program_bytes + words * sizeof(i64);
  if (bytes > job_bytes) {
    if (job != 0) system_call(SYS_munmap, (i64)job, (i64)job_bytes, 0, 0, 0, 0);
    job_bytes = (bytes + PAGE - 1) / PAGE * PAGE;
    job = map(0, job_bytes);
  }
  receive(job, bytes);
  const struct row *program = (const struct row *)job;
  const i64 *arguments = (const i64 *)(job + program_bytes);
  set_alarm(milliseconds);
  for (u64 i = 0; i < rows; i++) {
    current_row = (i64)i;
    for (u64 tid = 0; tid < threads; tid++) {
      current_tid = (i64)tid;
      program[i].kernel(arguments + program[i].first_word, (i64)tid, (i64)threads);
    }
  }
  current_row = current_tid = -1;
  set_alarm(0);
}

static void serve(void) {
  static const u64 done = 0;
  for (;;) {
    struct request r;
    receive(&r, sizeof r);
    switch (r.operation) {
      case MAP:
        map(r.a, r.b);
        if (r.c != 0) fill(r.a, r.b, (u8)r.c);
        break;
      case UNMAP:
        system_call(SYS_munmap, (i64)r.a, (i64)r.b, 0, 0, 0, 0);
        break;
      case WRITE:
        receive((void *)r.a, r.b);
        break;
      case PROTECT:
        protect(r.a, r.b, r.c);
        break;
      case READ:
        send(&done, sizeof done);
        send((const void *)r.a, r.b);
        break;
      case RUN:
        run(r.a, r.b, r.c, r.d);
        send(&done, sizeof done);
        break;
      default:
        report(BAD_REQUEST, 0, r.operation);
    }
  }
}

__attribute__((noreturn, used)) void start(void) {
  catch_signals();
  serve();
  leave(0);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-64, %rsp\n call start\n");
#elif defined(__aarch64__)
__asm__(".globl _start\n_start: mov x29, #0\n mov x30, #0\n b start\n");
#elif defined(__riscv)
__asm__(
    ".globl _start\n_start:\n .option push\n .option norelax\n la gp, __global_pointer$\n .option pop\n j start\n");
#endif
