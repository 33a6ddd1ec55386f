/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of QUOIT_INTERFACE against a list of interfaces: a choice is one of them, with an address, and an error names what there is. */
#include "fuzz.h"

#include "transport/ip/ip_interface.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

static const struct {
    const char *name, *address;
    unsigned flags;
} machine[] = {{"lo", "127.0.0.1", IFF_UP | IFF_RUNNING | IFF_LOOPBACK}, {"lo", "::1", IFF_UP | IFF_RUNNING | IFF_LOOPBACK},
               {"eth0", "10.0.0.7", IFF_UP | IFF_RUNNING},               {"eth0", "fe80::1", IFF_UP | IFF_RUNNING},
               {"eth1", "192.168.1.2", IFF_UP},                          {"ib0", "fd00::7", IFF_UP | IFF_RUNNING},
               {"docker0", "172.17.0.1", IFF_UP | IFF_RUNNING},          {"veth12ab", "10.1.0.1", 0}};
enum { COUNT = sizeof machine / sizeof *machine };

static void lay_out(ip_interface_t all[COUNT])
{
    memset(all, 0, COUNT * sizeof *all);
    for (int i = 0; i < COUNT; i++) {
        snprintf(all[i].name, sizeof all[i].name, "%s", machine[i].name);
        all[i].flags = machine[i].flags;
        bool v6 = strchr(machine[i].address, ':') != NULL;
        all[i].address.any.sa_family = v6 ? AF_INET6 : AF_INET;
        fuzz_check(inet_pton(v6 ? AF_INET6 : AF_INET, machine[i].address,
                             v6 ? (void *)&all[i].address.v6.sin6_addr : (void *)&all[i].address.v4.sin_addr) == 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int families[] = {AF_UNSPEC, AF_INET, AF_INET6};
    ip_interface_t all[COUNT], chosen[4];
    fuzz_input_t input = fuzz_input(data, size);
    uint8_t options = fuzz_byte(&input);
    char *pattern = fuzz_string(input.at, fuzz_left(&input));
    int count = -1;
    lay_out(all);
    ip_interface_wish_t wish = {.variable = "QUOIT_INTERFACE", .pattern = pattern, .family = families[options % 3], .route = options & 4 ? &all[2].address : NULL};
    quoit_status_t status = ip_interface_choose(all, options & 8 ? 0 : COUNT, &wish, chosen, 4, &count);
    if (fuzz_check_status(status)) {
        fuzz_check(count >= 1 && count <= 4);
        for (int i = 0; i < count; i++) {
            bool known = false;
            for (int j = 0; j < COUNT && !known; j++)
                known = strcmp(chosen[i].name, all[j].name) == 0 && memcmp(&chosen[i].address, &all[j].address, sizeof all[j].address) == 0;
            fuzz_check(known);
            fuzz_check(wish.family == AF_UNSPEC || chosen[i].address.any.sa_family == wish.family);
        }
    } else {
        fuzz_check(count == -1 && (status == QUOIT_ERR_INVALID || status == QUOIT_ERR_NOT_FOUND));
    }
    free(pattern);
    return 0;
}

void fuzz_seeds(void)
{
    static const char *const patterns[] = {"\4", "\0eth0", "\0eth", "\0eth*,ib0", "\0=eth0", "\0^lo,docker0", "\1""10.0.0.0/8", "\2fd00::/16", "\0^172.16.0.0/12", "\0nothing", "\10""eth0", "\0""10.0.0.0/33", "\2fe80::/10"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        char name[24];
        snprintf(name, sizeof name, "pattern_%02zu", i);
        fuzz_seed(name, patterns[i], 1 + strlen(patterns[i] + 1));
    }
}
