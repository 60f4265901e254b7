// As symbols.c: a member of a template, which has a long name.
#include <cstdio>
#include <poll.h>

static volatile unsigned long sum;

namespace place {
template <class T> struct Box {
    __attribute__((noinline)) static void turn(T times) {
        for (T i = 0; i < times; i++)
            sum += i;
    }
};
} // namespace place

int main() {
    std::printf("at place::Box<int>::turn %lx\nready\n", reinterpret_cast<unsigned long>(&place::Box<int>::turn));
    std::fflush(stdout);
    pollfd input = {0, POLLIN, 0};
    while (poll(&input, 1, 0) == 0)
        place::Box<int>::turn(20000);
}
