/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks from the environment. Each launcher is a row: its variables for rank and size. The meeting place is QUOIT_STORE or
 * MASTER_ADDR and MASTER_PORT where they are set; else the first host of a Slurm step, or this host when all ranks are children of
 * one launcher here. Ports that we choose lie in 20000..29999, below the range from which kernels take temporary ports.
 */
#include "ranks.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct launcher {
    const char *origin;
    const char *rank;
    const char *size[4];  /* the first that is set counts */
    const char *local[3]; /* number of ranks on this host */
    const char *only_with; /* a variable that must be set too, NULL */
} launcher_t;

/* Slurm comes last: mpirun and torchrun inside an allocation leave its variables in place. */
static const launcher_t launchers[] = {
    {"torchrun", "RANK", {"WORLD_SIZE"}, {"LOCAL_WORLD_SIZE"}, NULL},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}, {"OMPI_COMM_WORLD_LOCAL_SIZE"}, NULL},
    {"MPICH or Intel MPI", "PMI_RANK", {"PMI_SIZE"}, {"MPI_LOCALNRANKS"}, NULL},
    {"Slurm", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {NULL}, "SLURM_STEP_NODELIST"},
    {"PMIx", "PMIX_RANK", {"PMIX_SIZE", "WORLD_SIZE", "PRTE_NUM_PROCS"}, {"PMIX_LOCAL_SIZE"}, NULL},
};

static const char *variable(const char *name)
{
    const char *value = name != NULL ? getenv(name) : NULL;
    return value != NULL && *value != '\0' ? value : NULL;
}

/* The first of `names` that is set; *found is its name. */
static const char *first_variable(const char *const *names, int count, const char **found)
{
    for (int i = 0; i < count && names[i] != NULL; i++) {
        const char *value = variable(names[i]);
        if (value != NULL) {
            *found = names[i];
            return value;
        }
    }
    return NULL;
}

static bool read_number(const char *name, const char *text, long minimum, long maximum, long *number)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < minimum || value > maximum) {
        fprintf(stderr, "bench_allreduce: environment variable %s=%s: expected an integer from %ld to %ld\n", name, text, minimum, maximum);
        return false;
    }
    *number = value;
    return true;
}

bool ranks_first_host(const char *list, char *host, size_t capacity)
{
    size_t prefix = strcspn(list, "[,"), digits = 0, suffix = 0;
    const char *number = "", *after = "";
    if (list[prefix] == '[') {
        number = list + prefix + 1;
        digits = strspn(number, "0123456789");
        const char *close = strchr(number, ']');
        if (digits == 0 || close == NULL || strchr("-,]", number[digits]) == NULL)
            return false;
        after = close + 1; /* what follows the brackets belongs to the name: rack[1-2]n */
        suffix = strcspn(after, "[,");
        if (after[suffix] == '[')
            return false;
    }
    if (prefix + digits + suffix == 0 || prefix + digits + suffix >= capacity)
        return false;
    snprintf(host, capacity, "%.*s%.*s%.*s", (int)prefix, list, (int)digits, number, (int)suffix, after);
    return true;
}

static int own_port(unsigned long seed)
{
    return 20000 + (int)(seed % 10000);
}

static bool slurm_store(char *store, size_t capacity)
{
    const char *list = variable("SLURM_STEP_NODELIST"), *job = variable("SLURM_JOB_ID"), *step = variable("SLURM_STEP_ID");
    char host[256];
    if (!ranks_first_host(list, host, sizeof host)) {
        fprintf(stderr, "bench_allreduce: environment variable SLURM_STEP_NODELIST=%s: expected names like node1,node2 or node[1-4]\n", list);
        return false;
    }
    unsigned long seed = (job != NULL ? strtoul(job, NULL, 10) : 0) + 101 * (step != NULL ? strtoul(step, NULL, 10) : 0);
    snprintf(store, capacity, "tcp://%s:%d", host, own_port(seed));
    return true;
}

/* torchrun keeps a store of its own listening on MASTER_PORT: meet on another port of that host. */
static bool torchrun_store(char *store, size_t capacity)
{
    const char *address = variable("MASTER_ADDR"), *restart = variable("TORCHELASTIC_RESTART_COUNT");
    long port;
    if (!read_number("MASTER_PORT", variable("MASTER_PORT"), 1, 65535, &port))
        return false;
    unsigned long seed = (unsigned long)port * 31 + (restart != NULL ? strtoul(restart, NULL, 10) : 0);
    bool bare_ipv6 = strchr(address, ':') != NULL && address[0] != '[';
    snprintf(store, capacity, "tcp://%s%s%s:%d", bare_ipv6 ? "[" : "", address, bare_ipv6 ? "]" : "", own_port(seed));
    return true;
}

static bool find_store(const launcher_t *launcher, ranks_t *ranks)
{
    const char *local_name = NULL, *local = first_variable(launcher->local, 3, &local_name), *agent = variable("TORCHELASTIC_USE_AGENT_STORE");
    long here = 0;
    bool master = variable("MASTER_ADDR") != NULL && variable("MASTER_PORT") != NULL;
    if (variable("QUOIT_STORE") == NULL && master && agent != NULL && strcmp(agent, "True") == 0)
        return torchrun_store(ranks->store, sizeof ranks->store);
    if (variable("QUOIT_STORE") != NULL || master) {
        snprintf(ranks->store, sizeof ranks->store, "env://");
        return true;
    }
    if (strcmp(launcher->origin, "Slurm") == 0)
        return slurm_store(ranks->store, sizeof ranks->store);
    if (local != NULL && !read_number(local_name, local, 1, INT_MAX, &here))
        return false;
    if (here == ranks->size) { /* all ranks are children of one launcher on this host */
        snprintf(ranks->store, sizeof ranks->store, "tcp://127.0.0.1:%d", own_port((unsigned long)getppid()));
        return true;
    }
    if (variable("SLURM_STEP_NODELIST") != NULL) /* srun --mpi=pmi2 and the like */
        return slurm_store(ranks->store, sizeof ranks->store);
    fprintf(stderr,
            "bench_allreduce: rank %d of %d (%s, from %s) does not know where the ranks meet: set MASTER_ADDR (a host that all reach, "
            "where rank 0 runs) and MASTER_PORT, or give --store tcp://host:port\n",
            ranks->rank, ranks->size, launcher->origin, launcher->rank);
    return false;
}

static ranks_outcome_t from_launcher(const launcher_t *launcher, const options_t *options, ranks_t *ranks)
{
    const char *size_name = NULL, *rank_text = variable(launcher->rank), *size_text = first_variable(launcher->size, 4, &size_name);
    long rank, size = options->size;
    if (rank_text == NULL || (launcher->only_with != NULL && variable(launcher->only_with) == NULL))
        return RANKS_NONE;
    if (size_text == NULL && options->size == 0) {
        fprintf(stderr, "bench_allreduce: %s=%s is set but %s is not: set it, give --size, or -n N to start ranks here\n", launcher->rank,
                rank_text, launcher->size[0]);
        return RANKS_WRONG;
    }
    if (options->size == 0 && !read_number(size_name, size_text, 1, INT_MAX, &size))
        return RANKS_WRONG;
    if (!read_number(launcher->rank, rank_text, 0, size - 1, &rank))
        return RANKS_WRONG;
    ranks->rank = (int)rank;
    ranks->size = (int)size;
    ranks->origin = launcher->origin;
    if (options->store != NULL)
        snprintf(ranks->store, sizeof ranks->store, "%s", options->store);
    else if (!find_store(launcher, ranks))
        return RANKS_WRONG;
    return RANKS_FOUND;
}

ranks_outcome_t ranks_find(const options_t *options, ranks_t *ranks)
{
    if (options->store != NULL && strlen(options->store) >= sizeof ranks->store) {
        fprintf(stderr, "bench_allreduce: --store %s: longer than %zu bytes\n", options->store, sizeof ranks->store - 1);
        return RANKS_WRONG;
    }
    if (options->rank >= 0) {
        ranks->rank = options->rank;
        ranks->size = options->size;
        ranks->origin = "options";
        snprintf(ranks->store, sizeof ranks->store, "%s", options->store);
        return RANKS_FOUND;
    }
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        ranks_outcome_t outcome = from_launcher(&launchers[i], options, ranks);
        if (outcome != RANKS_NONE)
            return outcome;
    }
    return RANKS_NONE;
}
