/* A persistent team of threads that runs programs of packed kernels (see anvil/kernels/base.py).
 *
 * Every thread walks the same rows; a kernel divides its outputs by (tid, nthreads) itself; a barrier separates rows,
 * or only those whose mark asks for one.
 * The threads are the caller's: thread 0 is whoever calls team_run, the others sit in team_work. Waiting spins for a
 * bounded time, since a decode step lasts only milliseconds, then lets others run, then sleeps, so that a machine with
 * more threads than cores still makes progress. Freestanding: Linux system calls only.
 */

#include "linux.h"

typedef void (*kernel_fn)(const i64 *words, i64 tid, i64 nthreads);
struct row {
  kernel_fn kernel;
  i64 first_word;
};

enum { MAX_THREADS = 256 };
enum { WAIT = 1, ALONE = 2 }; /* marks, see anvil/runtime/waves.py */

/* A worker's mailbox: `runs` counts the runs it was asked to take part in. Only those wake it. */
struct worker {
  _Alignas(64) u32 runs;
  u32 asleep; /* whether it sleeps, or is about to */
  u32 stopping;
};

/* Zero-initialised by the caller. Fields written by different threads lie on different cache lines.
 * The job fields change only between runs: while a run lasts, every participant reads the same values. */
struct team {
  _Alignas(64) u32 arrived; /* threads that have reached the current barrier */
  _Alignas(64) u32 phase;   /* counts barriers passed */
  u32 asleep;               /* threads that sleep at the barrier, or are about to */
  _Alignas(64) const struct row *program;
  i64 rows;
  const i64 *words;
  const u8 *marks; /* one for each row, or none: all rows wait */
  u32 threads;
  struct worker workers[MAX_THREADS];
};

/* One spin takes some 15 ns on x86-64, so a thread gives its CPU away after about 10 us: whoever it waits for may
 * have been woken on that very CPU. A yield that finds nobody to yield to returns in less than 1 us. */
enum { SPINS = 512, YIELDS_AT_BARRIER = 64, YIELDS_WHEN_IDLE = 1024 };
enum { FUTEX_WAIT_PRIVATE = 128, FUTEX_WAKE_PRIVATE = 129 };

static u32 load(const u32 *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static u32 add(u32 *p, u32 n) { return __atomic_fetch_add(p, n, __ATOMIC_SEQ_CST); }

/* Count `word` up and wake whoever sleeps on it. */
static void advance(u32 *word, u32 *asleep) {
  add(word, 1);
  if (__atomic_load_n(asleep, __ATOMIC_SEQ_CST))
    system_call(SYS_futex, (i64)word, FUTEX_WAKE_PRIVATE, 0x7fffffff, 0, 0, 0);
}

/* Wait until `word` is no longer `value`: spin, then let others run, then sleep. */
static void wait_while(const u32 *word, u32 value, u32 *asleep, u32 yields) {
  for (u32 spins = SPINS; load(word) == value && spins > 0; spins--) relax();
  for (; load(word) == value && yields > 0; yields--) system_call(SYS_sched_yield, 0, 0, 0, 0, 0, 0);
  if (load(word) != value) return;
  add(asleep, 1); /* sequentially consistent with advance(): either it sees us, or the wait below sees its count */
  while (load(word) == value) system_call(SYS_futex, (i64)word, FUTEX_WAIT_PRIVATE, value, 0, 0, 0);
  add(asleep, (u32)-1);
}

/* The last of `threads` threads to arrive opens the barrier for all. */
static void barrier(struct team *team, u32 threads) {
  u32 phase = load(&team->phase);
  if (add(&team->arrived, 1) == threads - 1) {
    __atomic_store_n(&team->arrived, 0, __ATOMIC_RELAXED);
    advance(&team->phase, &team->asleep);
  } else {
    wait_while(&team->phase, phase, &team->asleep, YIELDS_AT_BARRIER);
  }
}

static void walk(struct team *team, u32 tid) {
  /* Copies: after the last barrier the caller may already be preparing the next run. */
  const struct row *program = team->program;
  const i64 *words = team->words;
  const u8 *marks = team->marks;
  i64 rows = team->rows;
  u32 threads = team->threads;
  for (i64 i = 0; i < rows; i++) {
    u8 mark = marks != 0 ? marks[i] : WAIT;
    if (i > 0 && mark & WAIT && threads > 1) barrier(team, threads);
    if (!(mark & ALONE))
      program[i].kernel(words + program[i].first_word, tid, threads);
    else if (tid == 0)
      program[i].kernel(words + program[i].first_word, 0, 1);
  }
  if (threads > 1) barrier(team, threads);
}

/* Bytes a team takes, for the caller to allocate (64-byte aligned, zeroed). */
i64 team_bytes(void) { return sizeof(struct team); }

i64 team_max_threads(void) { return MAX_THREADS; }

/* Run `rows` rows on threads 0..threads-1 of the team; returns when all have finished. Thread 0 is the caller, and
 * workers 1..threads-1 must have entered team_work, or be about to. One run at a time. */
void team_run(struct team *team, const struct row *program, i64 rows, const i64 *words, const u8 *marks, i64 threads) {
  team->program = program;
  team->rows = rows;
  team->words = words;
  team->marks = marks;
  team->threads = (u32)threads;
  if (rows == 0) return;
  for (i64 tid = 1; tid < threads; tid++) advance(&team->workers[tid].runs, &team->workers[tid].asleep);
  walk(team, 0);
}

/* The life of worker `tid` (1, 2, ...); returns after team_stop. */
void team_work(struct team *team, i64 tid) {
  struct worker *worker = &team->workers[tid];
  for (u32 seen = 0;; seen++) {
    wait_while(&worker->runs, seen, &worker->asleep, YIELDS_WHEN_IDLE);
    if (load(&worker->stopping)) return;
    walk(team, (u32)tid);
  }
}

/* Let workers 1..threads-1 return from team_work. No run may be in progress. */
void team_stop(struct team *team, i64 threads) {
  for (i64 tid = 1; tid < threads; tid++) {
    __atomic_store_n(&team->workers[tid].stopping, 1, __ATOMIC_RELEASE);
    advance(&team->workers[tid].runs, &team->workers[tid].asleep);
  }
}
