/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel says of processors, and settings say of interfaces: numbers within their limits, and no list that takes forever. */
#include "fuzz.h"

#include "base/cpu.h"
#include "base/cpu_internal.h"
#include "transport/ip/ip_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST_PROCESSORS = 1 << 20 };

static void check_count(int count) { fuzz_check(count >= 0 && count <= MOST_PROCESSORS); }

/* /proc/self/cgroup, with a mount that has nothing. */
static void read_groups(const char *text)
{
    static int fd = -1;
    char path[32];
    if (fd < 0) fd = memfd_create("fuzz-cgroup", MFD_CLOEXEC);
    fuzz_check(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    check_count(cpu_cgroup_limit(path, "/proc/self/fd/none"));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_input_t input = fuzz_input(data, size);
    uint8_t what = fuzz_byte(&input);
    char *text = fuzz_string(input.at, fuzz_left(&input));
    uint32_t mbps = 0;
    cpu_set_t some;
    CPU_ZERO(&some);
    CPU_SET(3, &some);
    switch (what % 4) {
    case 0: check_count(cpu_parse_max(text)); break;
    case 1: (void)cpu_list_meets(text, &some); break;
    case 2: read_groups(text); break;
    default:
        if (fuzz_check_status(ip_settings_rate(text, "eth0", 0, &mbps)))
            fuzz_check(mbps <= 10000000);
        else
            fuzz_check(mbps == 0);
    }
    free(text);
    return 0;
}

void fuzz_seeds(void)
{
    static const char *const texts[] = {"\4max 100000\n", "\4""150000 100000\n", "\4""9223372036854775807 1\n", "\1""0-3,8", "\1""0-9223372036854775807", "\1-9223372036854775808-3",
                                        "\1""5-3,", "\2""0::/user.slice/a.scope\n", "\2""4:cpu,cpuacct:/docker/1234\n3:memory:/\n", "\2::/../..\n", "\3eth0=25000,eth1=1000",
                                        "\3eth0=", "\3=5", "\3eth0=99999999999999999999"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char name[24];
        snprintf(name, sizeof name, "text_%02zu", i);
        fuzz_seed(name, texts[i], strlen(texts[i]));
    }
}
