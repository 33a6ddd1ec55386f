/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints how the cost of an allreduce grows with hosts and ranks: what the plans of all ranks do, counted by the simulator.
 *
 *     bench_growth                            2 to 1,024 hosts with 1 to 16 ranks each
 *     bench_growth --quick                    up to 64 hosts
 *     bench_growth --hosts 4+3,2x2 --json     some layouts; lines of JSON, for other programs
 */
#include "bench/growth/growth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SMALL = 4, LARGE = 64 << 20 };

static const int table_hosts[] = {2, 3, 4, 7, 8, 16, 33, 64, 128, 256, 512, 1000, 1024}, table_ranks[] = {1, 2, 4, 8, 16};

static void usage(FILE *file) { fputs("usage: bench_growth [--quick] [--json] [--hosts LAYOUT,...]     such as 2x4 or 4+3\n", file); }

static int bits_for(int count)
{
    int bits = 0;
    while ((1ll << bits) < count) bits++;
    return bits;
}

static void print_head(bool json)
{
    if (json) return;
    puts("# allreduce of float32 on simulated ranks; large: 64 MiB, small: 4 bytes. NIC: most bytes that one host's interface sends (or receives)\n"
         "# over those of the vector, beside the least possible, 2(h-1)/h. Rounds: messages one after the other. Connections: of the rank\n"
         "# that has most, to other hosts.");
    printf("%12s %6s %6s  %10s %9s %9s %9s %7s %7s  %10s %7s %7s %7s\n", "layout", "hosts", "ranks", "large", "NIC", "least", "ratio", "rounds", "connect",
           "small", "rounds", "log2 h", "connect");
}

static int show(const char *layout, bool json)
{
    topology_t *topology = NULL;
    growth_cost_t large, small;
    tuning_t tuning = growth_tuning();
    quoit_status_t status = growth_parse(layout, &topology);
    if (status == QUOIT_OK) status = growth_measure(topology, &tuning, LARGE, &large);
    if (status == QUOIT_OK) status = growth_measure(topology, &tuning, SMALL, &small);
    if (status != QUOIT_OK) {
        fprintf(stderr, "bench_growth: %s: %s\n", layout, quoit_last_error());
        topology_destroy(topology);
        return status == QUOIT_ERR_INVALID ? 2 : 1;
    }
    int hosts = topology->hosts;
    double most = large.sent > large.received ? large.sent : large.received, least = 2.0 * (hosts - 1) / hosts;
    if (json)
        printf("{\"layout\": \"%s\", \"hosts\": %d, \"ranks\": %d, \"large\": {\"algorithm\": \"%s\", \"sent\": %.6f, \"received\": %.6f, \"rounds\": %d, "
               "\"connections\": %d}, \"small\": {\"algorithm\": \"%s\", \"sent\": %.6f, \"received\": %.6f, \"rounds\": %d, \"connections\": %d}}\n",
               layout, hosts, topology->ranks, plan_algorithm_name(large.algorithm), large.sent, large.received, large.rounds, large.connections,
               plan_algorithm_name(small.algorithm), small.sent, small.received, small.rounds, small.connections);
    else
        printf("%12s %6d %6d  %10s %9.4f %9.4f %9.4f %7d %7d  %10s %7d %7d %7d\n", layout, hosts, topology->ranks, plan_algorithm_name(large.algorithm),
               most, least, hosts > 1 ? most / least : 1.0, large.rounds, large.connections, plan_algorithm_name(small.algorithm), small.rounds,
               bits_for(hosts), small.connections);
    fflush(stdout);
    topology_destroy(topology);
    return 0;
}

static int show_table(bool quick, bool json)
{
    for (size_t i = 0; i < sizeof table_hosts / sizeof *table_hosts; i++)
        for (size_t k = 0; k < sizeof table_ranks / sizeof *table_ranks; k++) {
            char layout[32];
            if (quick && (table_hosts[i] > 64 || table_ranks[k] > 8)) continue;
            snprintf(layout, sizeof layout, "%dx%d", table_hosts[i], table_ranks[k]);
            int status = show(layout, json);
            if (status) return status;
        }
    return show("4+3", json);
}

static int show_some(char *layouts, bool json)
{
    for (char *layout = strtok(layouts, ","); layout; layout = strtok(NULL, ",")) {
        int status = show(layout, json);
        if (status) return status;
    }
    return 0;
}

int main(int argc, char **argv)
{
    bool quick = false, json = false;
    char *layouts = NULL;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) quick = true;
        else if (strcmp(argv[i], "--json") == 0) json = true;
        else if (strcmp(argv[i], "--hosts") == 0 && i + 1 < argc) layouts = argv[++i];
        else {
            bool help = strcmp(argv[i], "--help") == 0;
            if (!help) fprintf(stderr, "bench_growth: %s: not known, or something is missing after it\n", argv[i]);
            usage(help ? stdout : stderr);
            return help ? 0 : 2;
        }
    }
    print_head(json);
    return layouts ? show_some(layouts, json) : show_table(quick, json);
}
