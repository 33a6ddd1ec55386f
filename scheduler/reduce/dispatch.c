/* SPDX-License-Identifier: Apache-2.0 */
/** Which reduction kernel runs: instruction set by CPU and setting, then dtype and operation; and the float control word around it. */
#include "base/log.h"
#include "base/settings.h"
#include "scheduler/reduce/kernel.h"

#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <xmmintrin.h>
#endif

/* Best first; "scalar" is last and always there. */
static const kernel_table_t *const tables[] = {
#if defined(__x86_64__)
    &kernel_avx512, &kernel_avx2,
#elif defined(__aarch64__)
    &kernel_neon,
#endif
    &kernel_scalar,
};
enum { TABLES = sizeof tables / sizeof *tables };
enum { SCALAR_MOST = 4 /* elements */ };

static bool usable[TABLES]; /* CPUID is slow in virtual machines: asked once */
static const kernel_table_t *chosen;
static pthread_once_t usable_once = PTHREAD_ONCE_INIT, chosen_once = PTHREAD_ONCE_INIT;

static bool is_usable(const kernel_table_t *table)
{
#if defined(__x86_64__)
    unsigned a, b, c, d;
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
    if (table == &kernel_avx2) return avx2;
    if (table == &kernel_avx512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
#endif
    (void)table;
    return true;
}

static void find_usable(void)
{
    for (size_t i = 0; i < TABLES; i++) usable[i] = is_usable(tables[i]);
}

/** The table called `isa` when it is built in and this CPU can run it, else NULL. */
static const kernel_table_t *find_table(const char *isa)
{
    pthread_once(&usable_once, find_usable);
    for (size_t i = 0; i < TABLES; i++)
        if (strcmp(tables[i]->isa, isa) == 0) return usable[i] ? tables[i] : NULL;
    return NULL;
}

static void choose(void)
{
    const char *wanted = setting_string(SETTING_ISA);
    if (strcmp(wanted, "auto") != 0 && (chosen = find_table(wanted))) return;
    for (size_t i = 0; i < TABLES && !chosen; i++) chosen = find_table(tables[i]->isa);
    if (strcmp(wanted, "auto") != 0)
        log_warn("reduce", "%s=%s: this CPU or build has no such kernels; using %s", setting_name(SETTING_ISA), wanted, chosen->isa);
}

static const kernel_table_t *choice(void)
{
    pthread_once(&chosen_once, choose);
    return chosen;
}

const char *reduce_isa(void) { return choice()->isa; }

/* ---------------------------------------------------------------- float control word */

#if defined(__x86_64__)
typedef unsigned control_t;
enum { CONTROL_DEFAULT = 0x1f80, CONTROL_FLAGS = 0x3f }; /* nearest, subnormals kept, exceptions masked; flags that only stick */

/** Reading costs a few cycles, writing tens: write only where the thread has changed something. */
static inline control_t control_enter(void)
{
    control_t before = _mm_getcsr();
    if ((before & ~(control_t)CONTROL_FLAGS) != CONTROL_DEFAULT) _mm_setcsr(CONTROL_DEFAULT);
    return before;
}

static inline void control_leave(control_t before)
{
    if ((before & ~(control_t)CONTROL_FLAGS) != CONTROL_DEFAULT) _mm_setcsr(before);
}
#elif defined(__aarch64__)
typedef uint64_t control_t;

static inline void control_write(control_t value) { __asm__ __volatile__("msr fpcr, %0" : : "r"(value) : "memory"); }

/** All zero: nearest, subnormals kept, NaN as is, exceptions masked. */
static inline control_t control_enter(void)
{
    control_t before;
    __asm__ __volatile__("mrs %0, fpcr" : "=r"(before));
    if (before != 0) control_write(0);
    return before;
}

static inline void control_leave(control_t before)
{
    if (before != 0) control_write(before);
}
#else
#include <fenv.h>
typedef fenv_t control_t;

static inline control_t control_enter(void)
{
    control_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    return before;
}

static inline void control_leave(control_t before) { fesetenv(&before); }
#endif

/* ---------------------------------------------------------------- calls */

static void run_kernel(const kernel_table_t *table, int op, const reduce_call_t *call, const double *factor)
{
    if (call->count == 0) return;
    kernel_fn *kernel = table->run[call->dtype][op];
    control_t before = control_enter();
    kernel(call, call->count * quoit_dtype_size(call->dtype), factor);
    control_leave(before);
}

static void run_wire(const kernel_table_t *table, const wire_call_t *call)
{
    control_t before = control_enter();
    kernel_wire_run(table, call);
    control_leave(before);
}

void wire_run(const wire_call_t *call) { run_wire(choice(), call); }

quoit_status_t wire_run_with(const char *isa, const wire_call_t *call)
{
    const kernel_table_t *table = find_table(isa);
    if (!table) return error_set(QUOIT_ERR_UNSUPPORTED, "reduce: this CPU or build has no kernels for \"%s\"", isa);
    run_wire(table, call);
    return QUOIT_OK;
}

/* All kernels give the same bits. For a handful of elements a vector's way of loading, and storing, a part of itself costs more than it saves. */
void reduce_run(const reduce_call_t *call) { run_kernel(call->count <= SCALAR_MOST ? &kernel_scalar : choice(), (int)call->op, call, NULL); }

quoit_status_t reduce_run_with(const char *isa, const reduce_call_t *call)
{
    const kernel_table_t *table = find_table(isa);
    if (!table) return error_set(QUOIT_ERR_UNSUPPORTED, "reduce: this CPU or build has no kernels for \"%s\"", isa);
    run_kernel(table, (int)call->op, call, NULL);
    return QUOIT_OK;
}

void reduce_scale(quoit_dtype_t dtype, void *destination, const void *source, size_t count, const double factor[2])
{
    bool is_complex = dtype == QUOIT_C64 || dtype == QUOIT_C128;
    if (is_complex && factor[1] == 0) { /* a real factor: both parts by it, so that infinity times the absent part is no NaN */
        is_complex = false;
        dtype = dtype == QUOIT_C64 ? QUOIT_F32 : QUOIT_F64;
        count *= 2;
    }
    const double pair[2] = {factor[0], is_complex ? factor[1] : factor[0]};
    reduce_call_t call = {.dtype = dtype, .sources = 1, .source = &source, .count = count, .destination = destination};
    run_kernel(choice(), KERNEL_SCALE, &call, pair);
}

void reduce_divide(quoit_dtype_t dtype, void *destination, const void *source, size_t count, int64_t divisor)
{
    reduce_call_t call = {.dtype = dtype, .op = QUOIT_AVG, .sources = 1, .source = &source, .count = count, .destination = destination,
                          .finish = {.divisor = divisor}};
    reduce_run(&call);
}
