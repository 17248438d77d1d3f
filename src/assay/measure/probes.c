/* Two kernels that show what this machine can do at best. Freestanding: no libc, compiled for the host's own vectors.
 *
 * read_sweep_N reads every byte once, as N streams, and keeps at least eight independent sums, so that neither latency
 * nor arithmetic limits it.
 * fma_spin keeps 24 independent vector accumulators in registers: more than any core has multiply-add latency times
 * throughput for. Both return a value that depends on all the work, so that none of it can be left out.
 */

#ifndef WIDTH
#define WIDTH 64 /* bytes of one vector */
#endif

typedef float vector __attribute__((vector_size(WIDTH)));
enum { LANES = WIDTH / 4, CHAINS = WIDTH == 64 ? 24 : 12 };

static float total(vector v)
{
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++)
        sum += v[lane];
    return sum;
}

/* Sum of count floats, read as STREAMS equal parts side by side; data aligned to 64 bytes, count a multiple of 1024.
 * How many streams the memory system likes best differs from machine to machine: the ceiling is the best of them. */
#define READ_SWEEP(STREAMS)                                                  \
    float read_sweep_##STREAMS(const float *data, long count)                \
    {                                                                        \
        const vector *v = (const vector *)data;                              \
        long part = count / LANES / STREAMS;                                 \
        vector sum[STREAMS * DEPTH] = {0};                                   \
        for (long i = 0; i < part; i += DEPTH) {                             \
            _Pragma("clang loop unroll(full)")                               \
            for (int k = 0; k < STREAMS * DEPTH; k++)                        \
                sum[k] += v[k / DEPTH * part + i + k % DEPTH];               \
        }                                                                    \
        for (int k = 1; k < STREAMS * DEPTH; k++)                            \
            sum[0] += sum[k];                                                \
        return total(sum[0]);                                                \
    }

#define DEPTH 8
READ_SWEEP(1)
#undef DEPTH
#define DEPTH 4
READ_SWEEP(2)
READ_SWEEP(4)
#undef DEPTH
#define DEPTH 2
READ_SWEEP(8)

/* rounds rounds of CHAINS vector multiply-adds; flops gets the number of floating-point operations done. */
float fma_spin(long rounds, float a, float b, long *flops)
{
    vector va = a - (vector){0}, vb = b - (vector){0}, x[CHAINS];
    for (int k = 0; k < CHAINS; k++)
        x[k] = vb * (float)k;
    for (long i = 0; i < rounds; i++) {
#pragma clang loop unroll(full)
        for (int k = 0; k < CHAINS; k++)
            x[k] = __builtin_elementwise_fma(x[k], va, vb);
    }
    for (int k = 1; k < CHAINS; k++)
        x[0] += x[k];
    *flops = rounds * CHAINS * LANES * 2;
    return total(x[0]);
}

/* Fills count 64-bit words with a xorshift sequence of its own for each seed: memory that no page or line compresses. */
void fill(unsigned long long *data, long count, unsigned long long seed)
{
    unsigned long long s = seed * 0x9E3779B97F4A7C15ull + 1;
    for (long i = 0; i < count; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        data[i] = s & 0x3F7FFFFF3F7FFFFFull; /* floats in [0, 1): never NaN, never slow */
    }
}
