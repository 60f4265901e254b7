// Calls through namespaces, templates, members, operators and a lambda, for the names of a call stack. Build with -O1
// -fno-omit-frame-pointer, by which each function has a frame.
//   calls ROUNDS
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

volatile unsigned long sink;

namespace outer {
namespace {

template <typename Number, int Count> __attribute__((noinline)) Number spin(Number from) {
    for (int at = 0; at < Count; at++)
        sink = sink + from + at;
    return from + sink;
}

} // namespace

template <typename T> struct Box {
    std::vector<T> values;

    __attribute__((noinline)) T operator()(T from) const {
        T sum = spin<T, 2000>(from);
        for (const T &value : values)
            sum += value;
        return sum;
    }
    __attribute__((noinline)) bool operator<(const Box &other) const {
        return spin<T, 30>(values.size()) < spin<unsigned short, 30>(other.values.size());
    }
    virtual __attribute__((noinline)) T virtually(std::string const &name, T (*then)(T)) {
        T sum = then(name.size());
        sink = sink + sum;
        return sum;
    }
    virtual ~Box() = default;
};

} // namespace outer

__attribute__((noinline)) unsigned long apply(const std::function<unsigned long(unsigned long)> &function) {
    unsigned long result = function(7);
    sink = sink + result;
    return result;
}

int main(int, char **argv) {
    outer::Box<unsigned long> box{};
    box.values = {3, 1, 2};
    outer::Box<long> other{};
    std::vector<outer::Box<unsigned long>> boxes(16, box);
    for (int round = std::atoi(argv[1]); round > 0; round--) {
        apply(box);
        apply([&other](unsigned long from) -> unsigned long {
            return other.virtually("name", [](long size) { return outer::spin<long, 1000>(size); }) + from;
        });
        std::sort(boxes.begin(), boxes.end());
    }
}
