/* SPDX-License-Identifier: Apache-2.0 */
/* Keys, certificates and their CA, made when a test runs and gone after it; and the log of this process, for texts to be looked up in. */
#ifndef QUOIT_TEST_TLS_FILES_H
#define QUOIT_TEST_TLS_FILES_H

#include <openssl/evp.h>
#include <openssl/x509.h>

#include <map>
#include <string>

namespace tls_test {

/* A folder of its own, readable by its owner only, removed at the end. */
class Folder {
public:
    Folder();
    ~Folder();
    Folder(const Folder &) = delete;
    std::string file(const std::string &name) const { return path + "/" + name; }
    std::string write(const std::string &name, const std::string &content, unsigned mode = 0600) const;
    std::string path;
};

std::string read_file(const std::string &path);
inline bool has(const std::string &text, const std::string &part) { return text.find(part) != std::string::npos; }
/* 32 random bytes as hexadecimal digits. */
std::string new_key();

struct Credentials {
    std::string certificate, key; /* paths */
};

struct Wish {
    int from_days = -1, until_days = 30;
    const char *usage = nullptr; /* extended key usage, "serverAuth" */
};

class Authority {
public:
    Authority(const Folder &folder, const std::string &name);
    ~Authority();
    Authority(const Authority &) = delete;
    Credentials issue(const std::string &name, Wish wish = {}) const;
    std::string file; /* its own certificate */

private:
    const Folder &folder_;
    EVP_PKEY *key_;
    X509 *certificate_;
};

using Settings = std::map<std::string, std::string>;
Settings plain();
Settings psk(const std::string &key_file);
Settings certificates(const Credentials &own, const std::string &ca);

/* What this process has logged, at level debug, since the last call. */
std::string new_log();

} // namespace tls_test

#endif
