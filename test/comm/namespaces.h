// SPDX-License-Identifier: Apache-2.0
// Hosts as network namespaces, joined by a bridge in one more: real interfaces that can be taken down, removed, or led astray.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace comm_test {

class Namespaces {
  public:
    explicit Namespaces(int hosts);
    ~Namespaces();
    Namespaces(const Namespaces &) = delete;
    Namespaces &operator=(const Namespaces &) = delete;
    const std::string &why() const { return why_; } // "" when they stand; else why not
    std::string path(int host) const { return "/var/run/netns/" + name(host); }
    std::string address(int host) const { return "10.79.0." + std::to_string(host + 1); }
    // Run `ip -n <host's namespace> words`; true when it succeeded.
    bool ip(int host, const std::string &words) const;
    // The name of a host's namespace is gone; what runs in it goes on.
    bool remove_name(int host) const;

  private:
    std::string name(int host) const { return stem_ + (host < 0 ? "sw" : std::to_string(host)); }
    bool build();
    std::string stem_, why_;
    int hosts_;
};

// How the hosts of a test's ranks are told apart, for Processes: by labels, or by the network (then all have one label).
class Places {
  public:
    Places(const std::vector<int> &host_of, bool apart);
    const std::string &why() const { return why_; } // "", or why there are no namespaces
    std::vector<std::string> environment, networks;

  private:
    std::unique_ptr<Namespaces> net_;
    std::string why_;
};

} // namespace comm_test
