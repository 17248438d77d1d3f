/* The Linux system calls that freestanding code here needs, on each machine: no libc is linked. */

#ifndef ANVIL_LINUX_H
#define ANVIL_LINUX_H

typedef unsigned char u8;
typedef unsigned int u32;
typedef long i64;
typedef unsigned long u64;

#if defined(__x86_64__)

enum { SYS_read = 0, SYS_write = 1, SYS_mmap = 9, SYS_mprotect = 10, SYS_munmap = 11, SYS_sched_yield = 24 };
enum { SYS_rt_sigaction = 13, SYS_setitimer = 38, SYS_sigaltstack = 131, SYS_futex = 202, SYS_exit_group = 231 };

static inline i64 system_call(i64 number, i64 a, i64 b, i64 c, i64 d, i64 e, i64 f) {
  register i64 r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  i64 result;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

static inline void relax(void) { __builtin_ia32_pause(); }

#elif defined(__aarch64__) || (defined(__riscv) && __riscv_xlen == 64)

enum { SYS_read = 63, SYS_write = 64, SYS_mmap = 222, SYS_mprotect = 226, SYS_munmap = 215, SYS_sched_yield = 124 };
enum { SYS_rt_sigaction = 134, SYS_setitimer = 103, SYS_sigaltstack = 132, SYS_futex = 98, SYS_exit_group = 94 };

#if defined(__aarch64__)
#define SYSTEM_CALL "svc 0"
#define NUMBER_REGISTER "x8"
#define ARGUMENT_REGISTER(n) "x" #n
static inline void relax(void) { __asm__ volatile("yield"); }
#else
#define SYSTEM_CALL "ecall"
#define NUMBER_REGISTER "a7"
#define ARGUMENT_REGISTER(n) "a" #n
static inline void relax(void) { __asm__ volatile("" ::: "memory"); }
#endif

static inline i64 system_call(i64 number, i64 a, i64 b, i64 c, i64 d, i64 e, i64 f) {
  register i64 code __asm__(NUMBER_REGISTER) = number;
  register i64 r0 __asm__(ARGUMENT_REGISTER(0)) = a;
  register i64 r1 __asm__(ARGUMENT_REGISTER(1)) = b;
  register i64 r2 __asm__(ARGUMENT_REGISTER(2)) = c;
  register i64 r3 __asm__(ARGUMENT_REGISTER(3)) = d;
  register i64 r4 __asm__(ARGUMENT_REGISTER(4)) = e;
  register i64 r5 __asm__(ARGUMENT_REGISTER(5)) = f;
  __asm__ volatile(SYSTEM_CALL : "+r"(r0) : "r"(code), "r"(r1), "r"(r2), "r"(r3), "r"(r4), "r"(r5) : "memory");
  return r0;
}

#else
#error "no system calls are known for this machine: add them here"
#endif

#endif
