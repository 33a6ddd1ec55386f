// SPDX-License-Identifier: Apache-2.0
#include "namespaces.h"

#include <algorithm>
#include <cstdlib>
#include <unistd.h>

namespace comm_test {

static bool shell(const std::string &command) { return system((command + " >/dev/null 2>&1").c_str()) == 0; }

Namespaces::Namespaces(int hosts) : hosts_(hosts)
{
    static int number;
    stem_ = "quoit-" + std::to_string(getpid()) + "-c" + std::to_string(number++) + "h";
    if (geteuid() != 0)
        why_ = "network namespaces need root";
    else if (!build())
        why_ = "cannot make network namespaces joined by veth pairs with ip";
}

bool Namespaces::build()
{
    if (!shell("ip netns add " + name(-1)) || !ip(-1, "link add br0 type bridge") || !ip(-1, "link set br0 up")) return false;
    for (int host = 0; host < hosts_; host++) {
        std::string port = "port" + std::to_string(host);
        bool made = shell("ip netns add " + name(host)) && ip(-1, "link add " + port + " type veth peer name eth0 netns " + name(host)) &&
                    ip(-1, "link set " + port + " master br0 up") && ip(host, "addr add " + address(host) + "/24 dev eth0") &&
                    ip(host, "link set eth0 up") && ip(host, "link set lo up");
        if (!made) return false;
    }
    return true;
}

Namespaces::~Namespaces()
{
    for (int host = -1; host < hosts_; host++) shell("ip netns del " + name(host));
}

bool Namespaces::ip(int host, const std::string &words) const { return shell("ip -n " + name(host) + " " + words); }

bool Namespaces::remove_name(int host) const { return shell("ip netns del " + name(host)); }

Places::Places(const std::vector<int> &host_of, bool apart)
{
    if (!apart) return;
    net_ = std::make_unique<Namespaces>(*std::max_element(host_of.begin(), host_of.end()) + 1);
    why_ = net_->why();
    environment.push_back("QUOIT_HOST_LABEL=one");
    for (int host : host_of) networks.push_back(net_->path(host));
}

} // namespace comm_test
