/* SPDX-License-Identifier: Apache-2.0 */
/* Where a benchmark ran. The ranks' places come by one allgather of bytes; the rest is rank 0's own. */
#include "environment.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static int usable_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static void read_cpu(char *text, size_t capacity)
{
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "re");
    snprintf(text, capacity, "unknown CPU");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || value == NULL)
            continue;
        value[strcspn(value, "\n")] = '\0';
        snprintf(text, capacity, "%s", value + 2);
        break;
    }
    if (file != NULL)
        fclose(file);
}

static void read_system(environment_t *environment)
{
    struct utsname names;
    time_t now = time(NULL);
    struct tm utc;
    if (uname(&names) == 0)
        snprintf(environment->kernel, sizeof environment->kernel, "%s %s %s", names.sysname, names.release, names.machine);
    strftime(environment->started, sizeof environment->started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    read_cpu(environment->cpu, sizeof environment->cpu);
    environment->cores = usable_cores();
}

/* QUOIT_* variables that are settings, with the value in force. */
static quoit_status_t read_settings(environment_t *environment)
{
    int count = 0;
    for (char **entry = environ; *entry != NULL; entry++)
        count += strncmp(*entry, "QUOIT_", 6) == 0;
    environment->setting = calloc((size_t)count + 1, sizeof *environment->setting);
    if (environment->setting == NULL)
        return QUOIT_ERR_NO_MEMORY;
    for (char **entry = environ; *entry != NULL && environment->settings < count; entry++) {
        const char *value, *equals = strchr(*entry, '=');
        if (strncmp(*entry, "QUOIT_", 6) != 0 || equals == NULL)
            continue;
        char *name = strndup(*entry, (size_t)(equals - *entry));
        if (name == NULL || quoit_setting_get(name + 6, &value) != QUOIT_OK) {
            free(name);
            continue;
        }
        environment->setting[environment->settings].name = name;
        environment->setting[environment->settings++].value = strdup(value);
    }
    return QUOIT_OK;
}

quoit_status_t environment_gather(quoit_comm_t *comm, const char *origin, environment_t *environment)
{
    place_t own;
    memset(environment, 0, sizeof *environment);
    memset(&own, 0, sizeof own);
    environment->version = quoit_version();
    environment->origin = origin;
    environment->ranks = quoit_comm_size(comm);
    environment->hosts = quoit_comm_hosts(comm);
    read_system(environment);
    quoit_status_t status = read_settings(environment);
    if (status != QUOIT_OK)
        return status;
    if (gethostname(own.host, sizeof own.host - 1) != 0)
        snprintf(own.host, sizeof own.host, "unknown");
    own.pid = getpid();
    own.cores = environment->cores;
    environment->place = calloc((size_t)environment->ranks, sizeof *environment->place);
    if (environment->place == NULL)
        return QUOIT_ERR_NO_MEMORY;
    return quoit_allgather(comm, &own, environment->place, sizeof own, QUOIT_U8, NULL, NULL);
}

void environment_describe(quoit_comm_t *comm, environment_t *environment)
{
    if (quoit_comm_describe(comm, QUOIT_FORMAT_TEXT, &environment->describe) != QUOIT_OK)
        environment->describe = NULL;
    if (quoit_comm_describe(comm, QUOIT_FORMAT_JSON, &environment->describe_json) != QUOIT_OK)
        environment->describe_json = NULL;
}

void environment_clear(environment_t *environment)
{
    for (int i = 0; i < environment->settings; i++) {
        free(environment->setting[i].name);
        free(environment->setting[i].value);
    }
    free(environment->setting);
    free(environment->place);
    free(environment->describe);
    free(environment->describe_json);
    memset(environment, 0, sizeof *environment);
}
