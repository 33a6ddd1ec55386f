/* SPDX-License-Identifier: Apache-2.0 */
/** See reference.h. */
#include "test/reduce/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>

namespace reference {

namespace {

struct Format {
    int exponent_bits, mantissa_bits;
    bool has_infinity;
    uint32_t nan;
    uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits); }
};

Format format_of(quoit_dtype_t dtype)
{
    switch (dtype) {
    case QUOIT_F16: return {5, 10, true, 0x7e00};
    case QUOIT_BF16: return {8, 7, true, 0x7fc0};
    case QUOIT_F8_E4M3: return {4, 3, false, 0x7f};
    default: return {5, 2, true, 0x7f};
    }
}

double positive(const Format &format, uint32_t code)
{
    int bias = (1 << (format.exponent_bits - 1)) - 1, top = (1 << format.exponent_bits) - 1;
    int exponent = (int)(code >> format.mantissa_bits);
    uint32_t mantissa = code & ((1u << format.mantissa_bits) - 1), all = (1u << format.mantissa_bits) - 1;
    if (format.has_infinity && exponent == top) return mantissa ? std::nan("") : std::numeric_limits<double>::infinity();
    if (!format.has_infinity && exponent == top && mantissa == all) return std::nan("");
    if (exponent == 0) return std::ldexp((double)mantissa, 1 - bias - format.mantissa_bits);
    return std::ldexp(1.0 + std::ldexp((double)mantissa, -format.mantissa_bits), exponent - bias);
}

/** All finite positive values in order, and one beyond: what the next code would be if exponents went on. */
const std::vector<double> &values(quoit_dtype_t dtype)
{
    static std::map<quoit_dtype_t, std::vector<double>> all;
    std::vector<double> &list = all[dtype];
    if (!list.empty()) return list;
    Format format = format_of(dtype);
    for (uint32_t code = 0; std::isfinite(positive(format, code)) && code < format.sign(); code++) list.push_back(positive(format, code));
    list.push_back(list.back() + (list.back() - list[list.size() - 2]));
    return list;
}

template <typename T> T get(const unsigned char *from, size_t i)
{
    T value;
    std::memcpy(&value, from + i * sizeof value, sizeof value);
    return value;
}

template <typename T> void put(Bytes &to, size_t i, T value)
{
    if constexpr (std::is_floating_point_v<T>)
        if (std::isnan(value)) value = std::copysign(std::numeric_limits<T>::quiet_NaN(), T(1));
    std::memcpy(to.data() + i * sizeof value, &value, sizeof value);
}

/** Smaller by value, then by sign. */
bool before(double a, double b) { return a < b || (a == b && std::signbit(a) && !std::signbit(b)); }

/** One step; `round` brings the double back to the accumulator's type. */
template <typename Round> double combine(quoit_op_t op, double a, double b, Round round)
{
    if (op == QUOIT_PROD) return round(a * b);
    if (op != QUOIT_MIN && op != QUOIT_MAX) return round(a + b);
    if (std::isnan(a) || std::isnan(b)) return std::nan("");
    return before(a, b) == (op == QUOIT_MIN) ? a : b;
}

using Sources = std::vector<const unsigned char *>;

template <typename Get, typename Put, typename Round>
void floats(quoit_op_t op, const Sources &sources, size_t count, int64_t divisor, Get get, Put put, Round round, bool plus_zeros = false)
{
    for (size_t i = 0; i < count; i++) {
        double sum = get(sources[0], i);
        for (size_t k = 1; k < sources.size(); k++) sum = combine(op, sum, get(sources[k], i), round);
        if (plus_zeros && sum == 0) sum = 0;
        put(i, op == QUOIT_AVG && divisor > 1 ? round(sum / round((double)divisor)) : sum);
    }
}

template <typename T> void integers(quoit_op_t op, const Sources &sources, size_t count, int64_t divisor, Bytes &result)
{
    for (size_t i = 0; i < count; i++) {
        __int128 sum = get<T>(sources[0], i);
        for (size_t k = 1; k < sources.size(); k++) {
            __int128 next = get<T>(sources[k], i);
            switch (op) {
            case QUOIT_PROD: sum = (T)((unsigned __int128)sum * (unsigned __int128)next); break;
            case QUOIT_MIN: sum = std::min(sum, next); break;
            case QUOIT_MAX: sum = std::max(sum, next); break;
            case QUOIT_BAND: sum &= next; break;
            case QUOIT_BOR: sum |= next; break;
            case QUOIT_BXOR: sum ^= next; break;
            default: sum = (T)(sum + next);
            }
        }
        put<T>(result, i, (T)(op == QUOIT_AVG && divisor > 1 ? (T)sum / (__int128)divisor : sum));
    }
}

void truths(quoit_op_t op, const Sources &sources, size_t count, Bytes &result)
{
    for (size_t i = 0; i < count; i++) {
        size_t set = 0;
        for (const unsigned char *source : sources) set += source[i] != 0;
        if (op == QUOIT_BXOR) result[i] = set % 2;
        else if (op == QUOIT_PROD || op == QUOIT_MIN || op == QUOIT_BAND) result[i] = set == sources.size();
        else result[i] = set > 0;
    }
}

template <typename T> void multiply(const T a[2], const T b[2], T product[2])
{
    volatile T rr = a[0] * b[0], ii = a[1] * b[1], ri = a[0] * b[1], ir = a[1] * b[0];
    product[0] = rr - ii;
    product[1] = ri + ir;
}

template <typename T> void complex_products(const Sources &sources, size_t count, const T *factor, Bytes &result)
{
    for (size_t i = 0; i < count; i++) {
        T product[2] = {get<T>(sources[0], 2 * i), get<T>(sources[0], 2 * i + 1)};
        for (size_t k = 1; k < sources.size(); k++) {
            T next[2] = {get<T>(sources[k], 2 * i), get<T>(sources[k], 2 * i + 1)};
            multiply(product, next, product);
        }
        if (factor) multiply(product, factor, product);
        put<T>(result, 2 * i, product[0]);
        put<T>(result, 2 * i + 1, product[1]);
    }
}

double to_float(double value) { return (double)(float)value; }
double to_double(double value) { return value; }

uint32_t code_at(quoit_dtype_t dtype, const unsigned char *from, size_t i)
{
    return quoit_dtype_size(dtype) == 1 ? from[i] : get<uint16_t>(from, i);
}

void put_code(quoit_dtype_t dtype, Bytes &to, size_t i, double value)
{
    uint32_t code = encode(dtype, value);
    if (quoit_dtype_size(dtype) == 1) put<uint8_t>(to, i, (uint8_t)code);
    else put<uint16_t>(to, i, (uint16_t)code);
}

} // namespace

double decode(quoit_dtype_t dtype, uint32_t code)
{
    Format format = format_of(dtype);
    const std::vector<double> &list = values(dtype);
    uint32_t magnitude = code & (format.sign() - 1);
    double value = magnitude + 1 < list.size() ? list[magnitude] : positive(format, magnitude);
    return code & format.sign() ? -value : value;
}

uint32_t encode(quoit_dtype_t dtype, double value)
{
    Format format = format_of(dtype);
    if (std::isnan(value)) return format.nan;
    const std::vector<double> &list = values(dtype);
    double magnitude = std::fabs(value);
    uint32_t above = (uint32_t)(std::lower_bound(list.begin(), list.end(), magnitude) - list.begin()), code = above;
    if (above == list.size()) {
        code = above - 1;
    } else if (above > 0 && list[above] != magnitude) {
        double up = list[above] - magnitude, down = magnitude - list[above - 1];
        if (down < up || (down == up && (above - 1) % 2 == 0)) code = above - 1;
    }
    if (!format.has_infinity) code = std::min(code, (uint32_t)list.size() - 2); /* the largest number */
    return code | (std::signbit(value) ? format.sign() : 0);
}

Bytes reduce(quoit_dtype_t dtype, quoit_op_t op, const Sources &sources, size_t count, int64_t divisor)
{
    Bytes result(count * quoit_dtype_size(dtype));
    auto small_get = [dtype](const unsigned char *from, size_t i) { return decode(dtype, code_at(dtype, from, i)); };
    auto small_put = [&](size_t i, double value) { put_code(dtype, result, i, value); };
    size_t parts = count;
    switch (dtype) {
    case QUOIT_I8: integers<int8_t>(op, sources, count, divisor, result); break;
    case QUOIT_U8: integers<uint8_t>(op, sources, count, divisor, result); break;
    case QUOIT_I16: integers<int16_t>(op, sources, count, divisor, result); break;
    case QUOIT_U16: integers<uint16_t>(op, sources, count, divisor, result); break;
    case QUOIT_I32: integers<int32_t>(op, sources, count, divisor, result); break;
    case QUOIT_U32: integers<uint32_t>(op, sources, count, divisor, result); break;
    case QUOIT_I64: integers<int64_t>(op, sources, count, divisor, result); break;
    case QUOIT_U64: integers<uint64_t>(op, sources, count, divisor, result); break;
    case QUOIT_BOOL: truths(op, sources, count, result); break;
    case QUOIT_C64: parts = 2 * count; [[fallthrough]];
    case QUOIT_F32:
        if (parts != count && op == QUOIT_PROD) complex_products<float>(sources, count, nullptr, result);
        else floats(op, sources, parts, divisor, get<float>, [&](size_t i, double v) { put<float>(result, i, (float)v); }, to_float, parts != count);
        break;
    case QUOIT_C128: parts = 2 * count; [[fallthrough]];
    case QUOIT_F64:
        if (parts != count && op == QUOIT_PROD) complex_products<double>(sources, count, nullptr, result);
        else floats(op, sources, parts, divisor, get<double>, [&](size_t i, double v) { put<double>(result, i, v); }, to_double, parts != count);
        break;
    default: floats(op, sources, count, divisor, small_get, small_put, to_float);
    }
    return result;
}

Bytes scale(quoit_dtype_t dtype, const unsigned char *source, size_t count, const double factor[2])
{
    Bytes result(count * quoit_dtype_size(dtype));
    const float narrow[2] = {(float)factor[0], (float)factor[1]};
    if (dtype == QUOIT_C64 && factor[1] == 0) return scale(QUOIT_F32, source, 2 * count, factor);
    if (dtype == QUOIT_C128 && factor[1] == 0) return scale(QUOIT_F64, source, 2 * count, factor);
    if (dtype == QUOIT_C64) complex_products<float>({source}, count, narrow, result);
    else if (dtype == QUOIT_C128) complex_products<double>({source}, count, factor, result);
    for (size_t i = 0; i < count; i++) {
        if (dtype == QUOIT_F64) put<double>(result, i, get<double>(source, i) * factor[0]);
        else if (dtype == QUOIT_F32) put<float>(result, i, get<float>(source, i) * narrow[0]);
        else if (dtype != QUOIT_C64 && dtype != QUOIT_C128)
            put_code(dtype, result, i, to_float(decode(dtype, code_at(dtype, source, i)) * (double)narrow[0]));
    }
    return result;
}

namespace {

double special(std::mt19937_64 &random, bool narrow)
{
    const double infinity = std::numeric_limits<double>::infinity();
    const double wide[] = {std::nan(""), -std::nan(""), infinity, -infinity, 0.0, -0.0, 1.0, -1.0, 3.0, 5e-324, -2e-308,
                           std::numeric_limits<double>::max(), std::numeric_limits<double>::lowest()};
    const double slim[] = {std::nan(""), -std::nan(""), infinity, -infinity, 0.0, -0.0, 1.0, -1.0, 3.0, 1e-45, -1e-39, 3.4e38, -3.4e38,
                           65504, -65504, 6e-8, -6e-8, 448, 57344, 1.5e-5, 0.001953125};
    return narrow ? slim[random() % std::size(slim)] : wide[random() % std::size(wide)];
}

double number(int mode, std::mt19937_64 &random, bool narrow)
{
    if (mode == 1) return special(random, narrow);
    return (double)((int64_t)(random() % 2001) - 1000) / (double)(1 + random() % 16);
}

uint64_t special_integer(std::mt19937_64 &random)
{
    const uint64_t list[] = {0, 1, 2, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fffffff, 0x80000000, 0xffffffff,
                             0x7fffffffffffffff, 0x8000000000000000, 0xffffffffffffffff, 0x8080808080808080};
    return list[random() % std::size(list)];
}

} // namespace

Bytes data(quoit_dtype_t dtype, size_t count, std::mt19937_64 &random)
{
    const size_t size = quoit_dtype_size(dtype);
    Bytes bytes(count * size);
    const int mode = (int)(random() % 3);
    if (mode == 0) {
        for (unsigned char &byte : bytes) byte = (unsigned char)random();
        return bytes;
    }
    for (size_t i = 0; i < bytes.size() / size; i++) {
        switch (dtype) {
        case QUOIT_F64: put<double>(bytes, i, number(mode, random, false)); break;
        case QUOIT_F32: put<float>(bytes, i, (float)number(mode, random, true)); break;
        case QUOIT_C64:
            for (size_t j = 0; j < 2; j++) put<float>(bytes, 2 * i + j, (float)number(mode, random, true));
            break;
        case QUOIT_C128:
            for (size_t j = 0; j < 2; j++) put<double>(bytes, 2 * i + j, number(mode, random, false));
            break;
        case QUOIT_F16:
        case QUOIT_BF16:
        case QUOIT_F8_E4M3:
        case QUOIT_F8_E5M2: put_code(dtype, bytes, i, number(mode, random, true)); break;
        default: {
            uint64_t value = mode == 1 ? special_integer(random) : random() % 200 - 100;
            std::memcpy(bytes.data() + i * size, &value, size);
        }
        }
    }
    return bytes;
}

} // namespace reference
