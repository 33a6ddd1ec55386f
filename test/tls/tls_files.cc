/* SPDX-License-Identifier: Apache-2.0 */
#include "tls_files.h"
#include "test/support/temporary.h"

#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

extern "C" {
#include "base/settings.h"
}

namespace tls_test {

namespace {

void require(bool condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "test/tls: cannot %s\n", what);
    abort();
}

X509 *make_certificate(const std::string &name, EVP_PKEY *key, X509 *issuer, EVP_PKEY *issuer_key, const Wish &wish)
{
    static long serial;
    X509 *made = X509_new();
    require(made && X509_set_version(made, 2) && ASN1_INTEGER_set(X509_get_serialNumber(made), ++serial), "make a certificate");
    X509_gmtime_adj(X509_getm_notBefore(made), wish.from_days * 86400L);
    X509_gmtime_adj(X509_getm_notAfter(made), wish.until_days * 86400L);
    X509_NAME *subject = X509_get_subject_name(made);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char *>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(made, issuer ? X509_get_subject_name(issuer) : subject);
    X509_set_pubkey(made, key);
    auto extend = [&](int kind, const char *value) {
        X509_EXTENSION *extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
        require(extension && X509_add_ext(made, extension, -1), "extend a certificate");
        X509_EXTENSION_free(extension);
    };
    if (!issuer) extend(NID_basic_constraints, "critical,CA:TRUE");
    if (wish.usage) extend(NID_ext_key_usage, wish.usage);
    require(X509_sign(made, issuer_key, EVP_sha256()) > 0, "sign a certificate");
    return made;
}

FILE *open_private(const std::string &path)
{
    int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : nullptr;
    require(file, "write a file");
    return file;
}

/* Set before anything of the library is used; not in a rank that was started as a process, which has settings of its own. */
struct Log {
    std::optional<Folder> folder;
    std::string path;
    size_t seen = 0;
    Log()
    {
        if (getenv("COMM_TEST_ROLE")) return;
        folder.emplace();
        path = folder->file("log");
        setenv("QUOIT_LOG", "debug", 0);
        setenv("QUOIT_LOG_FILE", path.c_str(), 1);
        settings_load(); /* until then the log takes its defaults */
    }
} the_log;

} // namespace

Folder::Folder()
{
    path = temporary_pattern("tls");
    require(mkdtemp(path.data()), "make a folder");
}

Folder::~Folder()
{
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
}

std::string Folder::write(const std::string &name, const std::string &content, unsigned mode) const
{
    FILE *out = open_private(file(name));
    fwrite(content.data(), 1, content.size(), out);
    fclose(out);
    require(chmod(file(name).c_str(), mode) == 0, "chmod");
    return file(name);
}

std::string read_file(const std::string &path)
{
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

std::string new_key()
{
    unsigned char bytes[32];
    char digit[3];
    std::string text;
    require(RAND_bytes(bytes, sizeof bytes) == 1, "get random bytes");
    for (unsigned char byte : bytes) {
        snprintf(digit, sizeof digit, "%02x", byte);
        text += digit;
    }
    return text + "\n";
}

Authority::Authority(const Folder &folder, const std::string &name) : file(folder.file(name + ".ca")), folder_(folder), key_(EVP_EC_gen("P-256"))
{
    require(key_, "make a key");
    certificate_ = make_certificate(name, key_, nullptr, key_, {.from_days = -400, .until_days = 400, .usage = nullptr});
    FILE *out = open_private(file);
    PEM_write_X509(out, certificate_);
    fclose(out);
}

Authority::~Authority()
{
    X509_free(certificate_);
    EVP_PKEY_free(key_);
}

Credentials Authority::issue(const std::string &name, Wish wish) const
{
    Credentials made = {folder_.file(name + ".crt"), folder_.file(name + ".key")};
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *certificate = make_certificate(name, key, certificate_, key_, wish);
    FILE *out = open_private(made.certificate);
    PEM_write_X509(out, certificate);
    fclose(out);
    out = open_private(made.key);
    PEM_write_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
    fclose(out);
    X509_free(certificate);
    EVP_PKEY_free(key);
    return made;
}

Settings plain() { return {{"INTERFACE", "lo"}, {"IP_FAMILY", "4"}}; }

Settings psk(const std::string &key_file)
{
    Settings settings = plain();
    settings["TLS"] = "psk";
    settings["TLS_KEY_FILE"] = key_file;
    return settings;
}

Settings certificates(const Credentials &own, const std::string &ca)
{
    Settings settings = plain();
    settings["TLS"] = "certificates";
    settings["TLS_CERTIFICATE"] = own.certificate;
    settings["TLS_PRIVATE_KEY"] = own.key;
    settings["TLS_CA"] = ca;
    return settings;
}

std::string new_log()
{
    std::string all = read_file(the_log.path), text = all.substr(the_log.seen < all.size() ? the_log.seen : all.size());
    the_log.seen = all.size();
    return text;
}

} // namespace tls_test
