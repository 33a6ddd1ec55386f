/* SPDX-License-Identifier: Apache-2.0 */
/* Where devices are attached, on an invented machine. */
#include "test/support/sysfs.h"

extern "C" {
#include "base/place.h"
}

namespace {

place_t read(const std::string &directory)
{
    place_t place;
    place_read(directory.c_str(), &place);
    return place;
}

TEST(Place, NodeAndDistanceAreReadFromSysfs)
{
    Sysfs sysfs;
    sysfs.add("infiniband", "mlx5_0", "pci0000:00/0000:00:01.0/0000:01:00.0", 0, local_cpus);
    sysfs.add("infiniband", "mlx5_1", "pci0000:80/0000:80:01.0/0000:81:00.0", 1, other_cpus);
    sysfs.add("net", "eth0", "pci0000:00/0000:00:02.0", -1, "");
    sysfs.add_software("infiniband", "rxe0");
    place_t near = read(sysfs.path("infiniband", "mlx5_0")), far = read(sysfs.path("infiniband", "mlx5_1"));
    EXPECT_TRUE(near.numa_node == 0 && near.near && !near.software && place_distance(&near) == 0) << near.numa_node;
    EXPECT_TRUE(far.numa_node == 1 && !far.near && !far.software && place_distance(&far) == 1) << far.numa_node;
    place_t unknown = read(sysfs.path("net", "eth0")), software = read(sysfs.path("infiniband", "rxe0")), none = read(sysfs.root + "/class/net/eth7");
    EXPECT_TRUE(unknown.numa_node == -1 && unknown.near && !unknown.software);
    EXPECT_TRUE(software.software && software.near);
    EXPECT_TRUE(none.numa_node == -1 && none.near && !none.software);
}

} // namespace
